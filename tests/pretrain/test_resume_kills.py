"""kill -9 at random moments, in the middle of saves too: nothing complete is lost, and the curve is
that of the unbroken run, bit for bit."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "kill_cases.py")


@pytest.mark.parametrize(("ranks", "kills", "steps"), [(1, 50, 1000), (2, 8, 200)])
def test_killed_again_and_again(
    ranks: int,
    kills: int,
    steps: int,
    tmp_path: Path,
    shards: Path,
    environments: Callable[[int], list[dict[str, str]]],
) -> None:
    """About five minutes on 2 idle cores for both, sixteen on busy ones."""
    flags = {
        "config": DEBUG,
        "runs": str(tmp_path),
        "data.shards": str(shards),
        "data.num_workers": 0,
        "steps": steps,
        "batch.global_rows": 4,
        "batch.micro_rows": 2,
        "model.dropout_prob": 0.1,
        "model.attention_dropout_prob": 0.1,
        "evaluation.every_steps": 0,
        "checkpoints.every_steps": 0,
        "checkpoints.keep_last": 2,
    }
    plan = {
        "ranks": ranks,
        "kills": kills,
        "seed": 20260,
        "arguments": [f"--{key}={value}" for key, value in flags.items()],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, WORKER, str(tmp_path), str(tmp_path / "plan.json")]
    environment = environments(1)[0]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=5400, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lives: list[dict[str, Any]] = json.loads((tmp_path / "found.json").read_text())
    assert len(lives) == kills
    newest = 0
    for life in lives:
        assert life["damage"] == []
        assert max(life["complete"], default=0) >= newest, "a complete checkpoint was lost"
        newest = max(life["complete"], default=0)
        assert life["latest"] in [None, *(f"step-{step:08d}" for step in life["complete"])]
        assert life["latest"] or len(life["complete"]) <= 1
    assert sum(life["in_a_save"] for life in lives) >= kills // 10, "too few kills met a save"
    assert newest > kills // 10
    assert _curve(tmp_path / "killed") == _curve(tmp_path / "unbroken")


def _curve(run: Path) -> list[tuple[float, float, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tags = ("step", "loss/total_nats", "optimizer/gradient_norm")
    return [tuple(row[tag] for tag in tags) for row in rows if "loss/total_nats" in row]

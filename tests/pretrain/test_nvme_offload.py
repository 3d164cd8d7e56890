"""Weights and optimizer on NVMe: the plain curve, also through a checkpoint. Slow: the first time
DeepSpeed compiles its async_io (five minutes of one core), then half a minute."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "train_cases.py")
STEPS, BROKEN_AT = 6, 3


def _what_is_missing() -> str | None:
    if shutil.which("g++") is None or importlib.util.find_spec("ninja") is None:
        return "g++ and ninja, which compile async_io"
    if not Path("/usr/include/libaio.h").is_file():
        return "libaio's header (Debian: libaio-dev)"
    return None


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.skipif(_what_is_missing() is not None, reason=f"missing: {_what_is_missing()}")
def test_what_lies_on_nvme_learns_the_same_and_is_saved(
    tmp_path: Path, shards: Path, run_ranks: Callable[..., list[int]]
) -> None:
    nvme = {"device": "nvme", "nvme_path": str(tmp_path / "nvme")}
    zero: dict[str, dict[str, Any]] = {
        "plain": {},
        "optimizer": {"offload_optimizer": nvme},
        "both": {"offload_optimizer": nvme, "offload_param": nvme | {"buffer_size": 2_000_000}},
    }
    cases = [_arguments("plain", zero["plain"], tmp_path, shards)]
    for name in ("optimizer", "both"):
        flags = _arguments(name, zero[name], tmp_path, shards)
        cases += [[*flags, f"--stop_at_step={BROKEN_AT}"], [*flags, "--resume=auto"]]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    run_ranks(1, [WORKER, str(tmp_path / "cases.json")], tmp_path / "log")

    swapped = [p.stat().st_size for p in (tmp_path / "nvme").rglob("optimizer/rank0/*.swp")]
    assert max(swapped) > 4 << 20  # a small partition would have stayed in memory
    for tag in ("loss/total_nats", "optimizer/gradient_norm"):
        plain = _scalar(tmp_path / "plain", tag)
        assert len(plain) == STEPS
        for name in ("optimizer", "both"):
            assert _scalar(tmp_path / name, tag) == pytest.approx(plain, rel=1e-5)


def _arguments(name: str, zero: dict[str, Any], folder: Path, shards: Path) -> list[str]:
    settings = folder / f"{name}.json"
    sharded = {"stage": 3, "stage3_param_persistence_threshold": 0}
    settings.write_text(json.dumps({"zero_optimization": sharded | zero}))
    flags = {
        "config": DEBUG,
        "name": name,
        "runs": folder,
        "data.shards": shards,
        "steps": STEPS,
        "model.hidden_size": 256,
        "model.dropout_prob": 0.0,
        "batch.global_rows": 4,
        "batch.micro_rows": 2,
        "evaluation.every_steps": 0,
        "checkpoints.every_steps": 0,
        "deepspeed_config": settings,
    }
    return [f"--{key}={value}" for key, value in flags.items()]


def _scalar(run: Path, tag: str) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row[tag] for row in rows if tag in row]

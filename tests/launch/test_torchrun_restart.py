"""torchrun --max-restarts: after kill -9 of a rank all start again, and the run goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.ranks]

ROOT = Path(__file__).parents[2]
TORCHRUN = str(Path(sys.executable).parent / "torchrun")
SLOW_MACHINE_S = 240


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in listed]


def _last_step(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.is_file() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


def _wait_for_step(step: int, run: Path, started: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SLOW_MACHINE_S
    while _last_step(run) < step:
        assert started.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_started_again(rank: int, small_shards: Path, tmp_path: Path) -> None:
    """Half a minute a rank on a quiet machine."""
    log, run = tmp_path / "log", tmp_path / "runs" / "again"
    flags = {
        "config": ROOT / "launch/recipes/debug.yaml",
        "name": "again",
        "data.shards": small_shards,
        "steps": 100_000,
        "timeout_s": 60,
        "checkpoints.every_steps": 2,
        "evaluation.every_steps": 0,
        "resume": "auto",
    }
    torchrun = [TORCHRUN, "--nproc-per-node=2", "--max-restarts=1", "--master-port=0"]
    command = [*torchrun, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command += [str(ROOT / "launch/pretrain_glm.sh"), *(f"--{k}={v}" for k, v in flags.items())]
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHON": sys.executable, "DS_ACCELERATOR": "cpu"},
        )  # fmt: skip
    try:
        _wait_for_step(4, run, started, log)
        first = _children(started.pid)
        os.kill(first[rank], signal.SIGKILL)
        killed_at = _last_step(run)
        _wait_for_step(killed_at + 4, run, started, log)
        assert not set(first) & set(_children(started.pid))
        text = log.read_text()
        assert text.count("resumed from") == 1, text[-4000:]
        started.terminate()  # torchrun asks all ranks, which save
        assert started.wait(timeout=SLOW_MACHINE_S) == 1
        assert json.loads((run / "status.json").read_text())["state"] == "preempted"
    finally:
        for process in _children(started.pid) if started.poll() is None else ():
            os.kill(process, signal.SIGKILL)
        started.kill()
        started.wait()

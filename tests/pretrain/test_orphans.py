"""A launcher that is killed leaves nothing behind: its ranks save, stop and end their workers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not Path("/proc/self/environ").is_file(), reason="needs /proc"),
]

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "launch" / "recipes" / "debug.yaml")
MARK = "PALIMPSEST_TEST_OF_ORPHANS"
LAUNCHER = """
import json, subprocess, sys
for rank in [subprocess.Popen(argv, env=env) for argv, env in json.load(open(sys.argv[1]))]:
    rank.wait()
"""


def _processes(mark: str) -> list[int]:
    """Everything alive that was started, however far down, with MARK=mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has just ended, or is not ours
            continue
    return found


def _arguments(runs: Path, shards: Path) -> list[str]:
    flags = {
        "config": DEBUG,
        "name": "orphan",
        "runs": str(runs),
        "data.shards": str(shards),
        "data.num_workers": 1,
        "steps": 100_000,
        "batch.global_rows": 4,
        "batch.micro_rows": 2,
        "evaluation.every_steps": 0,
        "checkpoints.every_steps": 0,
    }
    return [f"--{key}={value}" for key, value in flags.items()]


def _start(kind: str, folder: Path, shards: Path, environments: list[dict[str, str]]) -> int:
    """A launcher with two ranks; the process to kill."""
    arguments = _arguments(folder, shards)
    mark = {MARK: str(folder)}
    output = open(folder / "log", "w", encoding="utf-8")  # noqa: SIM115 (the child's)
    if kind == "deepspeed":
        script = ["--num_gpus", "2", "--hostfile", os.devnull, str(ROOT / "launch/pretrain_glm.sh")]
        command = [sys.executable, "-m", "deepspeed.launcher.runner", *script, *arguments]
        port = ["--master_port", environments[0]["MASTER_PORT"]]
        command[3:3] = port
        placed = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        environment = {k: v for k, v in environments[0].items() if k not in placed}
        environment |= {"PYTHON": sys.executable} | mark
    else:
        argv = [sys.executable, "-m", "pretrain", "train", *arguments]
        (folder / "ranks.json").write_text(json.dumps([[argv, e | mark] for e in environments]))
        command = [sys.executable, "-c", LAUNCHER, str(folder / "ranks.json")]
        environment = os.environ | mark
    return subprocess.Popen(
        command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT
    ).pid


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    for pid in _processes(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("kind", ["a parent", pytest.param("deepspeed", marks=pytest.mark.slow)])
def test_ranks_save_and_stop_when_their_launcher_is_killed(
    kind: str,
    tmp_path: Path,
    shards: Path,
    environments: Callable[[int], list[dict[str, str]]],
) -> None:
    """With the deepspeed launcher half a minute: it starts Python three times over."""
    shared_memory = set(os.listdir("/dev/shm"))
    launcher = _start(kind, tmp_path, shards, environments(2))
    metrics = tmp_path / "orphan" / "metrics.jsonl"
    _wait(lambda: metrics.is_file() and metrics.read_text().count("\n") > 3, "no fourth step")
    assert len(_processes(str(tmp_path))) >= 5  # the launcher, two ranks, a loader's worker each
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    _wait(lambda: not _processes(str(tmp_path)), "ranks or their workers live on")
    status = json.loads((tmp_path / "orphan" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("preempted", "the launcher is gone")
    assert status["checkpoint_step"] == status["step"] > 3
    assert set(os.listdir("/dev/shm")) <= shared_memory


def _wait(happened: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)

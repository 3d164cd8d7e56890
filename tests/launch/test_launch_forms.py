"""The forms of the launch for real: two updates under ZeRO-3, in a folder with a space in its name.

All forms, whatever their number of ranks, give the same first losses.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = 2
SCRIPT = "launch/pretrain_glm.sh"
BIN = Path(sys.executable).parent
LAUNCHERS = {
    "deepspeed": ["deepspeed", "PORT", SCRIPT],
    "deepspeed_two_ranks": ["deepspeed", "PORT", "--num_gpus", "2", SCRIPT],
    "deepspeed_no_python": ["deepspeed", "PORT", "--num_gpus", "2", "--no_python", SCRIPT],
    "bash": ["bash", SCRIPT],
    "torchrun": ["torchrun", "--nproc-per-node", "2", "PORT", SCRIPT],
    "torchrun_no_python": ["torchrun", "PORT", "--no-python", SCRIPT],
    "python": [sys.executable, SCRIPT],
}


@pytest.fixture(scope="module")
def clone(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rooms in a new folder, as a clone; its .venv is the one that runs the tests."""
    root = tmp_path_factory.mktemp("clones") / "my clone"
    rooms = ("launch", "pretrain", "kernels", "data_pipeline")
    for name in rooms:
        shutil.copytree(
            repository / name, root / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(repository / "ds_config.json", root)
    (root / ".venv").symlink_to(BIN.parent)
    return root


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command_of(form: str) -> list[str]:
    program, *rest = LAUNCHERS[form]
    flag = (
        f"--master_port={free_port()}" if program == "deepspeed" else f"--master-port={free_port()}"
    )
    if program in ("deepspeed", "torchrun"):
        program = str(BIN / program)
    return [program, *(flag if word == "PORT" else word for word in rest)]


def launch(form: str, clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        k: v for k, v in os.environ.items() if k not in ("PYTHON", "DS_ARGS", "PYTHONPATH")
    }
    environment = {
        **inherited,
        "CC": "false",
        "CXX": "false",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    return subprocess.run(
        [*command_of(form), *arguments],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def first_losses(form: str, clone: Path, shards: Path) -> list[float]:
    arguments = ["--config", "launch/recipes/debug.yaml", "--name", form, "--steps", str(STEPS)]
    arguments += ["--data.shards", str(shards), "--model.dropout_prob", "0"]
    done = launch(form, clone, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (clone / "runs" / form / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [r["loss/total_nats"] for r in records if "loss/total_nats" in r]


@pytest.fixture(scope="module")
def two_rank_losses(clone: Path, small_shards: Path) -> list[float]:
    return first_losses("deepspeed_two_ranks", clone, small_shards)


@pytest.mark.ranks
def test_deepspeed_trains_on_two_ranks(two_rank_losses: list[float]) -> None:
    assert len(two_rank_losses) == STEPS
    assert all(3 < loss < 8 for loss in two_rank_losses)  # log of a vocabulary of 330 is 5.8


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("form", [f for f in LAUNCHERS if f != "deepspeed_two_ranks"])
def test_every_form_starts_the_same_training(
    form: str, clone: Path, small_shards: Path, two_rank_losses: list[float]
) -> None:
    losses = first_losses(form, clone, small_shards)
    assert losses == pytest.approx(two_rank_losses, rel=1e-5)


@pytest.mark.slow
def test_missing_shards_end_the_launch_with_2_and_the_command_that_makes_them(clone: Path) -> None:
    done = launch("deepspeed", clone)
    assert done.returncode == 2, done.stdout + done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("pretrain: ")]
    assert len(said) == 1
    assert "python -m data_pipeline prepare" in said[0]


def test_a_rank_that_meets_nobody_ends_with_75_and_says_where_it_waited(
    clone: Path, small_shards: Path
) -> None:
    port = free_port()
    rank = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    arguments = ["--config", "launch/recipes/debug.yaml", "--data.shards", str(small_shards)]
    done = subprocess.run(
        ["bash", SCRIPT, *arguments, "--timeout_s", "2"],
        cwd=clone,
        env={**os.environ, **rank, "MASTER_PORT": str(port), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert f"the ranks did not find each other at 127.0.0.1:{port}" in done.stderr


def test_a_rank_without_shards_ends_with_2_and_one_line(clone: Path) -> None:
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", SCRIPT],
        cwd=clone,
        env={**os.environ, **rank},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "python -m data_pipeline prepare" in done.stderr

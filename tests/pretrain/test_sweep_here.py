"""`python -m pretrain sweep FILE --run`: tasks one after another, those that are finished left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "launch" / "recipes" / "debug.yaml"
FAKE = f"{sys.executable} {Path(__file__).parent / 'sweep_fake.py'}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tried.yaml"
    path.write_text(f"recipe: {RECIPE}\ngrid: {{seed: [1, 2, 3]}}\n")
    return path


def _sweep(file: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pretrain", "sweep", str(file), *flags],
        cwd=file.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _started(file: Path) -> list[str]:
    return (file.parent / "runs" / "tried" / "started.txt").read_text().splitlines()


def test_a_failed_task_is_named_after_the_others_and_tried_again_alone(file: Path) -> None:
    done = _sweep(file, "--run", "--launch", FAKE, "--steps", "7")
    assert done.returncode == 1
    assert "task 1 failed with exit code 4" in done.stderr and "failed: tasks [1]" in done.stderr
    again = _sweep(file, "--run", "--launch", FAKE, "--steps", "7")
    assert again.returncode == 1 and again.stderr.count("finished, passed over") == 2
    assert _started(file) == ["0 auto 7", "1 auto 7", "2 auto 7", "1 auto 7"]


def test_asked_to_stop_it_asks_the_training_and_leaves_the_others(file: Path) -> None:
    done = _sweep(file, "--run", "--launch", FAKE, FAKE_STOPS="1")
    assert done.returncode == 85 and _started(file) == ["0 auto 20"]
    assert not list((file.parent / "runs" / "tried").glob("*/STOP"))


def test_one_task_is_trained_alone_and_the_count_is_a_number(file: Path) -> None:
    assert _sweep(file, "--task", "2", "--launch", FAKE).returncode == 0
    assert _started(file) == ["2 auto 20"]
    assert _sweep(file, "--count").stdout == "3\n"
    said = _sweep(file, "--task", "3")
    assert said.returncode == 2 and "there is no task 3" in said.stderr


def test_the_table_tells_the_state_of_every_task(file: Path) -> None:
    _sweep(file, "--task", "2", "--launch", FAKE)
    lines = _sweep(file).stdout.splitlines()
    assert lines[2].split() == ["task", "seed", "state", "run", "folder"]
    assert lines[5].split() == ["2", "3", "finished", "runs/tried/2-seed=3"]

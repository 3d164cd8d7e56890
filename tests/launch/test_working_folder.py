"""What lies in the folder that a user works in is never taken for a module of Python.

A json.py beside the data would else be run in place of the standard library's, by the questions
that the scripts ask and by the launchers that they start.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Imported by what the scripts ask, by deepspeed's launchers or by the trainer.
NAMES = (
    *("json", "random", "socket", "os", "sys", "importlib", "logging", "argparse", "base64"),
    *("signal", "subprocess", "torch", "yaml", "deepspeed", "pretrain", "data_pipeline"),
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A working folder whose every file says so when it is imported, and ends the program."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"import posix\nposix.write(2, b'hostile {name}\\n')\nposix._exit(99)\n"
        )
    return folder


def said(hostile: Path, *command: str, code: int, **environment: str) -> str:
    """What a command says that is started in that folder."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        command,
        cwd=hostile,
        env={**inherited, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout + done.stderr
    assert "hostile" not in text
    assert done.returncode == code, text
    return text


def test_the_folder_would_be_asked_otherwise(hostile: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import json"], cwd=hostile, capture_output=True, check=False
    )
    assert done.returncode == 99


def test_a_bare_start_and_the_launchers_it_starts(hostile: Path, repository: Path) -> None:
    script = str(repository / "launch/pretrain_glm.sh")
    text = said(hostile, "bash", script, "--data.shards", "none", code=2)
    assert "no prepared shards in none" in text


def test_a_rank(hostile: Path, repository: Path) -> None:
    script = str(repository / "launch/pretrain_glm.sh")
    said(hostile, script, "--print_config", code=0, RANK="0", WORLD_SIZE="1")


def test_a_batch_script_and_its_ranks(hostile: Path, repository: Path, tmp_path: Path) -> None:
    """It asks for a free port and for the progress of the run."""
    programs = {
        "scontrol": "case $2 in hostnames) echo here ;; node) echo NodeAddr=127.0.0.1 ;; esac",
        "srun": 'while [[ "$1" == --* ]]; do shift; done; SLURM_STEP_ID=0 SLURM_PROCID=0 "$@"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "here", "SLURM_LOCALID": "0"}
    job |= {"SLURM_NTASKS": "1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = str(repository / "launch/pretrain_glm.sh")
    text = said(hostile, "bash", script, "--data.shards", "none", code=2, **job)
    assert "no prepared shards in none" in text


def test_submit_and_prepare(hostile: Path, repository: Path, tmp_path: Path) -> None:
    for name, text in {"sbatch": "echo 7", "scontrol": "echo 'MaxArraySize = 1001'"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    slurm, recipe = repository / "launch/slurm", str(repository / "launch/recipes/debug.yaml")
    options = ["-pgpu", "-N2", "-n2", "-t10"]
    template = str(slurm / "pretrain.sbatch")
    said(hostile, str(slurm / "submit.sh"), *options, template, "--config", recipe, code=0,
         PATH=path)  # fmt: skip
    request = ["--input", "none.txt", "--tokenizer", "none.model", "--output", "shards"]
    text = said(hostile, str(slurm / "prepare.sh"), *options, "--", *request, code=2, PATH=path)
    assert "none" in text

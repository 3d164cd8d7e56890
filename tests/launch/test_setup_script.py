"""launch/setup.sh: another Python is refused in one line, a .venv that is up to date left alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def checkout(tmp_path: Path, repository: Path) -> Path:
    """What set-up reads, in a folder with a space in its name."""
    root = tmp_path / "a checkout"
    (root / "launch").mkdir(parents=True)
    for name in ("launch/setup.sh", "pyproject.toml", "constraints.txt"):
        shutil.copy(repository / name, root / name)
    return root


def pretend_python(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def set_up(root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        ["bash", str(root / "launch/setup.sh")],
        env={**base, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("version", ["3.10", "3.14", "2.7"])
def test_another_python_is_refused_in_one_line(checkout, tmp_path, version) -> None:
    python = pretend_python(tmp_path / "bin/other", version)
    done = set_up(checkout, PYTHON=str(python))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "3.11 to 3.13" in done.stderr
    assert version in done.stderr
    assert not (checkout / ".venv").exists()


def test_without_a_usable_python_it_says_which_it_found(checkout, tmp_path) -> None:
    for name in ("python3", "python3.13", "python3.12", "python3.11", "python"):
        pretend_python(tmp_path / "bin" / name, "3.9")
    done = set_up(checkout, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "python3=3.9" in done.stderr


def test_a_folder_that_is_no_venv_is_not_removed(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv/precious").touch()
    done = set_up(checkout, PYTHON=sys.executable)
    assert done.returncode == 2
    assert "is no virtual environment" in done.stderr
    assert (checkout / ".venv/precious").exists()


def test_a_venv_that_is_up_to_date_is_left_alone(checkout: Path) -> None:
    files = b"".join(
        (checkout / n).read_bytes()
        for n in ("pyproject.toml", "constraints.txt", "launch/setup.sh")
    )
    sum_of_files = subprocess.run(["cksum"], input=files, capture_output=True, check=True).stdout
    pretend_python(checkout / ".venv/bin/python", "3.12")
    stamp = f"{sum_of_files.decode()}cpu\n{checkout}\n"
    (checkout / ".venv/setup.stamp").write_text(stamp)
    done = set_up(checkout, PATH=f"{checkout / '.venv/bin'}:/usr/bin:/bin")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_unknown_build_of_torch_is_refused(checkout: Path) -> None:
    done = set_up(checkout, TORCH_BUILD="gpu")
    assert done.returncode == 2
    assert "cpu or default, got gpu" in done.stderr


def test_every_direct_dependency_is_pinned(repository: Path) -> None:
    import re
    import tomllib

    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    names = {re.split(r"[\[<>=;~ ]", w)[0].lower().replace("_", "-") for w in wanted}
    lines = (repository / "constraints.txt").read_text().splitlines()
    pins = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert names <= pins

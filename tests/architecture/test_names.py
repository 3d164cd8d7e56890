"""Our names collide with nobody's: `kernels` above all, which is also a distribution on PyPI."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pretrain.environment import refuse_foreign_kernels


def pretend_distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("version", ["0.18.2", "0.18.3.dev1", "0.18.9", "0.18.2+local"])
def test_a_foreign_kernels_in_the_window_is_refused_in_one_line(tmp_path, monkeypatch, version):
    pretend_distribution(tmp_path, "kernels", version)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="pip uninstall kernels") as refused:
        refuse_foreign_kernels()
    assert "\n" not in str(refused.value)
    assert version in str(refused.value)


@pytest.mark.parametrize("version", ["0.10.4", "0.18.1", "0.19.0", "1.0rc1"])
def test_a_kernels_that_transformers_ignores_is_let_be(tmp_path, monkeypatch, version) -> None:
    pretend_distribution(tmp_path, "kernels", version)
    monkeypatch.syspath_prepend(tmp_path)
    refuse_foreign_kernels()


def test_nothing_is_refused_where_nothing_is_installed() -> None:
    refuse_foreign_kernels()


def test_our_version_lies_outside_the_window_that_transformers_takes_for_kernels(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    version = tuple(map(int, project["version"].split(".")))
    assert not (0, 18, 2) <= version < (0, 19, 0)
    assert project["name"] == "palimpsest-lm"
    assert project["scripts"] == {"palimpsest": "pretrain.__main__:main"}


def test_the_window_is_the_one_of_the_installed_transformers() -> None:
    from transformers.utils import import_utils

    from pretrain.environment import REFUSED_KERNELS

    window = (import_utils.KERNELS_MIN_VERSION, import_utils.KERNELS_MAX_VERSION)
    assert tuple(".".join(map(str, v)) for v in REFUSED_KERNELS) in (
        window,
        (window[0], window[1] + ".0"),
    )


def test_gpt2_is_imported_beside_our_kernels(repository: Path) -> None:
    script = "from transformers import GPT2LMHeadModel; import kernels; print(kernels.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == repository / "kernels" / "__init__.py"


def test_no_package_hides_under_tests(repository: Path) -> None:
    assert list((repository / "tests").rglob("__init__.py")) == []


def test_test_files_have_names_of_their_own(repository: Path) -> None:
    names = [p.name for p in (repository / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_a_command_refuses_a_foreign_kernels_before_anything_else(repository, tmp_path) -> None:
    pretend_distribution(tmp_path, "kernels", "0.18.2")
    done = subprocess.run(
        [sys.executable, "-m", "pretrain", "train", "--help"],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip uninstall kernels" in done.stderr

""".ci/run installs what it can, and goes on to lint and tests where it cannot."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ONLY_ROOT_INSTALLS = pytest.mark.skipif(os.geteuid() != 0, reason="apt-get is asked by root alone")


@pytest.fixture
def bare(tmp_path: Path, repository: Path) -> Path:
    """A machine with make, git and Python alone, whose pretend programs write into the folder."""
    (tmp_path / "a checkout/.ci").mkdir(parents=True)
    shutil.copy(repository / ".ci/run", tmp_path / "a checkout/.ci")
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "dirname", "timeout"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    for name in ("make", "git", "python3", "apt-get"):
        told = f'echo "{name} $*" >> "{tmp_path}/called"'
        ends = 'exit "${APT_RC:-0}"' if name == "apt-get" else "exit 0"
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{told}\n{ends}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def ci(bare: Path, **environment: str) -> tuple[int, str, list[str]]:
    """Exit code, what was said, and the calls of apt-get and make."""
    done = subprocess.run(
        ["bash", str(bare / "a checkout/.ci/run")],
        env={"PATH": str(bare / "bin"), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    called = (bare / "called").read_text().splitlines()
    return done.returncode, done.stdout, [line for line in called if line[0] in "am"]


@ONLY_ROOT_INSTALLS
@pytest.mark.parametrize("code", ["0", "100"])
def test_tests_are_run_whether_or_not_packages_can_be_had(bare: Path, code: str) -> None:
    returned, said, called = ci(bare, APT_RC=code)
    assert (returned, called[-1]) == (0, "make lint test")
    assert called.count("apt-get update") == 1
    installed = [line.split(" --no-install-recommends ")[1] for line in called[1:-1]]
    assert [group.split()[0] for group in installed if "openmpi" not in group] == [
        "chromium", "pdsh", "slurm-wlm",
    ]  # fmt: skip
    for group in installed:
        assert (f"ci: {group} could not be installed" in said) == (code != "0")


def test_without_apt_get_it_names_what_is_missing(bare: Path) -> None:
    (bare / "bin/apt-get").unlink()
    returned, said, called = ci(bare)
    assert (returned, called) == (0, ["make lint test"])
    for group in ("chromium chromium-driver", "pdsh openssh-server", "slurm-wlm munge"):
        assert f"ci: without {group}" in said

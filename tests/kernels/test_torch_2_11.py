"""The same source on torch 2.11 with triton 3.6, as GPU images have them, in their own environment.

PALIMPSEST_TORCH_2_11 names its Python. Nothing is downloaded here, since it is five gigabytes:
docs/kernels.md says how to make one.
"""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
VARIABLE = "PALIMPSEST_TORCH_2_11"


def run(repository: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    python = os.environ.get(VARIABLE)
    if python is None:
        pytest.skip(f"{VARIABLE} names no Python with torch 2.11 and triton 3.6 (docs/kernels.md)")
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, *arguments],
        cwd=repository,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_environment_is_the_one_that_is_meant(repository):
    script = "import torch, triton; print(torch.__version__, triton.__version__)"
    done = run(repository, "-c", script)
    assert done.returncode == 0, done.stderr
    torch_version, triton_version = done.stdout.split()
    assert torch_version.startswith("2.11.") and triton_version.startswith("3.6.")


def test_every_kernel_compiles_for_both_chips(repository, tmp_path):
    """58 compilations: three minutes on a quiet core."""
    done = run(repository, "-m", "kernels.aot", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "triton 3.6." in done.stdout and "Atomics: none in any of them." in done.stdout


def test_the_fast_tests_of_the_kernels_pass(repository, tmp_path):
    """Interpreter parity, opcheck, torch.compile and the rest: four minutes on a quiet core."""
    options = ("-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}")
    done = run(
        repository, "-m", "pytest", *options, "tests/kernels", TRITON_CACHE_DIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stdout[-4000:]

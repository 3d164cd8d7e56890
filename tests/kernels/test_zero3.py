"""The kernels under ZeRO-3, where a parameter is there only while its module runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "zero3_steps.py"


def steps(repository: Path, backend: str) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step."""
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        env=os.environ | {"KERNELS_BACKEND": backend, "PYTHONPATH": str(repository)},
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("step ")]
    return [(float(loss), float(norm)) for _, loss, norm in lines]


@pytest.mark.slow
def test_steps_are_those_on_sdpa(repository, triton_device):
    """Half a minute: two starts of DeepSpeed."""
    on_sdpa, on_kernels = (steps(repository, backend) for backend in ("sdpa", "triton"))
    assert len(on_kernels) == 2
    for ours, expected in zip(on_kernels, on_sdpa, strict=True):
        assert ours == pytest.approx(expected, rel=1e-5)

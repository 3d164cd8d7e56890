"""20 steps of every objective are the numbers that are kept in tests/golden/curves.

A difference means that rows, model, loss or optimizer changed. Meant so: run
`python tests/pretrain/golden_curves.py --write` and say in the commit why the numbers moved.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.golden

SCRIPT = Path(__file__).parent / "golden_curves.py"
GOLDEN = Path(__file__).parents[1] / "golden" / "curves"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
# Equal bit for bit on one machine and one thread. Other instruction sets (AVX512, AVX2, none;
# oneDNN at SSE4.1) and two threads moved no number by more than 1.1e-7, one bit of fp32.
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The curves as this tree gives them."""
    folder = tmp_path_factory.mktemp("curves")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_every_objective_has_a_golden_curve(curves: Path) -> None:
    assert sorted(path.stem for path in curves.glob("*.json")) == NAMES and len(NAMES) > 3


@pytest.mark.parametrize("name", NAMES)
def test_the_curve_is_the_golden_one(name: str, curves: Path) -> None:
    found, golden = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for folder in (curves, GOLDEN)
    )
    assert found.keys() == golden.keys()
    for tag in golden:
        assert len(golden[tag]) == 20
        # Small KLs are differences of numbers near 1: 1e-7 of that, one bit of fp32.
        expected = pytest.approx(_numbers(golden[tag]), rel=TOLERANCE, abs=1e-7, nan_ok=True)
        assert _numbers(found[tag]) == expected, tag


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_curve_falls(name: str) -> None:
    losses = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))["loss/total_nats"]
    # Of AdaVAE only adapters, head and LayerNorms learn, beside a backbone that was never trained.
    assert losses[-1] < losses[0] - (0.03 if name == "adavae" else 0.5)


def _numbers(column: list[float | None]) -> list[float]:
    """The scalars of a tag; nan at steps that do not report it."""
    return [float("nan") if value is None else value for value in column]

"""Packed rows, and the machine that Triton's kernels run on in these tests."""

import importlib.util

import pytest
import torch

from kernels.visibility import Visibility

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def triton_device(monkeypatch) -> str:
    """Where the kernels run: a CUDA device, or the CPU under triton's interpreter."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed (make setup installs it where it has a wheel)")
    if DEVICE == "cpu":
        # tests/conftest.py has set it before triton could be imported; here for runs without that.
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    return DEVICE


@pytest.fixture(scope="session")
def packed():
    """A function of rows of (length, sep) documents, num_tokens and the device: a Visibility."""
    return packed_visibility


def packed_visibility(
    rows: list[list[tuple[int, int]]], num_tokens: int, device: str = "cpu"
) -> Visibility:
    """Rows of (length, sep) documents one after the other, then padding."""
    lo, hi, document = torch.zeros(3, len(rows), num_tokens, dtype=torch.int32).unbind()
    document -= 1
    for b, row in enumerate(rows):
        start = 0
        for number, (length, sep) in enumerate(row):
            for i in range(start, start + length):
                lo[b, i], hi[b, i], document[b, i] = start, max(i + 1, start + sep), number
            start += length
    return Visibility(lo.to(device), hi.to(device), document.to(device))

"""Which implementation runs: argument, then environment, then the default; said once."""

import logging

import pytest
import torch

from kernels import dispatch
from kernels.visibility import single_documents


@pytest.fixture(autouse=True)
def a_fresh_choice(monkeypatch):
    monkeypatch.delenv("KERNELS_BACKEND", raising=False)
    dispatch.choose_backend.cache_clear()
    yield
    dispatch.choose_backend.cache_clear()


def test_the_default_is_sdpa():
    assert dispatch.choose_backend() == "sdpa"


def test_the_environment_forces_a_backend(monkeypatch):
    monkeypatch.setenv("KERNELS_BACKEND", "reference")
    assert dispatch.choose_backend() == "reference"


def test_the_argument_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("KERNELS_BACKEND", "reference")
    assert dispatch.choose_backend("sdpa") == "sdpa"


@pytest.mark.parametrize("asked_by", ["backend", "KERNELS_BACKEND"])
def test_a_wrong_value_says_what_is_allowed(monkeypatch, asked_by):
    monkeypatch.setenv("KERNELS_BACKEND", "flash" if asked_by == "KERNELS_BACKEND" else "")
    requested = "flash" if asked_by == "backend" else None
    with pytest.raises(ValueError, match=f"{asked_by} must be one of reference, sdpa, got 'flash'"):
        dispatch.choose_backend(requested)


def test_the_choice_is_logged_once(caplog):
    q = torch.zeros(1, 3, 1, 2)
    visibility = single_documents(torch.tensor([3]), torch.tensor([0]), 3)
    with caplog.at_level(logging.INFO, logger="kernels.dispatch"):
        for _ in range(3):
            dispatch.latent_memory_attention(q, q, q, visibility)
    assert [r.getMessage() for r in caplog.records] == [
        "attention runs on the sdpa backend (default)"
    ]

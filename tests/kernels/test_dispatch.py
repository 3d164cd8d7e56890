"""Which implementation runs: argument, then environment, then what suits the tensors; said once."""

import importlib.util
import logging

import pytest
import torch

from kernels import dispatch
from kernels.visibility import single_documents

THREE = single_documents(torch.tensor([3]), torch.tensor([0]), 3)


@pytest.fixture(autouse=True)
def a_fresh_choice(monkeypatch):
    monkeypatch.delenv("KERNELS_BACKEND", raising=False)
    monkeypatch.setattr(dispatch, "_has_triton", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    cached = (dispatch._choice, dispatch._left_to_sdpa, dispatch._say)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cpu", torch.float32, "sdpa"),
        ("cpu", torch.bfloat16, "sdpa"),
        ("cpu", torch.float64, "reference"),
        ("cuda", torch.float32, "triton"),
        ("cuda", torch.float16, "triton"),
        ("cuda", torch.bfloat16, "triton"),
        ("cuda", torch.float64, "reference"),
    ],
)
def test_the_default_suits_device_and_dtype(device, dtype, expected):
    assert dispatch.choose_backend(None, device, dtype) == expected


def test_cuda_without_triton_is_sdpa_and_its_price_is_said(monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "_has_triton", lambda: False)
    with caplog.at_level(logging.INFO, logger="kernels.dispatch"):
        assert dispatch.choose_backend(None, "cuda") == "sdpa"
    assert "T x T masks are built: pip install triton" in caplog.text


def test_an_old_gpu_is_sdpa(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    assert dispatch.choose_backend(None, "cuda") == "sdpa"


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
    allowed = f"{asked_by} must be one of reference, sdpa, triton, got 'flash'"
    with pytest.raises(ValueError, match=allowed):
        dispatch.choose_backend(requested)


@pytest.mark.parametrize(
    ("has_triton", "device", "dtype", "cure"),
    [
        (False, "cuda", torch.bfloat16, "Run: pip install triton"),
        (True, "cuda", torch.float64, "Use the reference backend"),
        (True, "cpu", torch.float32, "Leave backend out, or set TRITON_INTERPRET=1"),
    ],
)
def test_triton_where_it_cannot_work_says_what_to_do(monkeypatch, has_triton, device, dtype, cure):
    monkeypatch.setattr(dispatch, "_has_triton", lambda: has_triton)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=cure):
        dispatch.choose_backend("triton", device, dtype)


def test_the_interpreter_takes_cpu_tensors(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert dispatch.choose_backend("triton", "cpu") == "triton"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((1, 64, True, False), "dropout on attention weights"),
        ((5, 64, False, False), "5 latent slots"),
        ((1, 48, False, False), "heads 48 wide"),
        ((1, 64, False, True), "fewer queries than keys"),
    ],
)
def test_what_the_kernel_leaves_to_sdpa_is_said_once(caplog, arguments, reason):
    with caplog.at_level(logging.INFO, logger="kernels.dispatch"):
        for _ in range(3):
            assert reason in dispatch.left_to_sdpa(*arguments)
    assert len(caplog.records) == 1
    assert "runs on the sdpa backend" in caplog.text


@pytest.mark.parametrize("head_width", [32, 64, 80, 96, 128])
def test_the_kernel_takes_up_to_four_slots(head_width):
    assert dispatch.left_to_sdpa(4, head_width, False, False) is None


def test_dropout_with_the_triton_backend_runs_all_the_same(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    q = torch.ones(1, 3, 1, 32)
    out = dispatch.latent_memory_attention(q, q, q, THREE, dropout_prob=0.5, backend="triton")
    assert out.shape == q.shape


def test_the_choice_is_logged_once(caplog):
    q = torch.zeros(1, 3, 1, 2)
    with caplog.at_level(logging.INFO, logger="kernels.dispatch"):
        for _ in range(3):
            dispatch.latent_memory_attention(q, q, q, THREE)
    assert [r.getMessage() for r in caplog.records] == [
        "attention and embedding run on the sdpa backend (default)"
    ]


def test_triton_is_looked_for_without_importing_it(monkeypatch):
    monkeypatch.undo()
    looked_for = []
    monkeypatch.setattr(importlib.util, "find_spec", looked_for.append)
    assert not dispatch._has_triton()
    assert looked_for == ["triton"]

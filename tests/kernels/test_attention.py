"""Every implementation of attention against hand-made sums, float64 and each other."""

import math
import subprocess
import sys

import pytest
import torch

from kernels.dispatch import latent_memory_attention as attention
from kernels.visibility import Visibility

PADDED = (
    Visibility(  # two documents (5 tokens, sep 3; 4 tokens, sep 0) and 2 padding; all bidirectional
        lo=torch.tensor([[0, 0, 0, 0, 0, 5, 5, 5, 5, 0, 0], [0] * 11], dtype=torch.int32),
        hi=torch.tensor([[3, 3, 3, 4, 5, 6, 7, 8, 9, 0, 0], [11] * 11], dtype=torch.int32),
        document=torch.tensor([[0] * 5 + [1] * 4 + [-1] * 2, [0] * 11], dtype=torch.int32),
    )
)
backends = pytest.mark.parametrize("backend", ["reference", "sdpa"])


def qkv(dtype=torch.float64, seed=0, heads=3, width=5):
    generator = torch.Generator().manual_seed(seed)
    fused = torch.randn(2, 11, 3, heads, width, generator=generator, dtype=torch.float64)
    return [t.to(dtype).requires_grad_() for t in fused.unbind(2)]


def by_hand(q, k, v, visibility):
    out = torch.zeros_like(v)
    for b, i, h in ((b, i, h) for b in range(2) for i in range(11) for h in range(q.shape[2])):
        lo, hi = int(visibility.lo[b, i]), int(visibility.hi[b, i])
        if visibility.document[b, i] < 0:
            continue
        scores = k[b, lo:hi, h] @ q[b, i, h] / math.sqrt(q.shape[-1])
        weights = scores.exp() / scores.exp().sum()
        out[b, i, h] = weights @ v[b, lo:hi, h]
    return out


@backends
def test_output_is_the_weighted_mean_of_visible_values(backend):
    q, k, v = (t.detach() for t in qkv())
    out = attention(q, k, v, PADDED, backend=backend)
    assert torch.allclose(out, by_hand(q, k, v, PADDED), atol=1e-13)


@backends
def test_gradients_match_finite_differences(backend):
    q, k, v = qkv(heads=2, width=3)
    assert torch.autograd.gradcheck(
        lambda *args: attention(*args, PADDED, backend=backend), (q, k, v), atol=1e-7
    )


@backends
def test_weights_of_what_is_seen_sum_to_one(backend):
    q, k, v = qkv()
    out = attention(q, k, torch.ones_like(v), PADDED, backend=backend)
    seen = ~PADDED.padding()
    assert torch.allclose(out[seen], torch.ones_like(out[seen]), atol=1e-14)


@backends
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_padding_gives_zero_and_takes_no_gradient(backend, dtype):
    q, k, v = qkv(dtype)
    out = attention(q, k, v, PADDED, backend=backend)
    assert torch.equal(out[0, 9:], torch.zeros_like(out[0, 9:]))
    out.sum().backward()  # the gradient reaches padding rows too
    for tensor in (q, k, v):
        assert tensor.grad.isfinite().all()
        assert torch.equal(tensor.grad[0, 9:], torch.zeros_like(tensor.grad[0, 9:]))


@backends
def test_only_gradients_of_documents_count(backend):
    q, k, v = qkv()
    upstream = torch.randn(2, 11, 3, 5, generator=torch.Generator().manual_seed(1)).double()
    grads = torch.autograd.grad(attention(q, k, v, PADDED, backend=backend), (q, k, v), upstream)
    upstream[0, 9:] = 1e6
    again = torch.autograd.grad(attention(q, k, v, PADDED, backend=backend), (q, k, v), upstream)
    assert all(torch.equal(a, b) for a, b in zip(grads, again, strict=True))


@backends
def test_a_row_of_nothing_but_padding_is_zero(backend):
    nothing = torch.zeros(2, 11, dtype=torch.int32)
    q, k, v = qkv(torch.float32)
    out = attention(q, k, v, Visibility(nothing, nothing, nothing - 1), backend=backend)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert not q.grad.any() and not k.grad.any() and not v.grad.any()


@backends
def test_a_key_outside_the_interval_leaves_the_output_bit_identical(backend):
    q, k, v = (t.detach() for t in qkv(torch.float32))
    before = attention(q, k, v, PADDED, backend=backend)
    k[0, 4] += 100.0
    v[0, 4] -= 50.0
    after = attention(q, k, v, PADDED, backend=backend)
    blind = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]  # only query 4 sees key 4
    assert torch.equal(before[0, blind], after[0, blind])
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0, 4], after[0, 4])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)]
)
def test_sdpa_equals_the_float64_reference(dtype, tolerance):
    q, k, v = qkv(dtype)
    exact = attention(*(t.detach().double() for t in (q, k, v)), PADDED, backend="reference")
    out = attention(q, k, v, PADDED, backend="sdpa")
    assert (out.double() - exact).abs().max() < tolerance


def test_the_reference_takes_its_softmax_in_fp32():
    q, k, v = (t.detach() for t in qkv(torch.bfloat16))
    scores = torch.einsum("bthk,bshk->bhts", q, k).float() / math.sqrt(5)
    scores = scores.masked_fill(~PADDED.dense_mask(), float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0).bfloat16()
    expected = torch.einsum("bhts,bshk->bthk", weights, v)
    assert torch.equal(attention(q, k, v, PADDED, backend="reference"), expected)


@backends
def test_dropout_follows_the_generator_and_keeps_the_mean(backend):
    q, k, v = (t.detach().float() for t in qkv(heads=64))
    ones = torch.ones_like(v)
    torch.manual_seed(5)
    first = attention(q, k, ones, PADDED, dropout_prob=0.25, backend=backend)
    torch.manual_seed(5)
    again = attention(q, k, ones, PADDED, dropout_prob=0.25, backend=backend)
    assert torch.equal(first, again)
    assert not torch.equal(first, attention(q, k, ones, PADDED, backend=backend))
    # 64 heads x 11 queries of weights that sum to 1: the standard error is below 0.02.
    assert abs(first[1].mean() - 1) < 0.05


def test_importing_kernels_needs_neither_triton_nor_transformers():
    code = (
        "import sys; sys.modules['triton'] = None; import kernels.dispatch;"
        "print([m for m in ('transformers', 'pretrain', 'data_pipeline') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

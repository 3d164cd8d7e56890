"""Latent slots: M keys and values of a document's own, seen by all its queries and nobody else."""

import math

import pytest
import torch

from kernels.dispatch import latent_memory_attention
from kernels.visibility import Visibility

PACKED = Visibility(  # 4 tokens (sep 2) and 3 (sep 0), then 1 padding; one document of 8 (sep 8)
    lo=torch.tensor([[0, 0, 0, 0, 4, 4, 4, 0], [0] * 8], dtype=torch.int32),
    hi=torch.tensor([[2, 2, 3, 4, 5, 6, 7, 0], [8] * 8], dtype=torch.int32),
    document=torch.tensor([[0] * 4 + [1] * 3 + [-1], [0] * 8], dtype=torch.int32),
)
backends = pytest.mark.parametrize("backend", ["reference", "sdpa"])


def drawn(num_slots, dtype=torch.float64, seed=0):
    """q, k, v of 2 rows, 3 heads of width 5; slots of 2 documents a row."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(2, 8, 3, 5)] * 3 + [(2, 2, num_slots, 3, 5)] * 2
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.to(dtype).requires_grad_() for t in tensors]


def attend(q, k, v, latent_k, latent_v, backend):
    return latent_memory_attention(
        q, k, v, PACKED, latent_k=latent_k, latent_v=latent_v, backend=backend
    )


@backends
@pytest.mark.parametrize("num_slots", [1, 3, 6])
def test_a_query_reads_its_keys_and_the_slots_of_its_document(backend, num_slots):
    q, k, v, latent_k, latent_v = (t.detach() for t in drawn(num_slots))
    out = attend(q, k, v, latent_k, latent_v, backend)
    for b, i in ((0, 0), (0, 3), (0, 5), (1, 4)):
        lo, hi, n = (int(t[b, i]) for t in (PACKED.lo, PACKED.hi, PACKED.document))
        keys = torch.cat((latent_k[b, n], k[b, lo:hi]))
        values = torch.cat((latent_v[b, n], v[b, lo:hi]))
        weights = (torch.einsum("hk,shk->hs", q[b, i], keys) / math.sqrt(5)).softmax(-1)
        assert torch.allclose(out[b, i], torch.einsum("hs,shk->hk", weights, values), atol=1e-13)
    assert not out[0, 7].any()


@backends
def test_gradients_of_slots_match_finite_differences(backend):
    tensors = drawn(2)
    assert torch.autograd.gradcheck(lambda *t: attend(*t, backend), tensors, atol=1e-7)


@backends
def test_without_values_the_keys_of_slots_are_read(backend):
    q, k, v, latent_k, _ = drawn(2)
    shared = attend(q, k, v, latent_k, None, backend)
    assert torch.equal(shared, attend(q, k, v, latent_k, latent_k, backend))


@backends
def test_padding_takes_nothing_from_slots_and_gives_them_no_gradient(backend):
    tensors = drawn(2)
    upstream = torch.randn(2, 8, 3, 5, generator=torch.Generator().manual_seed(1)).double()
    grads = torch.autograd.grad(attend(*tensors, backend), tensors, upstream)
    upstream[0, 7] = 1e6  # of a padding row
    again = torch.autograd.grad(attend(*tensors, backend), tensors, upstream)
    assert all(torch.equal(a, b) for a, b in zip(grads, again, strict=True))


@backends
def test_a_slot_of_another_document_leaves_the_output_bit_identical(backend):
    q, k, v, latent_k, latent_v = (t.detach() for t in drawn(2, torch.float32))
    before = attend(q, k, v, latent_k, latent_v, backend)
    latent_k[0, 1] += 30.0
    latent_v[0, 1] -= 50.0
    after = attend(q, k, v, latent_k, latent_v, backend)
    assert torch.equal(before[0, :4], after[0, :4])
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0, 4:7], after[0, 4:7])


@backends
def test_a_slot_that_scores_minus_infinity_is_no_slot(backend):
    q, k, v, latent_k, latent_v = (t.detach() for t in drawn(1))
    q[..., 0], latent_k[..., 0] = 1.0, -1e6  # every score is about -1e6 / sqrt(5)
    without = latent_memory_attention(q, k, v, PACKED, backend=backend)
    assert torch.allclose(attend(q, k, v, latent_k, latent_v, backend), without, atol=1e-13)


@backends
def test_equal_slots_are_one_slot_whose_score_is_higher_by_the_log_of_their_number(backend):
    q, k, v, latent_k, latent_v = (t.detach() for t in drawn(1))
    q[..., 0] = math.sqrt(5)  # so that coordinate 0 of a key is added to its score
    three = attend(
        q, k, v, latent_k.expand(-1, -1, 3, -1, -1), latent_v.expand(-1, -1, 3, -1, -1), backend
    )
    latent_k[..., 0] += math.log(3)
    assert torch.allclose(three, attend(q, k, v, latent_k, latent_v, backend), atol=1e-13)


@pytest.mark.parametrize(
    ("name", "shape"), [("latent_k", (2, 2, 1, 3, 4)), ("latent_v", (2, 1, 1, 3, 5))]
)
def test_latents_that_do_not_fit_are_refused_with_their_shape(name, shape):
    q, k, v, latent_k, latent_v = drawn(1)
    latents = {"latent_k": latent_k, "latent_v": latent_v} | {name: torch.zeros(shape)}
    with pytest.raises(ValueError, match=f"{name} must be") as refused:
        latent_memory_attention(q, k, v, PACKED, **latents)
    assert str(shape) in str(refused.value)


def test_values_without_keys_are_refused():
    q, k, v, _, latent_v = drawn(1)
    with pytest.raises(ValueError, match="latent_v came without latent_k"):
        latent_memory_attention(q, k, v, PACKED, latent_v=latent_v)

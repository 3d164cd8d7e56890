"""The operators pass torch's own examination and stay whole under torch.compile, without a GPU."""

import os
import shutil

import pytest
import torch
from torch import Tensor

from kernels.attention import operators as attention
from kernels.attention import reference
from kernels.position2d import operators as embedding
from kernels.position2d import plain, tied
from kernels.position2d import reference as embedding_reference

compiler = os.environ.get("CXX", "g++")
needs_compiler = pytest.mark.skipif(
    shutil.which(compiler) is None,
    reason=f"torch.compile needs {compiler}, which is not here",
)


@pytest.fixture(autouse=True)
def formulas_instead_of_kernels(monkeypatch):
    """On CPU tensors without the interpreter the operators run the formulas of plain.py."""
    monkeypatch.setattr(attention, "_interpreted", lambda: False)
    monkeypatch.setattr(embedding, "_implementation", lambda: plain)


def attention_inputs(packed, *, num_slots: int, requires_grad: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(2, 9, 3, 2, 8, generator=generator)
    latents = torch.randn(2, 2, 2, num_slots, 2, 8, generator=generator)
    visibility = packed([[(5, 3), (3, 0)], [(6, 6)]], 9)
    floats = [*fused.unbind(2), *latents]
    return [
        *(t.clone().requires_grad_(requires_grad) for t in floats),
        *visibility.query_intervals(),
        *visibility.key_intervals(),
        visibility.document,
        *visibility.document_bounds(2),
    ]


def embedding_inputs() -> list[object]:
    generator = torch.Generator().manual_seed(0)
    index = [torch.randint(4, (2, 5), generator=generator, dtype=torch.int32) for _ in range(4)]
    document = torch.tensor([[0, 0, 1, 1, -1], [0, 0, 0, 0, 0]], dtype=torch.int32)
    shapes = [(4, 6)] * 4 + [(2, 2, 6), (6,), (6,)]
    tables = [torch.randn(s, generator=generator).requires_grad_() for s in shapes]
    return [*index, document, *tables, torch.tensor([3], dtype=torch.int32), 1e-5, 0.0]


@pytest.mark.parametrize("num_slots", [0, 2])
def test_attention_passes_opcheck(packed, num_slots):
    inputs = attention_inputs(packed, num_slots=num_slots)
    torch.library.opcheck(attention.latent_attention, tuple(inputs))


def test_the_gradient_of_attention_passes_opcheck(packed):
    inputs = attention_inputs(packed, num_slots=2, requires_grad=False)
    out, lse = attention.latent_attention(*inputs)
    gradient_inputs = (torch.ones_like(out), *inputs[:5], out, lse, *inputs[5:])
    torch.library.opcheck(attention.latent_attention_backward, gradient_inputs)


def test_embedding_passes_opcheck():
    inputs = embedding_inputs()
    torch.library.opcheck(embedding.embedding_forward, tuple(inputs))
    bare = [*inputs[:2], *[None] * 3, *inputs[5:7], *[None] * 5, *inputs[12:]]
    torch.library.opcheck(embedding.embedding_forward, tuple(bare))


def test_the_gradients_of_embedding_pass_opcheck():
    seed, weight = torch.tensor([3], dtype=torch.int32), torch.randn(6)
    dout = torch.randn(2, 5, 6)
    torch.library.opcheck(embedding.sum_gradient, (dout, dout + 1, weight, seed, 1e-5, 0.25))
    rows, index = torch.randn(10, 6), torch.randint(4, (10,))
    torch.library.opcheck(embedding.sum_rows_into, (torch.ones(4, 6), rows, index))


def test_both_ends_of_a_tied_table_pass_opcheck():
    table, hidden = torch.randn(4, 6).requires_grad_(), torch.randn(2, 3, 6).requires_grad_()
    index = torch.tensor([[1, 3, 1], [0, 1, 1]])
    torch.library.opcheck(tied.token_rows, (table, index))
    _, edge = tied.token_rows(table, index)
    edge = edge.detach().requires_grad_()
    torch.library.opcheck(tied.tied_logits, (hidden, table.detach(), edge))


def test_the_formulas_of_attention_are_those_of_the_reference(packed):
    inputs = attention_inputs(packed, num_slots=2)
    visibility = packed([[(5, 3), (3, 0)], [(6, 6)]], 9)
    floats = [t.detach().double().requires_grad_() for t in inputs[:5]]
    q, k, v, latent_k, latent_v = floats
    exact = reference.latent_memory_attention(
        q, k, v, visibility, latent_k=latent_k, latent_v=latent_v
    )
    upstream = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad(exact, floats, upstream.double())
    out, _ = attention.latent_attention(*inputs)
    assert torch.allclose(out.double(), exact, atol=1e-6)
    for ours, theirs in zip(torch.autograd.grad(out, inputs[:5], upstream), expected, strict=True):
        assert torch.allclose(ours.double(), theirs, atol=2e-6)


def test_embedding_draws_the_same_dropout_backward_as_forward():
    tables = [torch.ones(4, 6, requires_grad=True) for _ in range(2)]
    index = torch.zeros(1, 50, dtype=torch.int64)
    torch.manual_seed(0)
    out, _ = embedding.embedding_2d(index, index, None, *tables, None, dropout_prob=0.25)
    out.sum().backward()
    kept = (out != 0).sum((0, 1))
    assert 0 < kept.sum() < 300
    assert torch.allclose(tables[0].grad[0], kept / 0.75)


@needs_compiler
@pytest.mark.parametrize("backend", ["triton", "sdpa"])
def test_all_ops_compile_into_one_graph_forward_and_backward(backend, packed, monkeypatch):
    from kernels import dispatch

    # The choice of triton, but with the formulas on CPU tensors behind it.
    monkeypatch.setattr(dispatch, "_check_triton", lambda *_: None)
    visibility = packed([[(5, 3), (3, 0)], [(6, 6)]], 9)
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(s, 64, generator=generator).requires_grad_() for s in (7, 9, 5)]
    index = torch.randint(5, (3, 2, 9), generator=generator)
    slots = torch.randn(2, 2, 2, 2, 2, 32, generator=generator).requires_grad_()

    def step(slots: Tensor, *tables: Tensor) -> Tensor:
        x, edge = dispatch.embedding_2d(*index, *tables, backend=backend)
        heads = x.unflatten(-1, (2, 32))
        out = dispatch.latent_memory_attention(
            heads, heads, heads, visibility, latent_k=slots[0], latent_v=slots[1], backend=backend
        )
        return tied.tied_logits(out.flatten(2), tables[0], edge).square().sum()

    leaves = (slots, *tables)
    expected = torch.autograd.grad(step(*leaves), leaves)
    compiled = torch.compile(step, fullgraph=True)
    for ours, theirs in zip(torch.autograd.grad(compiled(*leaves), leaves), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_operators_embedding_is_that_of_the_reference():
    ids, position, block, token_type, document, *tables, _, eps, _ = embedding_inputs()
    token, places, blocks, types, latent, weight, bias = tables
    options = {
        "token_type": token_type,
        "type_table": types,
        "latent": latent,
        "document": document,
        "norm_weight": weight,
        "norm_bias": bias,
        "norm_eps": eps,
    }
    results = []
    for implementation in (embedding, embedding_reference):
        x, _ = implementation.embedding_2d(ids, position, block, token, places, blocks, **options)
        results.append((x, *torch.autograd.grad(x.square().sum(), tables)))
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)

"""A token table read at both ends has the gradient of two plain reads, written once."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bench.live_memory import most_added_bytes
from kernels.position2d import operators, plain, reference
from kernels.position2d.tied import tied_logits, token_rows

IDS = torch.tensor([[1, 6, 1, 0], [1, 1, 3, 6]], dtype=torch.int32)
POSITION = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 2]])


class Plain:
    """Both ends as torch has them, whose gradients autograd adds."""

    @staticmethod
    def embed(token: Tensor, position: Tensor, ids: Tensor) -> tuple[Tensor, None]:
        return F.embedding(ids, token) + F.embedding(POSITION, position), None

    @staticmethod
    def head(hidden: Tensor, token: Tensor, tied: None) -> Tensor:
        return F.linear(hidden, token)


class Tied:
    """Both ends as models have them, by the reference or the operator of the embedding."""

    def __init__(self, implementation) -> None:
        self.implementation = implementation

    def embed(self, token: Tensor, position: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.implementation.embedding_2d(ids, POSITION, None, token, position, None)

    head = staticmethod(tied_logits)


def score(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1).square().sum()


def one_head(ends, token, position):
    x, tied = ends.embed(token, position, IDS)
    return score(ends.head(x.tanh(), token, tied))


def two_heads(ends, token, position):
    x, tied = ends.embed(token, position, IDS)
    return score(ends.head(x.tanh(), token, tied)) + score(ends.head(x[0].sin(), token, tied))


def two_embeddings(ends, token, position):
    first, tied = ends.embed(token, position, IDS)
    second, _ = ends.embed(token, position, IDS.flip(1))
    return score(ends.head(first.tanh() * second, token, tied))


def two_pairs(ends, token, position):
    return one_head(ends, token, position) * one_head(ends, 2 * token, position)


def no_head(ends, token, position):
    return ends.embed(token, position, IDS)[0].square().sum()


def nothing_embedded(ends, token, position):
    _, tied = ends.embed(token, position, IDS)
    return score(ends.head(torch.ones(3, 5, dtype=token.dtype), token, tied))


def no_targets(ends, token, position):
    x, tied = ends.embed(token, position, IDS)
    return score(ends.head(x[:0].tanh(), token, tied)) + x.sum()


GRAPHS = [one_head, two_heads, two_embeddings, two_pairs, no_head, nothing_embedded, no_targets]


def tables(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(rows, 5, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for rows in (7, 4)
    ]


@pytest.fixture(params=["reference", "operator"])
def tied(request, monkeypatch) -> Tied:
    monkeypatch.setattr(operators, "_implementation", lambda: plain)
    return Tied({"reference": reference, "operator": operators}[request.param])


@pytest.mark.parametrize("graph", GRAPHS)
def test_gradients_are_those_of_two_plain_reads(graph, tied):
    leaves = tables()
    expected = torch.autograd.grad(graph(Plain, *leaves), leaves, allow_unused=True)
    ours = torch.autograd.grad(graph(tied, *leaves), leaves, allow_unused=True)
    for one, other in zip(ours, expected, strict=True):
        assert (one is None and other is None) or torch.allclose(one, other, rtol=1e-13, atol=1e-13)


def test_gradients_match_finite_differences(tied):
    assert torch.autograd.gradcheck(lambda *leaves: two_heads(tied, *leaves), tables())


def test_a_second_backward_pass_gives_the_same_bits_and_changes_nothing_it_was_given(tied):
    leaves = tables()
    x, edge = tied.embed(*leaves, IDS)
    logits = tied.head(x.tanh(), leaves[0], edge)
    upstream = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).double()
    kept = upstream.clone()
    first = torch.autograd.grad(logits, leaves, upstream, retain_graph=True)
    before = [gradient.clone() for gradient in first]
    second = torch.autograd.grad(logits, leaves, upstream)
    assert torch.equal(upstream, kept)
    for one, held, other in zip(first, before, second, strict=True):
        assert torch.equal(one, held) and torch.equal(one, other)


def test_a_bf16_gradient_is_that_of_float64_within_its_bits(tied):
    leaves = tables()
    (truth,) = torch.autograd.grad(one_head(Plain, *leaves), leaves[:1])
    leaves = tables(torch.bfloat16)
    (ours,) = torch.autograd.grad(one_head(tied, *leaves), leaves[:1])
    assert ours.dtype == torch.bfloat16
    # bf16 keeps 8 bits; the forward pass rounds too.
    assert (ours.double() - truth).abs().max() < 0.03 * truth.abs().max()


def test_many_readers_of_a_row_are_summed_before_they_are_rounded():
    total, index = torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(301, dtype=torch.int64)
    plain.sum_rows_into(total, torch.ones(301, 3, dtype=torch.bfloat16), index)
    assert total.tolist() == [[302] * 3, [1] * 3]  # added one by one, bf16 would stay at 256


def test_rows_that_nobody_reads_are_not_touched():
    total = torch.full((5, 2), float("nan"))
    total[[0, 3]] = 1.0
    plain.sum_rows_into(total, torch.ones(4, 2), torch.tensor([3, 0, 3, 5]))  # index 5 drops a row
    assert total[[0, 3]].tolist() == [[2, 2], [3, 3]]
    assert total[[1, 2, 4]].isnan().all()


def test_the_edge_holds_one_number_and_the_head_the_parameter_itself(tied):
    """ZeRO-3 takes a table's memory away after the forward pass and brings it back elsewhere."""
    leaves = tables()
    expected = torch.autograd.grad(one_head(tied, *leaves), leaves)
    x, edge = tied.embed(*leaves, IDS)
    assert edge.shape == leaves[0].shape
    assert edge.untyped_storage().nbytes() == leaves[0].element_size()
    loss = score(tied.head(x.tanh(), leaves[0], edge))
    memory = [leaf.data for leaf in leaves]
    for leaf, old in zip(leaves, memory, strict=True):
        leaf.data = old.clone()
        old.fill_(float("nan"))
    for ours, theirs in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_backward_makes_one_gradient_of_the_table(tied):
    # Logits of eight tokens are few beside the table.
    assert 1 <= tables_added_by_backward(tied) < 1.1
    assert tables_added_by_backward(Plain) >= 2  # so it can be seen here


def tables_added_by_backward(ends) -> float:
    """The most that a backward pass holds beyond what was there before, in sizes of the table."""
    token, position = (torch.randn(rows, 64).requires_grad_() for rows in (40960, 4))
    loss = ends.embed(token, position, IDS)
    loss = score(ends.head(loss[0].tanh()[:, :1], token, loss[1]))
    return most_added_bytes(loss.backward) / (token.numel() * token.element_size())


def test_a_sum_over_the_edge_itself_is_not_written_into():
    token, _ = tables()
    rows, edge = token_rows(token, IDS)
    (gradient,) = torch.autograd.grad(rows.sum() + edge.sum(), token)
    assert gradient[:, 0].tolist() == [2, 5, 1, 2, 1, 1, 3]


def test_a_second_derivative_is_refused(tied):
    """It would have to pass through a gradient that was written into."""
    leaves = tables()
    gradients = torch.autograd.grad(one_head(tied, *leaves), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradients[0].square().sum().backward()


def test_without_gradients_nothing_is_kept(tied):
    with torch.no_grad():
        x, edge = tied.embed(*tables(), IDS)
    assert not x.requires_grad and not edge.requires_grad

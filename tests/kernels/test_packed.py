"""Documents of packed rows, gathered by length: the same numbers as the mask over whole rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import packed as grouped
from kernels.attention import reference, sdpa
from kernels.visibility import Visibility, single_documents

documents_of_a_row = st.lists(
    st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=4
)


@pytest.fixture
def always_grouped(monkeypatch):
    monkeypatch.setattr(grouped, "WORTH_IT", float("inf"))


def outputs(implementation, visibility, dtype, *, num_slots=0, num_documents=4, **options):
    """The output, and the gradients of q, k, v in one and of the slots."""
    generator = torch.Generator().manual_seed(0)
    batch, num_tokens = visibility.document.shape
    fused = torch.randn(batch, num_tokens, 3, 2, 8, generator=generator)
    slots = torch.randn(2, batch, num_documents, num_slots, 2, 8, generator=generator)
    upstream = torch.randn(batch, num_tokens, 2, 8, generator=generator)
    fused, slots = (t.to(dtype).requires_grad_() for t in (fused, slots))
    latents = {"latent_k": slots[0], "latent_v": slots[1]} if num_slots else {}
    out = implementation(*fused.unbind(2), visibility, **latents, **options)
    leaves = (fused, slots) if num_slots else (fused,)
    return out.detach(), *torch.autograd.grad(out, leaves, upstream.to(dtype))


@settings(deadline=None, max_examples=60)
@given(st.lists(documents_of_a_row, min_size=1, max_size=3), st.sampled_from([0, 1, 3]))
def test_groups_give_what_whole_rows_give(packed, rows, num_slots):
    visibility = packed(rows, max(sum(n for n, _ in row) for row in rows) + 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped, "WORTH_IT", float("inf"))
        ours = outputs(sdpa.latent_memory_attention, visibility, torch.float64, num_slots=num_slots)
        assert (grouped.grouping_of(visibility) is None) == (not any(rows))
    exact = outputs(
        reference.latent_memory_attention, visibility, torch.float64, num_slots=num_slots
    )
    for got, expected in zip(ours, exact, strict=True):
        assert torch.allclose(got, expected, atol=1e-12)


def test_padding_gives_exactly_zero_and_takes_no_gradient(packed, always_grouped):
    visibility = packed([[(5, 2), (4, 0)], [(3, 3)]], 12)
    out, dfused, dslots = outputs(
        sdpa.latent_memory_attention, visibility, torch.float32, num_slots=2
    )
    padding = visibility.padding()
    assert not out[padding].any()
    assert not dfused[padding].any()
    assert not dslots[:, :, 2:].any()  # of documents that no row has
    assert not dslots[:, 1, 1:].any()


def test_a_changed_document_leaves_the_bits_of_its_neighbours_alone(packed, always_grouped):
    visibility = packed([[(5, 2), (4, 0), (5, 5)]], 16)
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 16, 2, 8, generator=generator)
    before = sdpa.latent_memory_attention(q, k, v, visibility)
    k[0, 5:9] = 1e3
    v[0, 5:9] = float("inf")
    after = sdpa.latent_memory_attention(q, k, v, visibility)
    assert torch.equal(before[0, :5], after[0, :5])
    assert torch.equal(before[0, 9:], after[0, 9:])


def test_documents_of_a_group_are_filled_up_by_at_most_a_quarter(packed):
    rows = [[(8, 0), (10, 3), (30, 3)], [(33, 1), (9, 9), (3, 0)]]
    grouping = grouped.grouping_of(packed(rows * 40, 512))
    assert grouping is not None
    assert [tuple(group.lo.shape) for group in grouping.groups] == [(40, 3), (120, 10), (80, 33)]
    tokens = 40 * sum(n for row in rows for n, _ in row)
    assert len(grouping.token_P) < 1.25 * tokens


@pytest.mark.parametrize(
    ("length", "num_tokens", "expected"),
    [(30, 1152, True), (100, 1152, True), (30, 128, False), (128, 128, False), (1100, 1152, False)],
)
def test_rows_are_taken_apart_where_it_pays(packed, length, num_tokens, expected):
    visibility = packed([[(length, 10)] * (num_tokens // length)] * 4, num_tokens)
    assert (grouped.grouping_of(visibility) is not None) == expected


def test_the_grouping_is_made_once(packed):
    visibility = packed([[(10, 5)] * 30], 300)
    assert grouped.grouping_of(visibility) is grouped.grouping_of(visibility)


def test_a_cache_is_read_as_a_whole(packed, always_grouped):
    whole = single_documents(torch.tensor([6]), torch.tensor([0]), 6)
    last = Visibility(whole.lo[:, 4:], whole.hi[:, 4:], whole.document[:, 4:], num_keys=6)
    assert grouped.grouping_of(last) is None


def test_a_document_that_sees_beyond_itself_is_not_taken_apart(always_grouped):
    everything = torch.full((1, 6), 6, dtype=torch.int32)
    document = torch.tensor([[0, 0, 0, 1, 1, 1]], dtype=torch.int32)
    visibility = Visibility(torch.zeros_like(everything), everything, document)
    assert grouped.grouping_of(visibility) is None


def test_dropout_keeps_the_mean(packed, always_grouped):
    visibility = packed([[(10, 10)] * 40], 400)
    ones = torch.ones(1, 400, 8, 4)
    torch.manual_seed(0)
    out = sdpa.latent_memory_attention(ones, ones, ones, visibility, dropout_prob=0.25)
    # 3,200 queries of 10 weights: the standard error is 0.0004 x 10.
    assert abs(float(out.mean()) - 1) < 0.02
    assert out.std() > 0.1

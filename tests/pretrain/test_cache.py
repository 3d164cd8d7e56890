"""A cache gives what reading everything at once gives, whatever the lengths, padding and pieces."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from kernels.visibility import Visibility, single_documents
from pretrain.handing_over.convert import from_published_glm
from pretrain.models.backbone import Backbone
from pretrain.models.cache import KeyValueCache
from pretrain.models.shape import BackboneShape

GOLDEN = Path(__file__).parents[1] / "golden" / "glm"
NO_DROPOUT = {"dropout_prob": 0.0, "attention_dropout_prob": 0.0}
# fp32: the same products in another order; the published code differs from itself by 5e-6.
TOLERANCE = 1e-5


def small_backbone() -> Backbone:
    shape = BackboneShape(num_layers=2, hidden_size=24, num_heads=3, init_std=0.3, **NO_DROPOUT)
    return Backbone(shape, vocab_size=50, num_positions=23).eval()


def cut(visibility: Visibility, first: int, stop: int) -> Visibility:
    """The same for the queries first .. stop - 1 alone."""
    return Visibility(
        *(getattr(visibility, name)[:, first:stop] for name in ("lo", "hi", "document"))
    )


@pytest.mark.golden
@torch.no_grad()
def test_incremental_logits_equal_the_published_ones():
    shape = BackboneShape(num_layers=2, hidden_size=64, num_heads=4, **NO_DROPOUT)
    backbone = Backbone(shape, vocab_size=128, num_positions=49).eval()
    backbone.load_state_dict(from_published_glm(load_file(GOLDEN / "model_A_weights.safetensors")))
    io = load_file(GOLDEN / "model_A_io.safetensors")
    ids, positions, sep = io["incr.text"], io["incr.position_id"], int(io["incr.attention_mask"])
    num_tokens = ids.shape[1]
    visibility = single_documents(torch.tensor([num_tokens]), torch.tensor([sep]), num_tokens)
    cache = KeyValueCache(num_layers=2, max_rows=1)
    logits = []
    for first, stop in [(0, sep), *((n, n + 1) for n in range(sep, num_tokens))]:
        part = cut(visibility, first, stop)
        hidden = backbone(ids[:, first:stop], positions[..., first:stop], part, cache=cache)
        logits.append(backbone.logits(hidden))
    assert len(logits) == num_tokens - sep + 1 > 3
    got = torch.cat(logits, dim=1)
    assert (got - io["incr.logits_incremental"]).abs().max() < 2e-5
    assert (got - io["incr.logits_full"]).abs().max() < 2e-5


@settings(max_examples=40, deadline=None)
@given(data=st.data())
@torch.no_grad()
def test_pieces_of_mixed_lengths_equal_the_whole(data):
    """Rows are read in pieces of their own lengths, padded at the right or at the left."""
    backbone = small_backbone()
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    seps = [data.draw(st.integers(0, n)) for n in lengths]
    # Part A sees all of itself, so it is read as one piece.
    cuts = [
        sorted({0, n, *data.draw(st.lists(st.integers(max(sep, 1), n), max_size=3))})
        for n, sep in zip(lengths, seps)
    ]
    pad_left = data.draw(st.booleans())
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    longest = max(lengths)
    ids = torch.randint(50, (len(lengths), longest), generator=generator)
    positions = torch.randint(23, (len(lengths), 2, longest), generator=generator)
    whole = single_documents(torch.tensor(lengths), torch.tensor(seps), longest)
    expected = backbone(ids, positions, whole)

    cache = KeyValueCache(num_layers=2, max_rows=4, capacity=data.draw(st.sampled_from([0, 5])))
    for step in range(max(map(len, cuts)) - 1):
        bounds = [tuple(c[step : step + 2]) if step + 1 < len(c) else (0, 0) for c in cuts]
        width = max(stop - first for first, stop in bounds)
        places = [slice(width - (b - a), width) if pad_left else slice(0, b - a) for a, b in bounds]
        part_ids = torch.zeros(len(lengths), width, dtype=torch.int64)
        part_positions = torch.zeros(len(lengths), 2, width, dtype=torch.int64)
        lo, hi = torch.zeros(2, len(lengths), width, dtype=torch.int32)
        document = torch.full_like(lo, -1)
        for row, ((a, b), place) in enumerate(zip(bounds, places)):
            part_ids[row, place] = ids[row, a:b]
            part_positions[row, :, place] = positions[row, :, a:b]
            hi[row, place], document[row, place] = whole.hi[row, a:b], 0
        got = backbone(part_ids, part_positions, Visibility(lo, hi, document), cache=cache)
        for row, ((a, b), place) in enumerate(zip(bounds, places)):
            assert torch.allclose(got[row, place], expected[row, a:b], atol=TOLERANCE, rtol=0)
    assert cache.lengths == lengths


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_both_backends_take_fewer_queries_than_keys(backend):
    from kernels.dispatch import latent_memory_attention as attention

    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 7, 3, 8, generator=generator)
    whole = single_documents(torch.tensor([7, 5]), torch.tensor([3, 2]), 7)
    expected = attention(q, k, v, whole, backend=backend)
    last = cut(whole, 4, 7)
    last = Visibility(last.lo, last.hi, last.document, num_keys=7)
    got = attention(q[:, 4:], k, v, last, backend=backend)
    assert torch.allclose(got, expected[:, 4:], atol=1e-6)
    assert (got[1, 1:] == 0).all()


@torch.no_grad()
def test_rows_are_dropped_moved_and_repeated():
    backbone = small_backbone()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(50, (3, 6), generator=generator)
    positions = torch.randint(23, (3, 2, 6), generator=generator)
    lengths = torch.tensor([5, 4, 3])
    whole = single_documents(lengths, torch.tensor([2, 2, 2]), 6)
    cache = KeyValueCache(num_layers=2, max_rows=4)
    backbone(ids[:, :5], positions[..., :5], cut(whole, 0, 5), cache=cache)

    rows = [2, 2, 0, 1]
    cache.keep(rows)
    assert cache.lengths == [3, 3, 5, 4]
    next_ids = torch.tensor([[7], [8], [9], [4]])
    next_positions = torch.ones(4, 2, 1, dtype=torch.int64)
    hi = torch.tensor(cache.lengths, dtype=torch.int32)[:, None] + 1
    seen = Visibility(torch.zeros_like(hi), hi, torch.zeros_like(hi))
    got = backbone(next_ids, next_positions, seen, cache=cache)
    for row, source in enumerate(rows):
        n = int(lengths[source])
        row_ids = torch.cat((ids[source, :n], next_ids[row]))[None]
        row_positions = torch.cat((positions[source, :, :n], next_positions[row]), dim=1)[None]
        alone = single_documents(torch.tensor([n + 1]), torch.tensor([2]), n + 1)
        expected = backbone(row_ids, row_positions, alone)[0, -1]
        assert torch.allclose(got[row, 0], expected, atol=TOLERANCE)


@torch.no_grad()
def test_tokens_are_copied_a_constant_number_of_times():
    """Read one by one, 1000 tokens move the memory ten times at most: it doubles."""
    shape = BackboneShape(num_layers=1, hidden_size=8, num_heads=1, **NO_DROPOUT)
    backbone = Backbone(shape, vocab_size=8, num_positions=3).eval()
    cache = KeyValueCache(num_layers=1, max_rows=1)
    capacities = []
    for n in range(1000):
        hi = torch.tensor([[n + 1]])
        one = Visibility(torch.zeros_like(hi), hi, torch.zeros_like(hi))
        backbone(torch.tensor([[1]]), torch.ones(1, 2, 1, dtype=torch.int64), one, cache=cache)
        capacities.append(cache.capacity)
    assert len(set(capacities)) <= 11 and capacities[-1] == 1024


def test_a_position_beyond_the_table_is_named():
    backbone = small_backbone()
    hi = torch.tensor([[1]])
    one = Visibility(torch.zeros_like(hi), hi, torch.zeros_like(hi))
    cache = KeyValueCache(num_layers=2, max_rows=1)
    with pytest.raises(ValueError, match="position 23 lies beyond the position table"):
        backbone(torch.tensor([[1]]), torch.tensor([[[23], [0]]]), one, cache=cache)
    assert cache.lengths == []

"""Rows of several corpora: shares follow the weights at every prefix, whoever reads and resumes."""

import json
import math
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.blend import (
    BlendedPosition,
    BlendedSequence,
    Mix,
    deal,
    first_place,
    place_of,
    place_state,
    whole_weights,
)
from data_pipeline.packing.loader import Batch, training_batches
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.packing.sequence import Position, RowSequence
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
PACKING = PackingConfig(source_tokens=32, row_tokens=48, window_tokens=3000)
FIRST_ID, IDS_EACH = 100, 1000  # corpus c holds the ids from 100 + 1000 c on
TRANSFORM = BlankTransform(BlankConfig(), SPECIAL, source_tokens=32, vocab_size=4000)


def _split(corpus: int, num_documents: int) -> MemorySplit:
    lengths = np.random.default_rng(corpus).integers(1, 28, num_documents)
    ids = FIRST_ID + IDS_EACH * corpus + np.arange(lengths.sum()) % IDS_EACH
    return MemorySplit.from_documents(np.split(ids, np.cumsum(lengths)[:-1]))


MIX = Mix((_split(0, 600), _split(1, 40), _split(2, 300)), (0.5, 0.2, 0.3))


def _batches(world_size=1, rank=0, micro_rows=5, accumulation=2, num_workers=0, start=None):
    return training_batches(
        MIX,
        TRANSFORM,
        PACKING,
        seed=3,
        rank=rank,
        world_size=world_size,
        micro_rows=micro_rows,
        accumulation=accumulation,
        start=start or first_place(MIX),
        num_workers=num_workers,
    )


def _corpus_of(block: torch.Tensor) -> list[int]:
    """Which corpus each row is from, by its ids."""
    rows = block[0].numpy()
    found = [{(i - FIRST_ID) // IDS_EACH for i in row[row >= FIRST_ID]} for row in rows]
    assert all(len(corpora) == 1 for corpora in found)
    return [corpora.pop() for corpora in found]


def test_rows_come_from_the_corpus_that_is_furthest_behind() -> None:
    assert "".join("ABC"[c] for c in deal([2, 1, 1], [0, 0, 0], 8)) == "ABCAABCA"
    assert "".join("ABC"[c] for c in deal([7, 3], [0, 0], 10)) == "ABAAABAABA"


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9), st.integers(1, 400))
def test_shares_follow_the_weights_at_every_prefix(weights: list[int], num_rows: int) -> None:
    corpora = deal(weights, [0] * len(weights), num_rows)
    taken, count = [0] * len(weights), len(weights)
    above = 1 - Fraction(1, count)
    below = sum((Fraction(1, j) for j in range(2, count + 1)), Fraction(0))
    for row, corpus in enumerate(corpora, 1):
        taken[corpus] += 1
        surplus = [t - Fraction(w, sum(weights)) * row for t, w in zip(taken, weights)]
        assert max(surplus) <= above and min(surplus) >= -below


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 90), st.integers(0, 90))
def test_a_deal_goes_on_where_it_stopped(weights: list[int], first: int, second: int) -> None:
    nothing = [0] * len(weights)
    whole = deal(weights, nothing, first + second)
    taken = np.bincount(whole[:first], minlength=len(weights)).tolist()
    assert deal(weights, taken, second).tolist() == whole[first:].tolist()


@pytest.mark.parametrize(
    ("weights", "whole"),
    [([0.7, 0.3], [7, 3]), ([2, 4], [1, 2]), ([1 / 3, 2 / 3], None), ([5], [1])],
)
def test_weights_are_exact_integers(weights: list[float], whole: list[int] | None) -> None:
    found = whole_weights(weights)
    assert whole is None or found == whole
    assert math.isclose(found[0] / sum(found), weights[0] / sum(weights))


@pytest.mark.parametrize("weight", [0, -1.0, math.inf, math.nan])
def test_a_weight_that_is_no_share_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="must be finite and above 0"):
        whole_weights([1.0, weight])


def test_every_corpus_gives_the_rows_it_has_alone() -> None:
    run = BlendedSequence(MIX, TRANSFORM, PACKING, seed=3).take(BlendedPosition.first(3), 400)
    blended = run.build(np.arange(400))
    for corpus, split in enumerate(MIX.splits):
        rows_R = np.flatnonzero(run.corpus_R == corpus)
        alone = RowSequence(split, TRANSFORM, PACKING, seed=3).take(Position(), len(rows_R))
        assert np.array_equal(blended.ids[rows_R], alone.build(np.arange(len(rows_R))).ids)
        assert run.next.places[corpus] == alone.next
        assert run.next.source_tokens[corpus] == alone.source_tokens(np.arange(len(rows_R)))
    # 40 documents end soon: their corpus is in a later epoch than the others.
    assert run.next.places[1].epoch > run.next.places[0].epoch


def test_rows_asked_for_in_part_are_those_of_the_whole_and_padding_follows_the_end() -> None:
    run = BlendedSequence(MIX, TRANSFORM, PACKING, seed=3).take(BlendedPosition.first(3), 20)
    whole, index = run.build(np.arange(20)), np.array([1, 2, 7, 12, 19, 20, 31])
    part = run.build(index)
    assert np.array_equal(part.ids[:5], whole.ids[index[:5]])
    assert (part.document[5:] == -1).all() and (part.document[:5, 0] == 0).all()
    assert run.source_tokens(index) == sum(run.source_tokens(index[i : i + 1]) for i in range(7))


@pytest.mark.parametrize(
    ("world_size", "micro_rows", "accumulation", "num_workers"),
    [(1, 10, 1, 0), (2, 5, 1, 0), (5, 1, 2, 0), (1, 2, 5, 2)],
)
def test_world_size_and_workers_change_no_row(
    world_size: int, micro_rows: int, accumulation: int, num_workers: int
) -> None:
    steps, rows = 6, 10
    expected = torch.cat([b.block for b in islice(_batches(), 2 * steps)], 1)
    found = torch.zeros_like(expected)
    for rank in range(world_size):
        made = _batches(world_size, rank, micro_rows, accumulation, num_workers)
        blocks = [b.block for b in islice(made, steps * accumulation)]
        found[:, rank::world_size] = torch.cat(blocks, 1)
    assert expected.shape[1] == steps * rows
    assert torch.equal(found, expected)


def test_realised_shares_of_rows_follow_the_weights() -> None:
    rows = [c for b in islice(_batches(), 30) for c in _corpus_of(b.block)]
    for r in range(1, len(rows) + 1):
        for corpus, weight in enumerate(MIX.weights):
            assert abs(rows[:r].count(corpus) - weight * r) < 1


def test_a_resume_goes_on_at_any_step() -> None:
    batches = list(islice(_batches(), 24))
    for at in (1, 7, 15):  # the last batch of a step
        place = place_of(json.loads(json.dumps(place_state(batches[at].position))))
        assert place == batches[at].position
        after = list(islice(_batches(start=place), 4))
        assert [b.position for b in after] == [b.position for b in batches[at + 1 : at + 5]]
        assert all(_same(a, b) for a, b in zip(after, batches[at + 1 : at + 5], strict=True))


def _same(one: Batch, other: Batch) -> bool:
    return torch.equal(one.block, other.block) and one.source_tokens == other.source_tokens


def test_positions_count_rows_and_tokens_of_each_corpus() -> None:
    batches = list(islice(_batches(), 20))
    place = batches[-1].position
    assert isinstance(place, BlendedPosition)
    rows = [c for b in batches for c in _corpus_of(b.block)]
    assert list(place.rows) == [rows.count(c) for c in range(3)]
    assert sum(place.source_tokens) == sum(b.source_tokens for b in batches)


@pytest.mark.parametrize(
    "start", [Position(), BlendedPosition.first(2), BlendedPosition.first(4)], ids=str
)
def test_a_place_in_other_corpora_is_refused(start: Position | BlendedPosition) -> None:
    with pytest.raises(ValueError, match=r"one in \d corpora, this run mixes 3"):
        _batches(start=start)


def test_a_place_in_several_is_none_in_one() -> None:
    with pytest.raises(ValueError, match="one in 3 corpora, this run reads one"):
        training_batches(
            MIX.splits[0],
            TRANSFORM,
            PACKING,
            seed=3,
            rank=0,
            world_size=1,
            micro_rows=1,
            accumulation=1,
            start=BlendedPosition.first(3),
            num_workers=0,
        )


@pytest.mark.parametrize(
    "state",
    [
        {"epoch": 0, "window": "x", "row": 1},
        {"shard": 1},
        {"rows": [1], "source_tokens": [2, 3], "places": []},
        {"rows": 1, "source_tokens": [], "places": []},
    ],
)
def test_what_is_no_place_is_refused(state: dict) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        place_of(state)

"""The global sequence runs on across windows and epochs, from any place."""

import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.packing.sequence import Position, RowSequence
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
PACKING = PackingConfig(source_tokens=16, row_tokens=24, window_tokens=2000)


def make_sequence(num_documents: int) -> RowSequence:
    lengths = np.random.default_rng(0).integers(1, 14, num_documents)
    split = MemorySplit.from_documents([np.full(n, 50) for n in lengths])
    transform = BlankTransform(BlankConfig(), SPECIAL, source_tokens=16, vocab_size=60)
    return RowSequence(split, transform, PACKING, seed=1)


SEQUENCE = make_sequence(700)  # three windows of one block each
EPOCH = [
    Position(epoch=0, window=window, row=row)
    for window in range(3)
    for row in range(SEQUENCE.plan(0, window).num_rows)
]


def test_this_epoch_has_three_windows():
    assert SEQUENCE.num_windows == 3 and len(EPOCH) > 150


@given(st.integers(0, 150), st.integers(1, 100))
def test_a_run_ends_where_the_next_begins(place, num_rows):
    run = SEQUENCE.take(EPOCH[place], num_rows)
    assert run.num_rows == num_rows
    if place + num_rows < len(EPOCH):
        assert run.next == EPOCH[place + num_rows]
    else:
        assert run.next.epoch == 1


def test_one_long_run_holds_the_rows_of_many_short_ones():
    whole = SEQUENCE.take(Position(), 200)
    expected = whole.build(np.arange(200)).ids
    position, rows = Position(), []
    for num_rows in (1, 59, 80, 60):
        run = SEQUENCE.take(position, num_rows)
        rows.append(run.build(np.arange(num_rows)).ids)
        position = run.next
    assert np.array_equal(np.concatenate(rows), expected)
    assert position == whole.next


def test_a_run_may_be_longer_than_many_epochs_of_a_tiny_corpus():
    sequence = make_sequence(1)
    run = sequence.take(Position(), 7)
    assert run.next == Position(epoch=7)
    assert run.build(np.arange(7)).document.max(1).tolist() == [0] * 7


def test_chosen_rows_of_a_run_are_those_of_the_whole_and_padding_follows():
    run = SEQUENCE.take(Position(), 90)
    whole, chosen = run.build(np.arange(90)), run.build(np.array([1, 60, 89, 90, 200]))
    assert np.array_equal(chosen.ids[:3], whole.ids[[1, 60, 89]])
    assert (chosen.document[3:] == -1).all()
    parts = [run.source_tokens(np.array([j])) for j in (1, 60, 89, 90)]
    assert parts[3] == 0 and run.source_tokens(np.array([1, 60, 89, 90])) == sum(parts)


def test_an_epoch_taken_alone_ends():
    run = SEQUENCE.take_in_epoch(EPOCH[-5], 100)
    assert (run.num_rows, run.next) == (5, Position(epoch=1))


@pytest.mark.parametrize(
    "position",
    [Position(window=3), Position(row=10_000), Position(row=-1), Position(epoch=-1)],
)
def test_a_place_that_does_not_exist_is_refused(position):
    with pytest.raises(ValueError, match="is no place in this data: an epoch has 3 windows"):
        SEQUENCE.check(position)


@dataclass(frozen=True)
class SyntheticSplit:
    """A billion documents that are computed and not stored."""

    num_documents: int = 10**9
    num_tokens: int = 10**9 * 9
    fingerprint: str = "synthetic"
    encoder: None = None

    def lengths(self, document_N):
        return 6 + document_N % 7

    def prompt_lengths(self, document_N):
        return np.zeros_like(document_N)

    def sentence_ends(self, document_N):
        return np.zeros(0, np.int64), np.zeros(len(document_N) + 1, np.int64)

    def tokens(self, document_N, start_N, stop_N):
        return np.repeat((20 + document_N % 10).astype(np.int32), stop_N - start_N)


def test_a_billion_documents_start_and_resume_at_once():
    started_at = time.process_time()
    sequence = RowSequence(SyntheticSplit(), SEQUENCE.transform, PackingConfig(), seed=0)
    for position in (Position(), Position(epoch=5, window=sequence.num_windows - 1, row=17)):
        sequence.check(position)
        assert sequence.take(position, 8).build(np.arange(8)).document.max() > 0
    assert time.process_time() - started_at < 2  # two windows of 3 million tokens, 1 s each


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match="holds 0 documents, at least 1"):
        make_sequence(0)

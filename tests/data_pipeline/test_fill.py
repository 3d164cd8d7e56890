"""Cut to fill, small enough to see: which rows go, where their text is cut, what is left."""

import numpy as np
import pytest

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.cut import Stretches, cut_documents, read_documents
from data_pipeline.packing.fill import cut_to_fill, pack_best_fit, rows_to_take_apart, smallest_room
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SUFFIX = BlankTransform(  # its rows are one token longer than their source
    BlankConfig(token_prob=0, document_prob=1, infill_prob=0),
    SpecialIds(**{name: number for number, name in enumerate(SPECIALS)}),
    source_tokens=200,
    vocab_size=100,
)


def draw(stretches: Stretches, max_row_tokens_N: np.ndarray):
    pieces = stretches.pieces()
    return SUFFIX.draw(pieces, pieces.start_N.astype(np.uint64), max_row_tokens_N)


def layouts(lengths: list[int], ends: list[list[int]], row_tokens: int):
    split = MemorySplit.from_documents([np.zeros(n, int) for n in lengths], sentence_ends=ends)
    documents = read_documents(split, np.arange(len(lengths)))
    stretches = cut_documents(documents, np.full(len(lengths), row_tokens))
    before = pack_best_fit(stretches, draw, row_tokens)
    return before, cut_to_fill(before, draw, row_tokens)


def rows_of(layout) -> list[list[tuple[int, int, int]]]:
    """(document, start, stop) of all that lies in each row."""
    pieces = layout.stretches.pieces()
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(layout.num_rows)]
    for row, *piece in zip(layout.row_N, pieces.document_N, pieces.start_N, pieces.stop_N):
        if row >= 0:
            rows[row].append(tuple(int(x) for x in piece))
    return rows


def test_the_emptiest_row_goes_into_the_rooms_of_the_others_at_its_sentence_ends():
    # rows of 100: two of 60 + 3 leave 37 each, and 50 + 3 tokens are to be shared out
    before, after = layouts([60, 60, 50], [[60], [60], [20, 30, 50]], row_tokens=100)
    assert rows_of(before) == [[(0, 0, 60)], [(1, 0, 60)], [(2, 0, 50)]]
    assert rows_of(after) == [[(0, 0, 60), (2, 0, 30)], [(1, 0, 60), (2, 30, 50)]]


def test_text_without_a_sentence_end_is_not_cut():
    before, after = layouts([60, 60, 50], [[60], [60], [50]], row_tokens=100)
    assert sorted(rows_of(after)) == sorted(rows_of(before))


def test_what_finds_no_room_gets_a_row_of_its_own():
    # both documents of 50 are taken apart, and only the second has a sentence end inside
    lengths, ends = [60, 60, 60, 60, 50, 50], [[60]] * 4 + [[50], [26, 50]]
    before, after = layouts(lengths, ends, row_tokens=100)
    assert (before.num_rows, after.num_rows) == (6, 5)
    assert sorted(rows_of(after)) == [
        [(0, 0, 60)],
        [(1, 0, 60), (5, 0, 26)],
        [(2, 0, 60)],
        [(3, 0, 60), (5, 26, 50)],
        [(4, 0, 50)],
    ]


def test_where_no_row_is_saved_no_document_is_cut():
    # two rooms of 34: the first sentence fits and the second, CLS + 35 + eos + 1, does not
    before, after = layouts([60, 60, 55], [[60], [60], [20, 55]], row_tokens=97)
    assert rows_of(after) == rows_of(before)


def test_no_row_is_taken_apart_for_rooms_that_are_too_small():
    assert (smallest_room(1152), smallest_room(100)) == (32, 12)
    filled = np.array([1000 - 31] * 50 + [60])
    assert not rows_to_take_apart(filled, 1000).any()
    filled = np.array([1000 - 32] * 2 + [60])
    assert rows_to_take_apart(filled, 1000).tolist() == [False, False, True]


@pytest.mark.parametrize("seed", range(5))
def test_no_row_overflows_and_no_text_is_lost(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(50, 100, 200).tolist()
    ends = [np.flatnonzero(rng.random(n) < 0.15) + 1 for n in lengths]
    before, after = layouts(lengths, ends, row_tokens=130)
    live = after.row_N >= 0
    filled = np.bincount(after.row_N[live], after.plan.row_lengths_N[live])
    assert len(filled) == after.num_rows < before.num_rows
    assert filled.min() > 0 and filled.max() <= 130
    pieces = sorted(piece for row in rows_of(after) for piece in row)
    for document, length in enumerate(lengths):
        own = [piece[1:] for piece in pieces if piece[0] == document]
        assert [start for start, _ in own] == [0, *(stop for _, stop in own[:-1])]
        assert own[-1][1] == length

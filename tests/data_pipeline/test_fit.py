"""Best-fit decreasing puts every row somewhere, and as tightly as its definition says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.packing.fit import best_fit, order_by_row


def textbook_num_rows(lengths: list[int], row_tokens: int) -> int:
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - length)
        else:
            rooms.append(row_tokens - length)
    return len(rooms)


def test_the_example_of_the_docstring():
    assert best_fit(np.array([3, 5, 4, 2]), row_tokens=7).tolist() == [1, 0, 1, 0]


def test_the_tightest_room_is_taken_and_not_the_first():
    #  9 leaves 3, 8 leaves 4, 4 fits only behind 8, 3 fits only behind 9
    assert best_fit(np.array([9, 8, 4, 3]), row_tokens=12).tolist() == [0, 1, 1, 0]


def test_no_rows_at_all():
    assert best_fit(np.zeros(0, np.int64), row_tokens=7).tolist() == []


lists = st.lists(st.integers(1, 40), max_size=200)


@given(lists, st.integers(40, 100))
def test_as_many_rows_as_the_textbook_needs(lengths, row_tokens):
    row_N = best_fit(np.array(lengths, np.int64), row_tokens)
    filled = np.bincount(row_N, lengths)
    assert (filled > 0).all() and (filled <= row_tokens).all()
    assert len(filled) == textbook_num_rows(lengths, row_tokens)


def test_equal_rows_share_packed_rows_evenly():
    row_N = best_fit(np.full(1000, 7), row_tokens=50)
    assert np.bincount(row_N).tolist() == [7] * 142 + [6]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50), st.sampled_from([10, 70_000]))
def test_contents_of_a_row_come_together_in_their_order(rows, num_rows):
    order = order_by_row(np.array(rows), num_rows)
    assert order.tolist() == sorted(range(len(rows)), key=lambda i: (rows[i], i))

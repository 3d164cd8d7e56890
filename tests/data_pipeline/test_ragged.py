"""Groups laid end to end: each function against its picture."""

import numpy as np

from data_pipeline import ragged

COUNTS = np.array([2, 0, 3, 0])


def test_offsets_begin_each_group_and_end_with_the_total():
    assert ragged.offsets(COUNTS).tolist() == [0, 2, 2, 5, 5]
    assert ragged.offsets(np.zeros(0, np.int64)).tolist() == [0]


def test_spread_counts_on_from_each_start():
    starts = np.array([10, 99, 30, 99], np.int32)
    assert ragged.spread(starts, COUNTS).tolist() == [10, 11, 30, 31, 32]
    assert ragged.spread(starts[:0], COUNTS[:0]).tolist() == []


def test_within_counts_from_zero_in_each_group():
    assert ragged.within(COUNTS).tolist() == [0, 1, 0, 1, 2]


def test_sums_are_zero_for_empty_groups():
    values = np.array([1, 2, 4, 8, 16], np.int32)
    assert ragged.sums(values, ragged.offsets(COUNTS)).tolist() == [3, 0, 28, 0]
    assert ragged.sums_before(values, ragged.offsets(COUNTS)).tolist() == [0, 1, 0, 4, 12]


def test_order_is_by_group_then_rank_then_place():
    group = np.array([1, 0, 1, 0, 1])
    rank = np.array([5, 2**32 - 1, 3, 0, 5], np.uint64)
    assert ragged.order_by(group, rank).tolist() == [3, 1, 2, 0, 4]


def test_equal_ranks_keep_their_place_however_many_there_are():
    group = np.repeat(np.arange(50), 40)[::-1]
    rank = np.zeros(2000, np.int64)
    expected = np.arange(2000).reshape(50, 40)[::-1].ravel()
    assert ragged.order_by(group, rank).tolist() == expected.tolist()

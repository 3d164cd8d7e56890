"""Packed rows as pictures: what lies where, and what each token may see."""

import numpy as np

from data_pipeline.packing.pack import ARRAYS, concatenate, pack_rows, padding_rows
from data_pipeline.rows import Rows


def rows_of(lengths: list[int], seps: list[int]) -> Rows:
    total = sum(lengths)
    flat = np.arange(1, total + 1, dtype=np.int32)
    return Rows(
        lengths_N=np.array(lengths),
        sep_N=np.array(seps),
        ids=flat,
        position=flat + 100,
        block_position=flat + 200,
        targets=flat + 300,
        weights=(flat % 2).astype(np.float32),
        kind=(flat % 5).astype(np.uint8),
    )


PACKED = pack_rows(rows_of([3, 2, 4], [2, 1, 4]), np.array([2, 0, 1]), row_tokens=6)


def test_rows_lie_end_to_end_and_padding_behind_them():
    assert PACKED.ids.tolist() == [[1, 2, 3, 4, 5, 0], [0] * 6, [6, 7, 8, 9, 0, 0]]
    assert PACKED.targets.tolist() == [
        [301, 302, 303, 304, 305, 0],
        [0] * 6,
        [306, 307, 308, 309, 0, 0],
    ]
    assert PACKED.weights.tolist() == [[1, 0, 1, 0, 1, 0], [0] * 6, [0, 1, 0, 1, 0, 0]]
    assert PACKED.kind.tolist() == [[1, 2, 3, 4, 0, 0], [0] * 6, [1, 2, 3, 4, 0, 0]]


def test_documents_are_numbered_inside_each_row_and_padding_is_minus_one():
    assert PACKED.document.tolist() == [[0, 0, 0, 1, 1, -1], [-1] * 6, [0, 0, 0, 0, -1, -1]]


def test_part_a_sees_part_a_and_part_b_what_is_behind_it():
    #             sep 2 of 3   sep 1 of 2               sep 4 of 4: all see all
    assert PACKED.lo.tolist() == [[0, 0, 0, 3, 3, 0], [0] * 6, [0, 0, 0, 0, 0, 0]]
    assert PACKED.hi.tolist() == [[2, 2, 3, 4, 5, 0], [0] * 6, [4, 4, 4, 4, 0, 0]]


def test_intervals_rise_with_the_position_and_stay_inside_their_document():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 60)
    seps = rng.integers(0, lengths + 1)
    packed = pack_rows(rows_of(lengths.tolist(), seps.tolist()), np.full(12, 5), row_tokens=40)
    for lo, hi, document in zip(packed.lo, packed.hi, packed.document):
        used = document >= 0
        assert (np.diff(lo[used]) >= 0).all() and (np.diff(hi[used]) >= 0).all()
        for i in np.flatnonzero(used):
            seen = document[lo[i] : hi[i]]
            assert i in range(lo[i], hi[i]) and (seen == document[i]).all()


def test_dtypes_are_those_of_the_contract():
    dtypes = {name: str(getattr(PACKED, name).dtype) for name in ARRAYS}
    int32 = ("ids", "position", "block_position", "targets", "document", "lo", "hi")
    assert dtypes == {**dict.fromkeys(int32, "int32"), "weights": "float32", "kind": "uint8"}


def test_padding_rows_hold_nothing_and_can_be_joined():
    joined = concatenate([PACKED, padding_rows(2, 6)])
    assert joined.ids.shape == (5, 6)
    assert (joined.document[3:] == -1).all() and not joined.hi[3:].any()
    assert joined.weights.dtype == np.float32

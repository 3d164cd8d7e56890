"""Visibility says the same as the rule it abbreviates, and keeps the properties kernels rely on."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.visibility import Visibility, single_documents

documents_of_a_row = st.lists(
    st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=4
)
packed_rows = st.lists(documents_of_a_row, min_size=1, max_size=3)


def packed_visibility(rows: list[list[tuple[int, int]]], num_padding: int = 2) -> Visibility:
    """Rows of (length, sep) documents, padded to one length."""
    width = max(sum(n for n, _ in row) for row in rows) + num_padding
    lo, hi, document = (torch.zeros(len(rows), width, dtype=torch.int32) for _ in range(3))
    document -= 1
    for b, row in enumerate(rows):
        start = 0
        for number, (length, sep) in enumerate(row):
            for i in range(start, start + length):
                lo[b, i], hi[b, i], document[b, i] = start, max(i + 1, start + sep), number
            start += length
    return Visibility(lo, hi, document)


@settings(deadline=None)
@given(packed_rows)
def test_the_mask_is_same_document_and_past_or_bidirectional_part(rows):
    visibility = packed_visibility(rows)
    mask = visibility.dense_mask()
    for b, row in enumerate(rows):
        owner = [(d, k, sep) for d, (length, sep) in enumerate(row) for k in range(length)]
        for i in range(mask.shape[-1]):
            for j in range(mask.shape[-1]):
                inside = max(i, j) < len(owner)
                expected = (
                    inside and owner[i][0] == owner[j][0] and (j <= i or owner[j][1] < owner[j][2])
                )
                assert bool(mask[b, 0, i, j]) == expected, (rows, b, i, j)


@settings(deadline=None)
@given(packed_rows)
def test_both_ends_rise_with_the_query(rows):
    visibility = packed_visibility(rows)
    for b, row in enumerate(rows):
        used = sum(n for n, _ in row)
        assert (visibility.lo[b, :used].diff() >= 0).all()
        assert (visibility.hi[b, :used].diff() >= 0).all()


@settings(deadline=None)
@given(packed_rows)
def test_the_queries_that_see_a_key_are_one_interval(rows):
    columns = packed_visibility(rows).dense_mask()[:, 0].transpose(1, 2).int()
    rises = columns.diff(dim=-1).clamp(min=0).sum(-1) + columns[..., 0]
    assert (rises <= 1).all()


@settings(deadline=None)
@given(packed_rows)
def test_pairs_are_counted_without_the_mask(rows):
    visibility = packed_visibility(rows)
    assert visibility.num_visible_pairs() == visibility.dense_mask().sum()


def test_the_picture_of_the_docstring():
    picture = ["xx....", "xx....", "xxx...", "...x..", "...xx.", "......"]
    expected = torch.tensor([[mark == "x" for mark in line] for line in picture])
    mask = packed_visibility([[(3, 2), (2, 0)]], num_padding=1).dense_mask()
    assert torch.equal(mask[0, 0], expected)


def test_masks_are_built_once():
    visibility = packed_visibility([[(3, 2)]])
    assert visibility.dense_mask() is visibility.dense_mask()
    assert visibility.additive_mask(torch.float32) is visibility.additive_mask(torch.float32)


def test_the_additive_mask_hides_what_the_dense_mask_hides_but_on_padding_rows():
    visibility = packed_visibility([[(3, 2), (2, 0)], [(4, 1)]])
    hidden = visibility.additive_mask(torch.float64) == float("-inf")
    on_documents = ~visibility.padding()
    assert torch.equal(~hidden[:, 0][on_documents], visibility.dense_mask()[:, 0][on_documents])
    assert not hidden[:, 0][~on_documents].any()


def test_padding_neither_sees_nor_is_seen():
    visibility = packed_visibility([[(3, 2)], [(5, 0)]])
    mask, padding = visibility.dense_mask()[:, 0], visibility.padding()
    assert padding.any()
    assert not mask[padding].any()
    assert not mask.transpose(1, 2)[padding].any()


def test_single_documents_equal_packed_rows_of_one_document():
    ours = single_documents(torch.tensor([3, 5, 0]), torch.tensor([2, 0, 0]), num_tokens=7)
    expected = packed_visibility([[(3, 2)], [(5, 0)], []])
    assert torch.equal(ours.lo, expected.lo)
    assert torch.equal(ours.hi, expected.hi)
    assert torch.equal(ours.document, expected.document)


def shifted(visibility: Visibility, by: int) -> Visibility:
    """The same with `by` positions of padding before each row."""
    pad = (by, 0)
    inside = ~visibility.padding()
    lo, hi = (torch.where(inside, t + by, 0) for t in (visibility.lo, visibility.hi))
    return Visibility(
        torch.nn.functional.pad(lo, pad),
        torch.nn.functional.pad(hi, pad),
        torch.nn.functional.pad(visibility.document, pad, value=-1),
    )


@settings(deadline=None)
@given(packed_rows, st.integers(0, 3))
def test_key_intervals_are_the_transpose(rows, padding_before):
    visibility = shifted(packed_visibility(rows), padding_before)
    first, stop = visibility.key_intervals()
    query = torch.arange(visibility.lo.shape[1])
    seen = (query >= first[..., None]) & (query < stop[..., None])  # (B, keys, queries)
    assert torch.equal(seen, visibility.dense_mask()[:, 0].transpose(1, 2))
    unseen = first >= stop
    assert (first[unseen] == visibility.lo.shape[1]).all()
    assert (stop[unseen] == 0).all()


@settings(deadline=None)
@given(packed_rows, st.integers(0, 3))
def test_query_intervals_say_the_same_with_padding_out_of_the_way(rows, padding_before):
    visibility = shifted(packed_visibility(rows), padding_before)
    lo, hi = visibility.query_intervals()
    key = torch.arange(lo.shape[1])
    seen = (key >= lo[..., None]) & (key < hi[..., None])
    assert torch.equal(seen, visibility.dense_mask()[:, 0])
    padding = visibility.padding()
    assert (lo[padding] == lo.shape[1]).all()
    assert (hi[padding] == 0).all()


@settings(deadline=None)
@given(packed_rows, st.integers(0, 3))
def test_document_bounds_hold_each_document_and_none_that_is_absent(rows, padding_before):
    visibility = shifted(packed_visibility(rows), padding_before)
    first, stop = visibility.document_bounds(5)
    for b in range(len(rows)):
        for number in range(5):
            mine = (visibility.document[b] == number).nonzero()[:, 0]
            span = visibility.document[b, first[b, number] : stop[b, number]]
            assert len(mine) == (span == number).sum()
            assert set(span.tolist()) <= {number, -1}


def test_slots_are_seen_by_the_queries_of_their_document():
    visibility = packed_visibility([[(3, 2), (2, 0)]], num_padding=1)
    picture = ["xx....", "xx....", "xx....", "..xx..", "..xx..", "......"]
    expected = torch.tensor([[mark == "x" for mark in line] for line in picture])
    assert torch.equal(visibility.slot_mask(3, 2)[0, 0], expected)

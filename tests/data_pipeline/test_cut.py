"""Long documents are cut at sentence ends, and no stored token is lost or doubled."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.cut import Documents, Stretches, cut_documents, read_documents


def cut(length: int, ends: list[int], limit: int, prompt: int = 0) -> list[tuple[int, int]]:
    split = MemorySplit.from_documents(
        [np.arange(length)], prompt_lengths=[prompt], sentence_ends=[ends]
    )
    pieces = cut_documents(read_documents(split, np.array([0])), np.array([limit])).pieces()
    return list(zip(pieces.start_N.tolist(), pieces.stop_N.tolist()))


def test_a_document_that_fits_with_cls_and_eos_stays_whole():
    assert cut(length=8, ends=[3, 8], limit=10) == [(0, 8)]


def test_one_token_more_is_cut_at_the_last_sentence_end_that_fits():
    assert cut(length=9, ends=[4, 6, 9], limit=10) == [(0, 6), (6, 9)]


def test_a_piece_that_does_not_end_its_document_may_use_the_place_of_eos():
    assert cut(length=12, ends=[9, 12], limit=10) == [(0, 9), (9, 12)]


def test_a_sentence_end_that_would_leave_less_than_half_is_passed_over():
    # CLS + 3 tokens are less than half of 10: the cut is at the limit, CLS + 9 tokens
    assert cut(length=16, ends=[3, 16], limit=10) == [(0, 9), (9, 16)]
    # CLS + 4 tokens are half
    assert cut(length=12, ends=[4, 12], limit=10) == [(0, 4), (4, 12)]


def test_text_without_sentence_ends_is_cut_at_the_limit():
    assert cut(length=20, ends=[], limit=10) == [(0, 9), (9, 18), (18, 20)]


def test_eos_is_never_left_alone():
    # 9 tokens fill CLS + 9, and eos no longer fits: a token goes with it
    assert cut(length=9, ends=[9], limit=10) == [(0, 8), (8, 9)]


def test_only_the_last_piece_ends_its_document():
    split = MemorySplit.from_documents([np.arange(20), np.arange(3), []])
    documents = read_documents(split, np.array([1, 0, 2]))
    pieces = cut_documents(documents, np.full(3, 10)).pieces()
    assert pieces.document_N.tolist() == [1, 0, 0, 0, 2]
    assert pieces.ends_document_N.tolist() == [True, False, False, True, True]
    assert pieces.source_lengths_N.tolist() == [5, 10, 10, 4, 2]


def test_a_prompt_stays_in_front_and_may_fill_a_whole_piece():
    split = MemorySplit.from_documents(
        [np.arange(20), np.arange(5)], prompt_lengths=[11, 2], sentence_ends=[[], []]
    )
    documents = read_documents(split, np.array([0, 1]))
    pieces = cut_documents(documents, np.full(2, 10)).pieces()
    assert pieces.start_N.tolist() == [0, 9, 18, 0]
    assert pieces.prompt_N.tolist() == [9, 2, 0, 2]


def test_sentence_ends_count_from_the_front_of_their_piece():
    split = MemorySplit.from_documents(
        [np.arange(4), np.arange(12)], sentence_ends=[[2, 4], [3, 7, 9, 12]]
    )
    documents = read_documents(split, np.array([1, 0]))
    pieces = cut_documents(documents, np.full(2, 10)).pieces()
    assert list(zip(pieces.start_N, pieces.stop_N)) == [(0, 9), (9, 12), (0, 4)]
    assert pieces.sentence_ends.tolist() == [3, 7, 9, 3, 2, 4]
    assert pieces.sentence_offsets_N1.tolist() == [0, 3, 4, 6]


def test_stretches_in_any_order_get_the_sentence_ends_they_hold():
    documents = Documents(
        number_N=np.array([5]),
        prompt_N=np.array([0]),
        base_N1=np.array([0, 10]),
        sentence_ends=np.array([2, 5, 9, 10]),
    )
    stretches = Stretches(documents, np.zeros(2, int), np.array([5, 0]), np.array([10, 5]))
    pieces = stretches.pieces()
    assert pieces.sentence_ends.tolist() == [4, 5, 2, 5]
    assert pieces.sentence_offsets_N1.tolist() == [0, 2, 4]


@st.composite
def corpora(draw):
    lengths = draw(st.lists(st.integers(0, 80), min_size=1, max_size=6))
    ends = [
        sorted(draw(st.sets(st.integers(1, max(n, 1)), max_size=n))) if n else [] for n in lengths
    ]
    return MemorySplit.from_documents([np.arange(n) for n in lengths], sentence_ends=ends)


@given(corpora(), st.data())
def test_pieces_cover_every_document_once_and_keep_to_the_limit(split, data):
    numbers = np.array(data.draw(st.permutations(range(split.num_documents))))
    limits = st.lists(st.integers(3, 30), min_size=len(numbers), max_size=len(numbers))
    limits_N = np.array(data.draw(limits))
    pieces = cut_documents(read_documents(split, numbers), limits_N).pieces()
    assert (pieces.source_lengths_N <= limits_N[np.argsort(numbers)[pieces.document_N]]).all()
    for number in numbers:
        own = pieces.document_N == number
        stops = pieces.stop_N[own].tolist()
        assert pieces.start_N[own].tolist() == [0, *stops[:-1]]
        assert stops[-1] == split.lengths(np.array([number]))[0]
        assert pieces.ends_document_N[own].tolist() == [False] * (len(stops) - 1) + [True]

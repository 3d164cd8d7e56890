"""The n-gram baselines against counting by hand, in Python, from the formulas."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.ngram import count_bigram, count_unigram, with_end

VOCAB = 7
documents_of_tokens = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12), min_size=1, max_size=6
).filter(lambda documents: any(len(d) > 1 for d in documents))


def laid_out(documents: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = [len(d) for d in documents]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.array([t for d in documents for t in d], np.int32), starts


def discount(counts: list[int]) -> float:
    once, twice = counts.count(1), counts.count(2)
    return once / (once + 2 * twice) if once and twice else 0.5


def kneser_ney(documents: list[list[int]], left: int, token: int) -> float:
    """p(token | left) by dictionaries and loops."""
    pairs = Counter(p for d in documents for p in pairwise(d))
    before = Counter(w for _, w in pairs)  # distinct left neighbours of w
    d1 = discount(list(before.values()))
    lower = max(before[token] - d1, 0) / len(pairs) + d1 * len(before) / len(pairs) / VOCAB
    total = sum(n for (v, _), n in pairs.items() if v == left)
    if not total:
        return lower
    d = discount(list(pairs.values()))
    followers = sum(v == left for v, _ in pairs)
    return max(pairs[left, token] - d, 0) / total + d * followers / total * lower


def test_unigram_is_add_one() -> None:
    unigram = count_unigram(np.array([0, 0, 1], np.int32), vocab_size=3)
    assert np.exp(-unigram.nats(np.array([0, 1, 2]))) == pytest.approx([3 / 6, 2 / 6, 1 / 6])


@settings(max_examples=60, deadline=None)
@given(documents_of_tokens)
def test_bigram_is_kneser_ney_as_counted_by_hand(documents: list[list[int]]) -> None:
    tokens, starts = laid_out(documents)
    bigram = count_bigram(tokens, starts, VOCAB)
    left, token = (a.ravel() for a in np.meshgrid(range(VOCAB), range(VOCAB), indexing="ij"))
    expected = [kneser_ney(documents, v, w) for v, w in zip(left, token, strict=True)]
    assert np.exp(-bigram.nats(left, token)) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(documents_of_tokens)
def test_probabilities_after_any_left_neighbour_sum_to_one(documents: list[list[int]]) -> None:
    tokens, starts = laid_out(documents)
    bigram = count_bigram(tokens, starts, VOCAB)
    for left in range(-1, VOCAB):
        nats = bigram.nats(np.full(VOCAB, left), np.arange(VOCAB))
        assert math.fsum(np.exp(-nats)) == pytest.approx(1, abs=1e-12)


def test_an_unknown_left_neighbour_leaves_the_lower_order() -> None:
    bigram = count_bigram(np.array([0, 1, 0, 1, 2, 1], np.int32), np.array([0]), 3)
    assert np.exp(-bigram.nats(np.full(3, -1), np.arange(3))) == pytest.approx(bigram.lower_V)


def test_no_pair_reaches_over_a_document() -> None:
    bigram = count_bigram(np.array([0, 1, 2, 0, 1], np.int32), np.array([0, 2]), 3)
    assert bigram.pairs.tolist() == [0 * 3 + 1, 2 * 3 + 0]


def test_the_end_rate_is_shared_by_tokens_and_end() -> None:
    nats = with_end(np.log([2.0, 2.0]), np.array([False, True]), end_rate=0.25)
    assert np.exp(-nats) == pytest.approx([0.75 / 2, 0.25])


def test_documents_without_a_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="two tokens"):
        count_bigram(np.array([1, 2], np.int32), np.array([0, 1]), 3)

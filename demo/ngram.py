"""Two baselines counted on the training tokens: what a model must beat to know more than counts.

    unigram, add-one                 p(w) = (n(w) + 1) / (n + V)
    bigram, interpolated Kneser-Ney  p(w | v) = max(n(vw) - D, 0) / n(v.) + D N1+(v.) / n(v.) p1(w)
        lower order  p1(w) = max(N1+(.w) - D1, 0) / N1+(..) + D1 N1+(.) / N1+(..) / V

n counts occurrences and N1+ distinct neighbours; D = n1 / (n1 + 2 n2) from the pairs seen once and
twice, D1 likewise from the neighbour counts. The bigram sees the left neighbour of every blank
token, as GLM does; neither sees the right side. Kneser and Ney 1995; Chen and Goodman 1999.

A blank also has to say where it ends. Both baselines are given the rate of end tokens: the end has
probability r, and every other token (1 - r) times the above.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Unigram:
    """Add-one counts over V tokens."""

    nats_V: NDArray[np.float64]

    def nats(self, targets_N: NDArray[np.int64]) -> NDArray[np.float64]:
        """-log p of every target."""
        return self.nats_V[targets_N]


@dataclass(frozen=True)
class Bigram:
    """Interpolated Kneser-Ney over V tokens."""

    pairs: NDArray[np.int64]  # left * V + right of every pair seen, rising
    discounted: NDArray[np.float64]  # max(n(vw) - D, 0) / n(v.) of that pair
    rest_V: NDArray[
        np.float64
    ]  # D N1+(v.) / n(v.) of every left neighbour; 1 where it was never seen
    lower_V: NDArray[np.float64]  # p1(w)

    def nats(self, left_N: NDArray[np.int64], targets_N: NDArray[np.int64]) -> NDArray[np.float64]:
        """-log p of every target after its left neighbour; -1: unknown, the lower order alone."""
        known = left_N >= 0
        rest_N = np.where(known, self.rest_V[np.maximum(left_N, 0)], 1.0)
        wanted = left_N * len(self.lower_V) + targets_N
        at = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        seen = known & (self.pairs[at] == wanted)
        return -np.log(np.where(seen, self.discounted[at], 0.0) + rest_N * self.lower_V[targets_N])


def count_unigram(tokens: NDArray[np.int32], vocab_size: int) -> Unigram:
    """The unigram of a stream of tokens."""
    counts_V = np.bincount(tokens, minlength=vocab_size)
    return Unigram(nats_V=np.log(len(tokens) + vocab_size) - np.log(counts_V + 1.0))


def count_bigram(
    tokens: NDArray[np.int32], document_starts: NDArray[np.int64], vocab_size: int
) -> Bigram:
    """The bigram of documents laid end to end; no pair reaches over a document's start.

    Raises ValueError where the documents hold no pair at all.
    """
    joined = np.ones(len(tokens), bool)
    joined[document_starts] = False
    right = tokens[joined].astype(np.int64)
    left = tokens[np.flatnonzero(joined) - 1].astype(np.int64)
    if not len(right):
        raise ValueError("a bigram needs a document of at least two tokens, got none.")
    pairs, counts = np.unique(left * vocab_size + right, return_counts=True)
    lefts, rights = np.divmod(pairs, vocab_size)
    total_V = np.bincount(lefts, weights=counts, minlength=vocab_size)
    followers_V = np.bincount(lefts, minlength=vocab_size)
    discount = discount_of(counts)
    seen_V = total_V > 0
    rest_V = np.ones(vocab_size)
    rest_V[seen_V] = discount * followers_V[seen_V] / total_V[seen_V]
    return Bigram(
        pairs=pairs,
        discounted=np.maximum(counts - discount, 0) / total_V[lefts],
        rest_V=rest_V,
        lower_V=continuation(np.bincount(rights, minlength=vocab_size)),
    )


def continuation(predecessors_V: NDArray[np.int64]) -> NDArray[np.float64]:
    """p1 of every token: its share of distinct left neighbours, discounted and mixed with 1 / V."""
    discount = discount_of(predecessors_V[predecessors_V > 0])
    total = predecessors_V.sum()
    spared = discount * np.count_nonzero(predecessors_V) / total
    return np.maximum(predecessors_V - discount, 0) / total + spared / len(predecessors_V)


def discount_of(counts: NDArray[np.int64]) -> float:
    """n1 / (n1 + 2 n2), the discount that leaving one out asks for; 0.5 where that is undefined."""
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    return once / (once + 2 * twice) if once and twice else 0.5


def with_end(
    token_nats_N: NDArray[np.float64], is_end_N: NDArray[np.bool_], end_rate: float
) -> NDArray[np.float64]:
    """-log p when a blank ends with probability `end_rate` and the tokens share what is left."""
    return np.where(is_end_N, -np.log(end_rate), token_nats_N - np.log1p(-end_rate))

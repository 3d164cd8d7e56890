"""Groups of different size laid end to end in one flat array, worked on without a Python loop.

counts    2 0 3
offsets   0 2 2 5            group i owns flat[offsets[i] : offsets[i + 1]]
within    0 1 0 1 2          place of each entry inside its group
spread(starts 10 20 30)      10 11 30 31 32
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def offsets(counts_N: ArrayLike) -> NDArray[np.int64]:
    """Where each group begins, and behind the last one the total: (N + 1,)."""
    counts_N = np.asarray(counts_N, np.int64)
    ends = np.zeros(len(counts_N) + 1, np.int64)
    np.cumsum(counts_N, out=ends[1:])
    return ends


def spread(starts_N: NDArray[np.integer], counts_N: NDArray[np.integer]) -> NDArray[np.int64]:
    """start, start + 1, ... of each group, end to end: (sum of counts,)."""
    begins = offsets(counts_N)
    return np.repeat(starts_N - begins[:-1], counts_N) + np.arange(begins[-1])


def within(counts_N: NDArray[np.integer]) -> NDArray[np.int64]:
    """Place of each entry inside its group, counted from 0: (sum of counts,)."""
    return spread(np.zeros(len(counts_N), np.int64), counts_N)


def sums(values: NDArray[np.integer], offsets_N1: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum of the values of each group, 0 where a group is empty: (N,)."""
    running = offsets(values)
    return running[offsets_N1[1:]] - running[offsets_N1[:-1]]


def sums_before(values: NDArray[np.integer], offsets_N1: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each entry, the sum of the entries before it in its group: (len(values),)."""
    running = offsets(values)
    return running[:-1] - np.repeat(running[offsets_N1[:-1]], np.diff(offsets_N1))


def order_by(group: NDArray[np.int64], rank: NDArray[np.integer]) -> NDArray[np.int64]:
    """The permutation that sorts by group, then by rank (0 <= rank < 2^32), then by present place.

    Equal keys keep their order, so that a group's order never depends on the groups beside it;
    the stable sort is slower and only run when there is such a pair.
    """
    joined = (group.astype(np.int64) << 32) | rank.astype(np.int64)
    order = np.argsort(joined)
    ordered = joined[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(joined, kind="stable")
    return order

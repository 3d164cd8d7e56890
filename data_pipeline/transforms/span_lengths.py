"""Lengths of token-level blanks: Poisson, conditioned on 1..max_span (Du et al. 2022, 2.1)."""

import numpy as np
from numpy.typing import NDArray


def span_length_probs(poisson_lambda: float, max_span: int) -> NDArray[np.float64]:
    """Probability of each span length 1..max_span: Poisson without 0 and the tail, renormalised."""
    lengths = np.arange(1, max_span + 1)
    log_weights = lengths * np.log(poisson_lambda) - np.cumsum(np.log(lengths))
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


class SpanLengths:
    """Span lengths from 64 random bits each: Poisson conditioned on 1..max_span, by alias table."""

    def __init__(self, poisson_lambda: float, max_span: int) -> None:
        self.probs = span_length_probs(poisson_lambda, max_span)
        lengths = np.arange(1, max_span + 1)
        self.mean = float(self.probs @ lengths)
        self.std = float(self.probs @ (lengths - self.mean) ** 2) ** 0.5
        self._column_bits = np.uint64((1 << int(max_span - 1).bit_length()) - 1)
        self._threshold, self._below, self._above = self._alias_table()

    def __call__(self, bits: NDArray[np.uint64]) -> NDArray[np.int64]:
        """One length for each element."""
        column = (bits & self._column_bits).astype(np.intp)
        below = (bits >> np.uint64(32)) < self._threshold[column]
        return np.where(below, self._below[column], self._above[column])

    def _alias_table(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
        """Columns of equal probability, each split between two lengths at a threshold of 2^32."""
        size = int(self._column_bits) + 1
        share = np.zeros(size)
        share[: len(self.probs)] = self.probs * size
        below, above, threshold = np.arange(size), np.arange(size), np.ones(size)
        small = [i for i in range(size) if share[i] < 1.0]
        large = [i for i in range(size) if share[i] >= 1.0]
        while small and large:
            poor, rich = small.pop(), large[-1]
            threshold[poor], above[poor] = share[poor], rich
            share[rich] -= 1.0 - share[poor]
            if share[rich] < 1.0:
                small.append(large.pop())
        # what is left over owes its distance from 1 to rounding
        return (threshold * 2.0**32).astype(np.uint64), below + 1, above + 1

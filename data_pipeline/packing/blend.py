"""Rows of several corpora in one sequence, whose shares follow the weights at every prefix.

Row r comes from the corpus that is furthest behind its share: the largest weight x (r + 1) - rows
taken from it so far, the first of equals. Every corpus keeps its own sequence (sequence.py), so
that each of its documents is seen once in each of its epochs.

    weights 2 1 1     row     0 1 2 3 4 5 6 7
                      from    A B C A A B C A

After any number r of rows, a corpus of weight w among K (weights that sum to 1) has given w r rows
to within +(1 - 1/K) and -(1/2 + 1/3 + ... + 1/K). Above: the largest deficit before a choice is at
least 1/K. Below: by induction over j, the mean deficit of the j corpora that are furthest behind
stays under 1/(j+1) + ... + 1/K. Deficits are exact integers, the same on every machine.

The choice counts rows, not tokens. It then depends on r alone and not on how documents were packed,
and a row, full to a few percent, is what a step pays for. What tokens came of it is counted beside
the rows: BlendedPosition.source_tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.packing.pack import concatenate, padding_rows, take_rows
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.packing.sequence import Position, RowSequence, Run
from data_pipeline.protocols import Split, Transform
from data_pipeline.rows import PackedRows


@dataclass(frozen=True)
class Mix:
    """Splits that are read together, and how many rows each gives in relation to the others."""

    splits: tuple[Split, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class BlendedPosition:
    """A place in the sequence of a Mix; each tuple has an entry for every corpus."""

    rows: tuple[int, ...]  # taken since the beginning
    source_tokens: tuple[int, ...]  # of the text in them, before anything was blanked
    places: tuple[Position, ...]

    @classmethod
    def first(cls, num_corpora: int) -> "BlendedPosition":
        """The beginning of a sequence."""
        nothing = (0,) * num_corpora
        return cls(nothing, nothing, (Position(),) * num_corpora)


Place = Position | BlendedPosition


def first_place(source: Split | Mix) -> Place:
    """Where the rows of `source` begin."""
    return BlendedPosition.first(len(source.splits)) if isinstance(source, Mix) else Position()


def place_state(place: Place) -> dict[str, Any]:
    """`place` as plain JSON values."""
    return asdict(place)


def place_of(state: Mapping[str, Any]) -> Place:
    """The place that `place_state` wrote. Raises KeyError, TypeError or ValueError for others."""
    if "places" not in state:
        return Position(**{axis: int(number) for axis, number in state.items()})
    rows, tokens = (tuple(int(n) for n in state[name]) for name in ("rows", "source_tokens"))
    places = [place_of(place) for place in state["places"]]
    plain = tuple(place for place in places if isinstance(place, Position))
    if not len(rows) == len(tokens) == len(plain) == len(places):
        raise ValueError("its corpora differ in number")
    return BlendedPosition(rows, tokens, plain)


def whole_weights(weights: Sequence[float]) -> list[int]:
    """The smallest integers in the same relation, as [7, 3] for [0.7, 0.3].

    Raises ValueError for a weight that is no finite number above 0.
    """
    for weight in weights:
        if not 0 < weight < float("inf"):
            raise ValueError(f"weights of corpora must be finite and above 0, got {weight}.")
    exact = [Fraction(repr(float(weight))) for weight in weights]
    common = lcm(*(w.denominator for w in exact))
    whole = [int(w * common) for w in exact]
    return [w // gcd(*whole) for w in whole]


def deal(whole: Sequence[int], taken: Sequence[int], num_rows: int) -> NDArray[np.int64]:
    """Which corpus each of the next `num_rows` rows comes from, after `taken` rows of each.

    whole: integer weights. In exact arithmetic, so that a sequence has one continuation.
    """
    total, before = sum(whole), sum(taken)
    deficits = [w * before - total * t for w, t in zip(whole, taken, strict=True)]
    chosen = np.empty(num_rows, np.int64)
    numbers = range(len(whole))
    for row in range(num_rows):
        deficits = [d + w for d, w in zip(deficits, whole)]
        corpus = max(numbers, key=deficits.__getitem__)
        deficits[corpus] -= total
        chosen[row] = corpus
    return chosen


@dataclass(frozen=True)
class BlendedRun:
    """Consecutive rows of a blended sequence, and where the next one begins."""

    runs: list[Run]  # of each corpus
    corpus_R: NDArray[np.int64]  # which corpus each row comes from
    next: BlendedPosition
    row_tokens: int

    @property
    def num_rows(self) -> int:
        return len(self.corpus_R)

    def build(self, index: NDArray[np.int64]) -> PackedRows:
        """The rows of the run with these numbers (ascending); numbers past its end give padding."""
        blocks, places = [], []
        for at, run, inside in self._by_corpus(index):
            places.append(at)
            blocks.append(run.build(inside))
        missing = np.flatnonzero(index >= self.num_rows)
        if len(missing):
            places.append(missing)
            blocks.append(padding_rows(len(missing), self.row_tokens))
        order = np.argsort(np.concatenate(places))
        return take_rows(concatenate(blocks), order)

    def source_tokens(self, index: NDArray[np.int64]) -> int:
        """Tokens of the text in these rows, CLS and eos counted, before anything is blanked."""
        return sum(run.source_tokens(inside) for _, run, inside in self._by_corpus(index))

    def _by_corpus(
        self, index: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.int64], Run, NDArray[np.int64]]]:
        """For each corpus touched: which entries of `index` it holds, its run, numbers in that."""
        known = np.flatnonzero(index < self.num_rows)
        corpus = self.corpus_R[index[known]]
        groups = []
        for number in np.unique(corpus).tolist():
            at = known[corpus == number]
            place_R = np.cumsum(self.corpus_R == number) - 1
            groups.append((at, self.runs[number], place_R[index[at]]))
        return groups


class BlendedSequence:
    """The packed rows of a Mix in their order."""

    def __init__(
        self, mix: Mix, transform: Transform, packing: PackingConfig, *, seed: int
    ) -> None:
        """seed: of every corpus, so that each has the rows it would have alone."""
        self.sequences = [RowSequence(s, transform, packing, seed=seed) for s in mix.splits]
        self.weights = whole_weights(mix.weights)
        self.row_tokens = packing.row_tokens

    def check(self, position: Place) -> None:
        """Raises ValueError where the sequence has no such place."""
        if not isinstance(position, BlendedPosition) or len(position.rows) != len(self.sequences):
            raise ValueError(
                f"{_in_words(position)}, this run mixes {len(self.sequences)}. Mix as many."
            )
        for sequence, place in zip(self.sequences, position.places, strict=True):
            sequence.check(place)

    def take(self, position: BlendedPosition, num_rows: int) -> BlendedRun:
        """The next rows from `position` on, across windows and epochs."""
        corpus_R = deal(self.weights, position.rows, num_rows)
        count_of = np.bincount(corpus_R, minlength=len(self.sequences)).tolist()
        runs = [
            sequence.take(place, count)
            for sequence, place, count in zip(
                self.sequences, position.places, count_of, strict=True
            )
        ]
        tokens = [run.source_tokens(np.arange(run.num_rows)) for run in runs]
        after = BlendedPosition(
            rows=tuple(n + more for n, more in zip(position.rows, count_of)),
            source_tokens=tuple(n + more for n, more in zip(position.source_tokens, tokens)),
            places=tuple(run.next for run in runs),
        )
        return BlendedRun(runs, corpus_R, after, self.row_tokens)


def sequence_of(
    source: Split | Mix, transform: Transform, packing: PackingConfig, *, seed: int, start: Place
) -> RowSequence | BlendedSequence:
    """The sequence of packed rows of `source`. Raises ValueError if it has no place `start`."""
    if isinstance(source, Mix):
        sequence = BlendedSequence(source, transform, packing, seed=seed)
        sequence.check(start)
        return sequence
    if isinstance(start, BlendedPosition):
        raise ValueError(f"{_in_words(start)}, this run reads one. Mix as many.")
    sequence = RowSequence(source, transform, packing, seed=seed)
    sequence.check(start)
    return sequence


def _in_words(position: Place) -> str:
    number = len(position.rows) if isinstance(position, BlendedPosition) else 1
    return f"the place to start at is one in {number} corpora"

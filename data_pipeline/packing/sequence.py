"""The one global sequence of packed rows: windows follow one another, and so do epochs.

    epoch 0                          epoch 1
    window 0    window 1   window 2  window 0 ...
    r r r r r   r r r r r  r r r r   r r r r r
              ^ Position(epoch=0, window=0, row=5) does not exist: it is Position(0, 1, 0)

A run takes as many rows as a step needs, wherever windows and epochs end; a place in the sequence
is three integers. Nothing here knows about ranks or workers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline.packing.pack import concatenate, padding_rows
from data_pipeline.packing.plan import PackingConfig, WindowPlan, num_windows, plan_window
from data_pipeline.protocols import Split, Transform
from data_pipeline.rows import PackedRows

KEPT_PLANS = 2


@dataclass(frozen=True)
class Position:
    """A place in the sequence: a packed row of a window of an epoch, all counted from 0."""

    epoch: int = 0
    window: int = 0
    row: int = 0


@dataclass(frozen=True)
class Run:
    """Consecutive rows of the sequence, and where the next one begins."""

    parts: list[tuple[WindowPlan, int, int]]  # plan, first row, number of rows
    next: Position
    row_tokens: int

    @property
    def num_rows(self) -> int:
        return sum(count for _, _, count in self.parts)

    def build(self, index: NDArray[np.int64]) -> PackedRows:
        """The rows of the run with these numbers (ascending); numbers past its end give padding."""
        blocks = [plan.build(rows) for plan, rows in self._by_plan(index) if len(rows)]
        num_missing = int((index >= self.num_rows).sum())
        if num_missing:
            blocks.append(padding_rows(num_missing, self.row_tokens))
        return blocks[0] if len(blocks) == 1 else concatenate(blocks)

    def source_tokens(self, index: NDArray[np.int64]) -> int:
        """Tokens of the text in these rows, CLS and eos counted, before anything is blanked."""
        return sum(int(plan.source_tokens_R[rows].sum()) for plan, rows in self._by_plan(index))

    def _by_plan(self, index: NDArray[np.int64]) -> list[tuple[WindowPlan, NDArray[np.int64]]]:
        chosen, before = [], 0
        for plan, first_row, count in self.parts:
            inside = index[(before <= index) & (index < before + count)]
            chosen.append((plan, inside - before + first_row))
            before += count
        return chosen


class RowSequence:
    """The packed rows of a split in their order, planned window by window as they are asked for."""

    def __init__(
        self, split: Split, transform: Transform, packing: PackingConfig, *, seed: int
    ) -> None:
        if not split.num_documents:
            raise ValueError("the split holds 0 documents, at least 1 is needed to make rows.")
        if transform.reads_encoder and split.encoder is None:
            raise ValueError(
                "the shards hold one stream, and an encoder with a tokenizer of its own reads a "
                "second one. Prepare them with --encoder-tokenizer."
            )
        self.split = split
        self.transform = transform
        self.packing = packing
        self.seed = seed
        self.num_windows = num_windows(split, packing)
        self._plans: dict[tuple[int, int], WindowPlan] = {}

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_plans": {}}  # a worker plans for itself

    def plan(self, epoch: int, window: int) -> WindowPlan:
        """The plan of one window; the last two are kept."""
        place = (epoch, window)
        if place not in self._plans:
            plan = plan_window(
                self.split,
                self.transform,
                self.packing,
                seed=self.seed,
                epoch=epoch,
                window=window,
            )
            self._plans = dict([*self._plans.items(), (place, plan)][-KEPT_PLANS:])
        return self._plans[place]

    def check(self, position: Position) -> None:
        """Raises ValueError where the sequence has no such place."""
        rows = 0
        if position.epoch >= 0 and 0 <= position.window < self.num_windows:
            rows = self.plan(position.epoch, position.window).num_rows
        if not 0 <= position.row < rows:
            raise ValueError(
                f"{position} is no place in this data: an epoch has {self.num_windows} windows"
                f"{f', this one {rows} rows' if rows else ''}. The data, the packing or the "
                "transform is not the one that this position comes from."
            )

    def take(self, position: Position, num_rows: int) -> Run:
        """The next rows from `position` on, across windows and epochs."""
        return self._take(position, num_rows, endless=True)

    def take_in_epoch(self, position: Position, num_rows: int) -> Run:
        """The next rows of this epoch: fewer than asked for at its end, and then none."""
        return self._take(position, num_rows, endless=False)

    def _take(self, position: Position, num_rows: int, *, endless: bool) -> Run:
        parts, epoch = [], position.epoch
        while num_rows > 0 and (endless or position.epoch == epoch):
            plan = self.plan(position.epoch, position.window)
            count = min(num_rows, plan.num_rows - position.row)
            parts.append((plan, position.row, count))
            num_rows -= count
            position = self._after(position, count, plan.num_rows)
        return Run(parts, position, self.packing.row_tokens)

    def _after(self, position: Position, count: int, rows_in_window: int) -> Position:
        if position.row + count < rows_in_window:
            return Position(position.epoch, position.window, position.row + count)
        if position.window + 1 < self.num_windows:
            return Position(position.epoch, position.window + 1, 0)
        return Position(position.epoch + 1, 0, 0)

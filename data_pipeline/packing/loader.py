"""Packed rows as torch batches, dealt to ranks and built by worker processes.

A training step takes the next micro_rows x accumulation x world_size rows of the global sequence
(sequence.py) and deals row j of them to rank j % world_size, so that neither the world size nor the
workers decide what is in a step.

    step of 8 rows   0 1 2 3 4 5 6 7
    2 ranks          0   2   4   6      rank 0: micro batches (0 2) and (4 6)
                       1   3   5   7    rank 1: micro batches (1 3) and (5 7)

The position after it travels with every batch: whoever starts there gets what follows. Worker w
builds the micro batches w, w + num_workers, ... of its rank, and plans the windows for itself.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from data_pipeline.packing.blend import BlendedRun, Mix, Place, first_place, sequence_of
from data_pipeline.packing.pack import ARRAYS
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.packing.sequence import Position, RowSequence, Run
from data_pipeline.packing.worker_processes import start_worker, worker_context
from data_pipeline.protocols import Split, Transform
from data_pipeline.rows import PackedRows

__all__ = [
    "Batch",
    "Mix",
    "Place",
    "Position",
    "batch_of",
    "first_place",
    "training_batches",
    "validation_batches",
]

FIELDS = ARRAYS


@dataclass(frozen=True)
class Batch:
    """B packed rows as one tensor, so that they move between processes and devices in one piece."""

    block: Tensor
    """(9, B, T) int32: the arrays of PackedRows in the order of FIELDS, weights as fp32 bits."""
    position: Place
    """Where to start again after this batch: at the next step if it completes its step, else at the
    beginning of the step it belongs to."""
    tokens: int
    """Positions that are not padding."""
    source_tokens: int
    """Tokens of the text in these rows, CLS and eos counted, before anything is blanked."""
    sources: Tensor | None = None
    """(2, B, T) int32: ids and document (-1 on padding) of the texts before they were blanked,
    where the transform keeps them."""
    keys: Tensor | None = None
    """(B, N) int64: the bits of the hash key of each document of a row, with the sources."""

    @property
    def padding(self) -> int:
        """Positions that hold nothing."""
        return self.block[0].numel() - self.tokens

    @property
    def ids(self) -> Tensor:
        """Input tokens, (B, T) int32."""
        return self.block[0]

    @property
    def positions(self) -> Tensor:
        """Position in the text and position in the block of each token, (B, 2, T) int32."""
        return self.block[1:3].transpose(0, 1)

    @property
    def targets(self) -> Tensor:
        """The token to predict at each position, (B, T) int32."""
        return self.block[3]

    @property
    def weights(self) -> Tensor:
        """Weight of each target in the loss, (B, T) fp32; 0 where there is none."""
        return self.block[4].view(torch.float32)

    @property
    def kind(self) -> Tensor:
        """Sort of blank each target belongs to, (B, T) int32: an index into rows.KINDS."""
        return self.block[5]

    @property
    def document(self) -> Tensor:
        """Number of the piece inside its packed row, (B, T) int32; -1 on padding."""
        return self.block[6]

    @property
    def lo(self) -> Tensor:
        """The first key that each query sees, (B, T) int32."""
        return self.block[7]

    @property
    def hi(self) -> Tensor:
        """One past the last key that each query sees, (B, T) int32."""
        return self.block[8]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The batch on another device."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory, from which copies to a GPU run beside computation."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        sources, keys = (t if t is None else change(t) for t in (self.sources, self.keys))
        return replace(self, block=change(self.block), sources=sources, keys=keys)


class RowSource(Protocol):
    """A sequence of packed rows: of one split, or of several by weight."""

    def take(self, position: Any, num_rows: int, /) -> Run | BlendedRun:
        """The next rows from `position` on, which is a place of this sequence."""
        ...


def training_batches(
    split: Split | Mix,
    transform: Transform,
    packing: PackingConfig,
    *,
    seed: int,
    rank: int,
    world_size: int,
    micro_rows: int,
    accumulation: int,
    start: Place,
    num_workers: int,
) -> Iterator[Batch]:
    """The endless micro batches of one rank, (micro_rows, row_tokens) each, `accumulation` a step.

    split: one, or a Mix of several, whose rows then follow its weights at every prefix (blend.py).
    start: first_place(split) for a new run, or the position of the last batch that was used.
    num_workers: processes that build ahead; 0 builds where the batches are asked for.
    Raises ValueError for an empty split, or a start that this data does not have, and later, as
    batches are taken, for damage in the files.
    """
    _check_share(rank, world_size, micro_rows=micro_rows, accumulation=accumulation)
    if num_workers < 0:
        raise ValueError(f"num_workers must be at least 0, got {num_workers}.")
    sequence = sequence_of(split, transform, packing, seed=seed, start=start)
    rows = TrainingRows(sequence, rank, world_size, micro_rows, accumulation, start)
    workers: dict = {}
    if num_workers:
        workers = {
            "multiprocessing_context": worker_context(preload=__name__),
            "worker_init_fn": start_worker,
        }
    # A generator of its own: the loader draws a seed from it, and would from torch's global one.
    loader = DataLoader(
        rows, batch_size=None, num_workers=num_workers, generator=torch.Generator(), **workers
    )
    return _with_plain_errors(iter(loader))


def validation_batches(
    split: Split,
    transform: Transform,
    packing: PackingConfig,
    *,
    seed: int,
    rank: int,
    world_size: int,
    micro_rows: int,
    max_rows: int | None = None,
) -> Iterator[Batch]:
    """The micro batches of one rank in one pass over the split, or over its first `max_rows` rows.

    Every rank gets equally many; rows that are missing at the end are padding.
    """
    _check_share(rank, world_size, micro_rows=micro_rows)
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, or None for all rows, got {max_rows}.")
    sequence = RowSequence(split, transform, packing, seed=seed)
    return _one_pass(sequence, rank + world_size * np.arange(micro_rows), world_size, max_rows)


def _with_plain_errors(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches; what a worker raised for a user to read comes without its traceback."""
    try:
        yield from batches
    except ValueError as error:
        _, is_of_worker, message = str(error).rpartition("\nValueError: ")
        if not is_of_worker:
            raise
        raise ValueError(message.strip()) from error


def _one_pass(
    sequence: RowSequence, index: np.ndarray, world_size: int, max_rows: int | None
) -> Iterator[Batch]:
    position, rows_left = Position(), sys.maxsize if max_rows is None else max_rows
    while rows_left > 0 and position.epoch == 0:
        run = sequence.take_in_epoch(position, min(len(index) * world_size, rows_left))
        rows_left -= run.num_rows
        position = run.next
        yield _batch(run, index, position)


@dataclass(frozen=True)
class TrainingRows(IterableDataset):
    """The endless micro batches of one rank; iterated in a worker, those that fall to it."""

    sequence: RowSource
    rank: int
    world_size: int
    micro_rows: int
    accumulation: int
    start: Place

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        return self.share(worker.id, worker.num_workers) if worker else self.share(0, 1)

    def share(self, worker_id: int, num_workers: int) -> Iterator[Batch]:
        """The micro batches worker_id, worker_id + num_workers, ... of this rank."""
        numbers = itertools.count()
        rows_in_step = self.micro_rows * self.accumulation * self.world_size
        position = self.start
        while True:
            run = self.sequence.take(position, rows_in_step)
            for micro in range(self.accumulation):
                if next(numbers) % num_workers == worker_id:
                    complete = micro == self.accumulation - 1
                    yield _batch(run, self._index(micro), run.next if complete else position)
            position = run.next

    def _index(self, micro: int) -> np.ndarray:
        places = np.arange(micro * self.micro_rows, (micro + 1) * self.micro_rows)
        return self.rank + self.world_size * places


def _batch(run: Run | BlendedRun, index: np.ndarray, position: Place) -> Batch:
    return batch_of(run.build(index), position, run.source_tokens(index))


def batch_of(rows: PackedRows, position: Place, source_tokens: int) -> Batch:
    """Packed rows as a batch. position, source_tokens: see Batch."""
    block = np.empty((len(FIELDS), *rows.ids.shape), np.int32)
    for place, name in enumerate(FIELDS):
        values = getattr(rows, name)
        block[place] = values.view(np.int32) if values.dtype == np.float32 else values
    tokens = int((rows.document >= 0).sum())
    sources = keys = None
    if rows.sources is not None:
        sources = torch.from_numpy(np.stack((rows.sources.ids, rows.sources.document)))
        keys = torch.from_numpy(rows.sources.keys.view(np.int64))
    return Batch(torch.from_numpy(block), position, tokens, source_tokens, sources, keys)


def _check_share(rank: int, world_size: int, **counts: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must lie in [0, world_size = {world_size}), got {rank}.")
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")

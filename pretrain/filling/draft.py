"""A text while its blanks are being written, from left to right, and the row it is read as.

The row of a text only grows: part A with all its masks, then each finished blank behind its sop,
then sop and what the current blank has so far. Where the tokens to come will stand is known when a
blank is begun: its row is built once, by the transform that trained the model, with room for as
many tokens as the blank may get.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_pipeline.transforms.blank import BlankTransform
from pretrain.filling.rows import WrittenText, blank_rows


@dataclass
class Draft:
    """A text some of whose blanks are written."""

    segments: list[NDArray[np.int32]]
    marks: list[str]
    generator: torch.Generator
    is_suffix: bool = False
    ends_document: bool = False
    written: list[list[int]] = field(default_factory=list)  # of each blank that was begun
    log_probs: list[list[float]] = field(default_factory=list)
    complete: list[bool] = field(default_factory=list)  # of each blank that is done
    # The row up to the end of the current blank; set by `begin_blanks`.
    ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    positions: NDArray[np.int32] = field(default_factory=lambda: np.zeros((2, 0), np.int32))
    sep: int = 0
    sop: int = 0  # where the current blank's sop stands in the row

    @property
    def done(self) -> bool:
        return len(self.complete) == len(self.marks)

    @property
    def between_blanks(self) -> bool:
        """Whether every blank that was begun is done."""
        return len(self.complete) == len(self.written)

    @property
    def current(self) -> list[int]:
        """The tokens of the blank that is being written."""
        return self.written[-1]

    @property
    def last(self) -> int:
        """The place in the row that is read for the next token."""
        return self.sop + len(self.current)

    def take(self, token: int, log_prob: float, *, ends: bool, max_tokens: int) -> None:
        """Write `token` into the current blank, or end the blank there."""
        self.log_probs[-1].append(log_prob)
        if not ends:
            self.current.append(token)
            self.ids[self.last] = token
        if ends or len(self.current) == max_tokens:
            self.complete.append(ends)

    def branch(self) -> "Draft":
        """A copy that may go on differently in the current blank."""
        return replace(
            self,
            ids=self.ids.copy(),
            written=[*self.written[:-1], list(self.current)],
            log_probs=[*self.log_probs[:-1], list(self.log_probs[-1])],
            complete=list(self.complete),
        )

    def adopt(self, other: "Draft") -> None:
        """Become what a branch of this draft has become."""
        self.written, self.log_probs, self.complete = other.written, other.log_probs, other.complete

    def tokens(self) -> NDArray[np.int32]:
        """The finished text."""
        return self.with_blanks(self.written).tokens()

    def with_blanks(self, blanks: Sequence[Sequence[int]]) -> WrittenText:
        """The text with these tokens in its blanks."""
        contents = [np.array(ids, np.int32) for ids in blanks]
        return WrittenText(self.segments, self.marks, contents, self.ends_document)


def begin_blanks(transform: BlankTransform, drafts: Sequence[Draft], max_tokens: int) -> None:
    """Begin the next blank of each draft, which may get `max_tokens` tokens, and build its row.

    The drafts are either all suffixes or none.
    """
    if not drafts:
        return
    texts = []
    for draft in drafts:
        num_to_come = len(draft.marks) - len(draft.written) - 1
        # One placeholder more than may be written: it stands behind the last place that is read.
        blanks = [*draft.written, [0] * (max_tokens + 1), *[[0]] * num_to_come]
        texts.append(draft.with_blanks(blanks))
    rows = blank_rows(transform, texts, suffix=drafts[0].is_suffix)
    stop = 0
    for number, draft in enumerate(drafts):
        start, stop = stop, stop + int(rows.lengths_N[number])
        draft.sep = int(rows.sep_N[number])
        draft.sop = draft.sep + sum(len(ids) + 1 for ids in draft.written)
        room = slice(start, start + draft.sop + max_tokens + 1)
        draft.ids = rows.ids[room].copy()
        draft.positions = np.stack((rows.position[room], rows.block_position[room]))
        draft.written.append([])
        draft.log_probs.append([])


def inputs_of(drafts: Sequence[Draft], starts: Sequence[int]) -> dict[str, Tensor]:
    """What the backbone reads of each row from `starts` to the place of the next token, on the CPU.

    ids, lo, hi, document (N, T), positions (N, 2, T), padded at the right; last (N,): the column
    that the next token is read from.
    """
    stops = [draft.last + 1 for draft in drafts]
    num_columns = max(stop - start for start, stop in zip(starts, stops, strict=True))
    ids, lo, hi = np.zeros((3, len(drafts), num_columns), np.int32)
    document = np.full_like(ids, -1)
    positions = np.zeros((len(drafts), 2, num_columns), np.int32)
    for row, (draft, start, stop) in enumerate(zip(drafts, starts, stops)):
        width = stop - start
        ids[row, :width] = draft.ids[start:stop]
        positions[row, :, :width] = draft.positions[:, start:stop]
        hi[row, :width] = np.maximum(np.arange(start + 1, stop + 1), draft.sep)
        document[row, :width] = 0
    arrays = {"ids": ids, "positions": positions, "lo": lo, "hi": hi, "document": document}
    last_N = torch.tensor([stop - start - 1 for start, stop in zip(starts, stops)])
    return {name: torch.from_numpy(array) for name, array in arrays.items()} | {"last": last_N}

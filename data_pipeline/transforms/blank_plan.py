"""What is blanked where, decided before any token is read: the plan of N pieces.

Places are counted inside the piece as the model sees it: CLS is 0, the first stored token 1. A span
is kept as (start, length), and the spans of a piece stand in the order in which part B writes them.

    x = CLS 1 2 3 4 5 6 eos, spans [5, 7) then [3, 4):      start_S = 5 3     length_S = 2 1
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.rows import KINDS


@dataclass(frozen=True)
class BlankPlan:
    """Blanks of N pieces with S spans in all; piece i owns spans span_offsets_N1[i] to [i + 1]."""

    source_lengths_N: NDArray[np.int64]  # tokens with CLS and eos
    prompt_N: NDArray[np.int64]  # stored tokens at the front that carry no loss
    ends_document_N: NDArray[np.bool_]  # eos follows
    keys_N: NDArray[np.uint64]  # what the draws left to build() hang on
    kind_N: NDArray[np.uint8]  # index into KINDS
    suffix_N: NDArray[np.bool_]  # the one span runs to the end: its last token is learned, not eop
    start_S: NDArray[np.int32]
    length_S: NDArray[np.int32]
    span_offsets_N1: NDArray[np.int64]
    spans_lost_N: NDArray[np.int32]  # drawn, but max_row_tokens left no room for mask and sop
    spans_unplaced_N: NDArray[np.int32]  # drawn, but the text is too short to hold them
    tokens_clipped_N: NDArray[np.int32]  # by how much spans were shortened for the same reason

    def __len__(self) -> int:
        return len(self.source_lengths_N)

    @cached_property
    def num_spans_N(self) -> NDArray[np.int64]:
        """Blanks of each piece."""
        return np.diff(self.span_offsets_N1)

    @cached_property
    def written_S(self) -> NDArray[np.int32]:
        """Positions of each span in part B: its tokens and one more; a suffix has no eop."""
        return self.length_S + 1 - np.repeat(self.suffix_N, self.num_spans_N)

    @cached_property
    def sep_N(self) -> NDArray[np.int64]:
        """Tokens of part A: the text with one mask token in place of each span."""
        covered = ragged.sums(self.length_S, self.span_offsets_N1)
        return self.source_lengths_N - covered + self.num_spans_N

    @cached_property
    def row_lengths_N(self) -> NDArray[np.int64]:
        """Tokens of each row: n + 2 for each span, n + 1 for a suffix."""
        return self.source_lengths_N + 2 * self.num_spans_N - self._suffix_spans_N

    @cached_property
    def num_targets_N(self) -> NDArray[np.int64]:
        """Positions of each row that carry loss (the sum of its weights)."""
        owner = np.repeat(np.arange(len(self)), self.num_spans_N)
        in_prompt = np.clip(1 + self.prompt_N[owner] - self.start_S, 0, self.written_S)
        return ragged.sums(self.written_S - in_prompt, self.span_offsets_N1)

    @property
    def _suffix_spans_N(self) -> NDArray[np.int64]:
        return np.where(self.suffix_N, self.num_spans_N, 0)

    def take(self, index: Any) -> Self:
        """The plan of some pieces, in the order asked for (integers, a mask or a slice)."""
        chosen = np.arange(len(self))[index]
        spans = ragged.spread(self.span_offsets_N1[chosen], self.num_spans_N[chosen])
        values = {
            field.name: getattr(self, field.name)[spans if field.name.endswith("_S") else chosen]
            for field in fields(self)
            if field.name != "span_offsets_N1"
        }
        return type(self)(span_offsets_N1=ragged.offsets(self.num_spans_N[chosen]), **values)

    @staticmethod
    def concatenate(plans: Sequence["BlankPlan"]) -> "BlankPlan":
        """One plan of the pieces of several, in order."""
        values = {
            field.name: np.concatenate([getattr(plan, field.name) for plan in plans])
            for field in fields(BlankPlan)
            if field.name != "span_offsets_N1"
        }
        counts = np.concatenate([plan.num_spans_N for plan in plans])
        return BlankPlan(span_offsets_N1=ragged.offsets(counts), **values)

    def counts(self) -> dict[str, int]:
        """What was lost or shortened, by reason, and the targets of each kind of blank."""
        targets = np.bincount(self.kind_N, weights=self.num_targets_N, minlength=len(KINDS))
        return {
            "spans": len(self.start_S),
            "spans_lost_no_room_in_row": int(self.spans_lost_N.sum()),
            "spans_lost_text_too_short": int(self.spans_unplaced_N.sum()),
            "span_tokens_clipped": int(self.tokens_clipped_N.sum()),
            "pieces_without_target": int((self.num_targets_N == 0).sum()),
            **{f"targets_{kind}": int(n) for kind, n in zip(KINDS[1:], targets[1:])},
        }


def plan_from_spans(
    spans: Sequence[Sequence[tuple[int, int]]],
    *,
    source_lengths: Sequence[int],
    ends_document: Sequence[bool],
    prompt: Sequence[int] | None = None,
    kind: str = "token",
    suffix: bool = False,
    keys: Sequence[int] | None = None,
) -> BlankPlan:
    """The plan of N texts whose blanks are given: [start, stop) in target order, CLS being token 0.

    source_lengths: tokens of each text with CLS and eos; prompt: stored tokens without loss.
    suffix: each text has one span, which runs to its last token.
    Raises ValueError for empty or overlapping spans, or spans outside [1, length).
    """
    lengths_N = np.asarray(source_lengths, np.int64)
    flat = np.array([pair for each in spans for pair in each], np.int32).reshape(-1, 2)
    num_texts, num_spans_N = len(lengths_N), np.array([len(each) for each in spans], np.int64)
    _check_spans(spans, lengths_N, suffix)
    zeros_N = np.zeros(num_texts, np.int32)
    return BlankPlan(
        source_lengths_N=lengths_N,
        prompt_N=np.asarray(prompt if prompt is not None else zeros_N, np.int64),
        ends_document_N=np.asarray(ends_document, np.bool_),
        keys_N=np.asarray(keys if keys is not None else zeros_N, np.uint64),
        kind_N=np.full(num_texts, KINDS.index(kind), np.uint8),
        suffix_N=np.full(num_texts, suffix),
        start_S=flat[:, 0].copy(),
        length_S=flat[:, 1] - flat[:, 0],
        span_offsets_N1=ragged.offsets(num_spans_N),
        spans_lost_N=zeros_N,
        spans_unplaced_N=zeros_N,
        tokens_clipped_N=zeros_N,
    )


def _check_spans(
    spans: Sequence[Sequence[tuple[int, int]]], lengths_N: NDArray[np.int64], suffix: bool
) -> None:
    if len(spans) != len(lengths_N):
        raise ValueError(f"spans are given for {len(spans)} texts, lengths for {len(lengths_N)}.")
    for each, length in zip(spans, lengths_N):
        free_from = 1
        for start, stop in sorted(each):
            if not free_from <= start < stop <= length:
                raise ValueError(
                    f"span [{start}, {stop}) must lie in [{free_from}, {length}), hold a token and "
                    f"overlap no other; the text has {length} tokens and CLS is token 0."
                )
            free_from = stop
        if suffix and [stop for _, stop in each] != [length]:
            raise ValueError(f"a suffix is one span up to token {length}, got {list(each)}.")

"""The plan of a window: which pieces lie in which packed row, and what is drawn for them.

A window is some 3 million tokens of documents, in whole blocks of 256 (order.py). Its plan is a
pure function of (split, transform, packing, seed, epoch, window): it reads the index and no token,
and any process that computes it gets the same rows. So every loader process plans for itself
(docs/decisions/0004-every-loader-process-plans.md).

    documents of the window -> cut to source_tokens -> draw -> best fit -> cut to fill -> shuffle

    plan = plan_window(split, transform, PackingConfig(), seed=1, epoch=0, window=0)
    packed = plan.build(np.arange(8))        # PackedRows of rows 0..7, (8, 1152)
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.hashing import key, mix_ints, uniform, uniform_int
from data_pipeline.packing.cut import Documents, Stretches, cut_documents, read_documents
from data_pipeline.packing.fill import Layout, cut_to_fill, pack_best_fit
from data_pipeline.packing.fit import order_by_row
from data_pipeline.packing.order import Bijection, num_blocks, window_documents
from data_pipeline.packing.pack import pack_rows
from data_pipeline.protocols import Split, Transform, TransformPlan
from data_pipeline.rows import PackedRows

MIN_SOURCE_TOKENS = 8
SHORTEST_TARGET = 32  # tokens, of short sequences
_SHORT, _ROWS = 3, 4  # names of streams of draws; 1 and 2 are in order.py


@dataclass(frozen=True, kw_only=True)
class PackingConfig:
    """How documents become packed rows. Raises ValueError where a value lies outside its range."""

    source_tokens: int = 512
    """Longest piece of a document in tokens, CLS and eos counted; longer documents are cut."""
    row_tokens: int = 1152
    """T, tokens of a packed row: at least source_tokens + 2; 2.25 times that packs well."""
    cut: Literal["fill", "long"] = "fill"
    """Which documents are cut: those longer than source_tokens, or others too to fill rows."""
    window_tokens: int = 3_000_000
    """Tokens packed and shuffled together, about: a window holds whole blocks of 256 documents."""
    short_sequence_prob: float = 0.0
    """Share of documents cut at a target length drawn from 32..source_tokens - 2 instead."""

    def __post_init__(self) -> None:
        if self.source_tokens < MIN_SOURCE_TOKENS:
            raise ValueError(
                f"source_tokens must be at least {MIN_SOURCE_TOKENS}, got {self.source_tokens}."
            )
        if self.row_tokens < self.source_tokens + 2:
            raise ValueError(
                f"row_tokens must be at least source_tokens + 2 = {self.source_tokens + 2} (a text "
                f"and one blank), got {self.row_tokens}."
            )
        if self.cut not in ("fill", "long"):
            raise ValueError(f'cut must be "fill" or "long", got {self.cut!r}.')
        if self.window_tokens < 1:
            raise ValueError(f"window_tokens must be at least 1, got {self.window_tokens}.")
        if not 0.0 <= self.short_sequence_prob <= 1.0:
            raise ValueError(
                f"short_sequence_prob must lie in [0, 1], got {self.short_sequence_prob}."
            )
        if self.short_sequence_prob > 0 and self.source_tokens < SHORTEST_TARGET + 2:
            raise ValueError(
                f"short_sequence_prob needs source_tokens of at least {SHORTEST_TARGET + 2}, got "
                f"{self.source_tokens}."
            )


@dataclass(frozen=True)
class PlanReport:
    """What became of a window's text. No token is ever dropped; blanks are lost for a reason."""

    num_rows: int
    row_tokens: int
    tokens: int  # positions that are not padding
    source_tokens: int  # tokens of all pieces, CLS and eos counted, before anything is blanked
    stored_tokens: int  # tokens of the documents
    documents: int
    documents_long: int  # cut because they are longer than a piece may be
    documents_cut_to_fill: int  # cut once more to fill a row
    pieces: int
    pieces_all_prompt: int  # no text to blank, so that they carry no loss
    counts: dict[str, int]  # the transform's: targets by kind, spans lost by reason

    @property
    def nonpadding_ratio(self) -> float:
        """Share of all positions that hold a token."""
        return self.tokens / (self.num_rows * self.row_tokens)


@dataclass(frozen=True)
class WindowPlan:
    """The packed rows of one window, planned and not yet built."""

    split: Split
    transform: Transform
    row_tokens: int
    stretches: Stretches
    plan: TransformPlan
    order: NDArray[np.int64]  # numbers of stretches, those of row 0 first
    row_offsets_R1: NDArray[np.int64]  # row r holds order[offsets[r] : offsets[r + 1]]
    source_tokens_R: NDArray[np.int64]  # of the pieces in each row, CLS and eos counted
    report: PlanReport

    @property
    def num_rows(self) -> int:
        """Packed rows of the window, at least 1."""
        return len(self.row_offsets_R1) - 1

    def build(self, row_index: NDArray[np.int64]) -> PackedRows:
        """The packed rows with the given numbers, (B, T). Reads their tokens and no others."""
        row_index = np.asarray(row_index, np.int64)
        counts_B = np.diff(self.row_offsets_R1)[row_index]
        chosen = self.order[ragged.spread(self.row_offsets_R1[row_index], counts_B)]
        documents, owner = self.stretches.documents, self.stretches.owner_N[chosen]
        base = documents.base_N1[owner]
        tokens = self.split.tokens(
            documents.number_N[owner],
            self.stretches.begin_N[chosen] - base,
            self.stretches.end_N[chosen] - base,
        )
        if self.transform.reads_encoder:
            second, number_N = self.split.encoder, documents.number_N[owner]
            assert second is not None
            stop_N = second.lengths(number_N)
            tokens = np.append(tokens, second.tokens(number_N, np.zeros_like(stop_N), stop_N))
        rows = self.transform.build(tokens, self.plan.take(chosen))
        return pack_rows(rows, counts_B, self.row_tokens)


def num_windows(split: Split, packing: PackingConfig) -> int:
    """Windows of an epoch: each holds about `window_tokens`, in whole blocks of documents."""
    blocks = num_blocks(split.num_documents)
    source_tokens = split.num_tokens + 2 * split.num_documents
    return min(blocks, max(1, round(source_tokens / packing.window_tokens))) if blocks else 0


def plan_window(
    split: Split,
    transform: Transform,
    packing: PackingConfig,
    *,
    seed: int,
    epoch: int,
    window: int,
) -> WindowPlan:
    """The plan of one window, 0 <= window < num_windows(split, packing), the same wherever made."""
    windows = num_windows(split, packing)
    assert 0 <= window < windows
    numbers = window_documents(split.num_documents, windows, seed=seed, epoch=epoch, window=window)
    documents = read_documents(split, numbers, reads_encoder=transform.reads_encoder)

    def draw(stretches: Stretches, max_row_tokens_N: NDArray[np.int64]) -> TransformPlan:
        pieces = stretches.pieces()
        keys_N = key(seed, epoch, pieces.document_N, pieces.start_N)
        return transform.draw(pieces, keys_N, max_row_tokens_N)

    limits_N = _piece_limits(documents, packing, seed=seed, epoch=epoch)
    whole = cut_documents(documents, limits_N)
    layout = pack_best_fit(whole, draw, packing.row_tokens)
    if packing.cut == "fill":
        layout = cut_to_fill(layout, draw, packing.row_tokens)
    live = np.flatnonzero(layout.row_N >= 0)
    _check_cover(layout.stretches.take(live))
    shuffle = Bijection(layout.num_rows, mix_ints(seed, epoch, _ROWS, window))
    row_N = shuffle(np.arange(layout.num_rows))[layout.row_N[live]]
    order = live[order_by_row(row_N, layout.num_rows)]
    row_offsets_R1 = ragged.offsets(np.bincount(row_N, minlength=layout.num_rows))
    return WindowPlan(
        split=split,
        transform=transform,
        row_tokens=packing.row_tokens,
        stretches=layout.stretches,
        plan=layout.plan,
        order=order,
        row_offsets_R1=row_offsets_R1,
        source_tokens_R=ragged.sums(layout.stretches.source_lengths_N[order], row_offsets_R1),
        report=_report(layout, live, len(whole), packing),
    )


def _piece_limits(
    documents: Documents, packing: PackingConfig, *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Longest piece of each document in source tokens."""
    limits_N = np.full(len(documents.number_N), packing.source_tokens)
    if packing.short_sequence_prob > 0:
        starts = np.zeros(len(limits_N), np.int64)
        keys_N = key(mix_ints(seed, _SHORT), epoch, documents.number_N, starts)
        short_N = uniform(keys_N, 0) < packing.short_sequence_prob
        num_targets = packing.source_tokens - 1 - SHORTEST_TARGET
        limits_N[short_N] = SHORTEST_TARGET + uniform_int(keys_N, 1, num_targets)[short_N]
    return limits_N


def _check_cover(stretches: Stretches) -> None:
    """Every stored token of the window lies in exactly one piece."""
    base_N1 = stretches.documents.base_N1
    assert (stretches.begin_N >= base_N1[stretches.owner_N]).all()
    assert (stretches.end_N <= base_N1[stretches.owner_N + 1]).all()
    with_text = stretches.begin_N < stretches.end_N
    begins, ends = np.zeros((2, base_N1[-1] + 1), np.bool_)
    begins[stretches.begin_N[with_text]] = True
    ends[stretches.end_N[with_text]] = True
    # Beginnings all differ, and each one but the first is an end: the pieces form one chain.
    assert begins.sum() == ends.sum() == with_text.sum()
    assert not len(begins) > 1 or (begins[0] and ends[-1])
    assert np.array_equal(begins[1:-1], ends[1:-1])
    num_empty = int((stretches.documents.lengths_N == 0).sum())
    assert len(with_text) - int(with_text.sum()) == num_empty


def _report(
    layout: Layout, live: NDArray[np.int64], num_long_pieces: int, packing: PackingConfig
) -> PlanReport:
    plan, stretches = layout.plan.take(live), layout.stretches.take(live)
    documents = stretches.documents
    num_pieces_N = np.bincount(stretches.owner_N, minlength=len(documents.number_N))
    first_N = np.bincount(
        layout.stretches.owner_N[:num_long_pieces], minlength=len(documents.number_N)
    )
    text_N = stretches.end_N - stretches.begin_N
    return PlanReport(
        num_rows=layout.num_rows,
        row_tokens=packing.row_tokens,
        tokens=int(plan.row_lengths_N.sum()),
        source_tokens=int(stretches.source_lengths_N.sum()),
        stored_tokens=int(documents.base_N1[-1]),
        documents=len(documents.number_N),
        documents_long=int((first_N > 1).sum()),
        documents_cut_to_fill=int((num_pieces_N > first_N).sum()),
        pieces=len(live),
        pieces_all_prompt=int((stretches.prompt_N >= text_N).sum()),
        counts=plan.counts(),
    )

"""Tokens and a plan become rows: part A has a mask token for each blank, part B writes the blanks.

x = CLS 1 2 3 4 5 6 eos, spans [5, 7) then [3, 4)  (Du et al. 2022, section 2.1; M = [MASK])

    ids             CLS 1 2 M 4 M eos | sop 5 6   sop 3
    targets         CLS 1 2 M 4 M eos | 5   6 eop 3   eop
    weights          0  0 0 0 0 0  0  | 1   1  1  1   1
    position         0  1 2 3 4 5  6  | 5   5  5  3   3         part B stands at its mask token
    block_position   0  0 0 0 0 0  0  | 1   2  3  1   2         sep = 7

The suffix form of the document level, with its last d tokens written (no eop, eos is learned):

    ids             CLS 1 2 g | sop 3 4 5 6
    targets         CLS 1 2 g | 3   4 5 6 eos                   g = [gMASK]
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline import hashing, ragged
from data_pipeline.rows import KINDS, Rows, Sources
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank_config import BlankConfig
from data_pipeline.transforms.blank_plan import BlankPlan

DBLOCK_DRAWS = 4 << 32  # draw number of the first token; see blank_draw.py for the others
TOKEN_LEVEL = (KINDS.index("token"), KINDS.index("single"))


@dataclass(frozen=True)
class BlankMarks:
    """The token ids a row is built with, and how part B is numbered."""

    cls: int
    eos: int
    sop: int
    eop: int
    dblock: int
    mask_of_kind: tuple[int, ...]  # one for each of KINDS
    first_sentinel: int  # id of MASK1; sop1, MASK2, sop2, ... follow
    num_sentinels: int  # pairs (MASKi, sopi); 0 without sentinels
    sentinel_position: int  # position of all of part B with sentinels
    block_positions: Literal["within_span", "none"]
    block_mask_prob: float


def marks_of(
    config: BlankConfig, special: SpecialIds, *, source_tokens: int, vocab_size: int
) -> BlankMarks:
    """The marks for texts of up to `source_tokens` tokens over a vocabulary of `vocab_size` ids."""
    by_kind = {"sentence": special.smask, "document": special.gmask, "whole": special.gmask}
    if config.mask_tokens == "single":
        by_kind = {}
    sentinels = config.span_marks == "sentinels"
    return BlankMarks(
        cls=special.cls,
        eos=special.eos,
        sop=special.sop,
        eop=special.eop,
        dblock=special.dblock,
        mask_of_kind=tuple(by_kind.get(kind, special.mask) for kind in KINDS),
        first_sentinel=vocab_size,
        num_sentinels=config.max_spans(source_tokens) - 1 if sentinels else 0,
        sentinel_position=source_tokens if sentinels else -1,
        block_positions=config.block_positions,
        block_mask_prob=config.block_mask_prob,
    )


@dataclass(frozen=True)
class _Written:
    """Part B of all rows, end to end (W positions), and where its S spans stand in the source."""

    begin_S: NDArray[np.int64]  # where the span's piece begins in the source
    start_S: NDArray[np.int64]  # where the span begins in the source
    first_S: NDArray[np.int64]  # its first position among W
    read_W: NDArray[np.int64]  # where each target stands in the source; for eop one past the span
    eop: NDArray[np.int64]  # the positions among W whose target is eop


def build_rows(
    tokens: NDArray[np.integer], plan: BlankPlan, marks: BlankMarks, *, keeps_sources: bool = False
) -> Rows:
    """The rows of N pieces. tokens: their stored tokens end to end, without CLS and eos.

    keeps_sources: the rows carry CLS, the tokens and eos of each piece too, as they were.
    Raises ValueError if the tokens are not as many as the plan says, or the sentinels run out.
    """
    source = _with_cls_and_eos(tokens, plan, marks)
    sources = None
    if keeps_sources:
        sources = Sources(plan.source_lengths_N, source[:-1].copy(), plan.keys_N)
    written = _written(plan)
    mask_S, sop_S = _mark_ids(plan, marks)

    targets = source[written.read_W]
    targets[written.eop] = marks.eop
    inputs = np.empty_like(targets)
    inputs[1:] = targets[:-1]
    _replace_inputs(inputs, written, plan, marks)
    inputs[written.first_S] = sop_S

    kept = np.ones(len(source), np.bool_)
    kept[written.read_W] = False
    kept[written.read_W[written.eop]] = True  # the token behind a span is not in it
    kept[-1] = False  # the spare entry
    kept[written.start_S] = True  # the place of the mask token
    source[written.start_S] = mask_S
    rank = np.cumsum(kept, dtype=np.int32)
    mask_position_S = rank[written.start_S] - rank[written.begin_S]
    rows = _lay_out(source[kept], inputs, targets, mask_position_S, written, plan, marks)
    return replace(rows, sources=sources)


def _written(plan: BlankPlan) -> _Written:
    begin_S = np.repeat(ragged.offsets(plan.source_lengths_N)[:-1], plan.num_spans_N)
    first_S1 = ragged.offsets(plan.written_S)
    return _Written(
        begin_S=begin_S,
        start_S=begin_S + plan.start_S,
        first_S=first_S1[:-1],
        read_W=ragged.spread(begin_S + plan.start_S, plan.written_S),
        eop=(first_S1[1:] - 1)[~np.repeat(plan.suffix_N, plan.num_spans_N)],
    )


def _with_cls_and_eos(
    tokens: NDArray[np.integer], plan: BlankPlan, marks: BlankMarks
) -> NDArray[np.int32]:
    """CLS + stored tokens (+ eos) of each piece, end to end, and one spare entry."""
    ends_N = np.cumsum(plan.source_lengths_N)
    num_source = int(ends_N[-1]) if len(ends_N) else 0
    num_stored = num_source - len(plan) - int(plan.ends_document_N.sum())
    if len(tokens) != num_stored:
        raise ValueError(f"the plan is for {num_stored} stored tokens, got {len(tokens)}.")
    source = np.empty(num_source + 1, np.int32)
    stored = np.ones(num_source + 1, np.bool_)
    begin_N, eos = ends_N - plan.source_lengths_N, (ends_N - 1)[plan.ends_document_N]
    for places, token in ((begin_N, marks.cls), (eos, marks.eos), ([num_source], marks.eos)):
        source[places] = token
        stored[places] = False
    source[stored] = tokens
    return source


def _mark_ids(
    plan: BlankPlan, marks: BlankMarks
) -> tuple[NDArray[np.int32] | int, NDArray[np.int32] | int]:
    """The mask token and the sop of each span."""
    mask_of_kind = np.array(marks.mask_of_kind, np.int32)
    mask_S = np.repeat(mask_of_kind[plan.kind_N], plan.num_spans_N)
    if marks.sentinel_position < 0:
        return mask_S, marks.sop
    number_S = ragged.within(plan.num_spans_N)
    if number_S.max(initial=0) > marks.num_sentinels:
        raise ValueError(
            f"a text has {number_S.max() + 1} blanks, the sentinels reach for "
            f"{marks.num_sentinels + 1}. Raise source_tokens or mask_ratio."
        )
    sentinel_S = marks.first_sentinel + 2 * (number_S - 1)
    first_S = number_S == 0
    return np.where(first_S, mask_S, sentinel_S), np.where(first_S, marks.sop, sentinel_S + 1)


def _replace_inputs(
    inputs: NDArray[np.int32], written: _Written, plan: BlankPlan, marks: BlankMarks
) -> None:
    """Puts [dBLOCK] in place of some of the tokens that part B reads, at token level only."""
    if marks.block_mask_prob == 0.0:
        return
    owner_S = np.repeat(np.arange(len(plan)), plan.num_spans_N)
    token_level_S = np.isin(plan.kind_N, TOKEN_LEVEL)[owner_S]
    chosen_S = np.where(token_level_S, plan.written_S, 0)
    at = ragged.spread(written.first_S, chosen_S)
    keys = np.repeat(plan.keys_N[owner_S], chosen_S)
    place = written.read_W[at] - np.repeat(written.begin_S, chosen_S)
    replaced = hashing.uniform(keys, place + DBLOCK_DRAWS) < marks.block_mask_prob
    inputs[at[replaced]] = marks.dblock


def _lay_out(
    context: NDArray[np.int32],
    inputs: NDArray[np.int32],
    targets: NDArray[np.int32],
    mask_position_S: NDArray[np.int32],
    written: _Written,
    plan: BlankPlan,
    marks: BlankMarks,
) -> Rows:
    """Part A (context) and part B (inputs, targets) of each row, one behind the other."""
    lengths_N = plan.row_lengths_N
    parts = np.stack((plan.sep_N, lengths_N - plan.sep_N), axis=1).ravel()
    in_context = np.repeat(np.tile([True, False], len(plan)), parts)
    at = np.flatnonzero(~in_context)
    ids = np.empty(len(in_context), np.int32)
    ids[in_context] = context
    row_targets = ids.copy()
    ids[at] = inputs
    row_targets[at] = targets

    begin_N = ragged.offsets(lengths_N)[:-1]
    position = np.arange(len(ids), dtype=np.int32)
    position -= np.repeat(begin_N.astype(np.int32), lengths_N)
    with_sentinels = marks.sentinel_position >= 0
    position[at] = (
        marks.sentinel_position if with_sentinels else np.repeat(mask_position_S, plan.written_S)
    )
    block_position = np.zeros(len(ids), np.int32)
    one_only = marks.block_positions == "none"
    block_position[at] = 1 if one_only else ragged.within(plan.written_S) + 1

    learned = _learned(written, plan)
    weights = np.zeros(len(ids), np.float32)
    weights[at] = learned
    kind = np.zeros(len(ids), np.uint8)
    kind[at] = np.repeat(plan.kind_N, parts[1::2]) * learned
    return Rows(lengths_N, plan.sep_N, ids, position, block_position, row_targets, weights, kind)


def _learned(written: _Written, plan: BlankPlan) -> NDArray[np.bool_]:
    """Whether each position of part B carries loss: all but those that write the prompt (W,)."""
    if not plan.prompt_N.any():
        return np.ones(len(written.read_W), np.bool_)
    first_learned_S = written.begin_S + 1 + np.repeat(plan.prompt_N, plan.num_spans_N)
    return written.read_W >= np.repeat(first_learned_S, plan.written_S)

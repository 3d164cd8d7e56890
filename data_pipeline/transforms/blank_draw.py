"""Which tokens are blanked: token-, sentence- and document-level draws for many pieces at once.

Every draw is a hash of the piece's key and a draw number, so that a piece is blanked alike whatever
stands beside it. Draw numbers: the six below, then ranges for the spans and the sentences.

    token level      Poisson lengths until 15 % are covered, then placed at least one token apart
    sentence level   shuffled sentences until 15 % are covered
    document level   one stretch of 50 % or more, inside the text or at its end
    single           one short span
    whole            everything behind CLS, ours

GLM (Du et al. 2022), sections 2.1 and 2.2.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline import hashing, ragged
from data_pipeline.rows import KINDS, Pieces
from data_pipeline.transforms.blank_config import BlankConfig
from data_pipeline.transforms.blank_plan import BlankPlan
from data_pipeline.transforms.sentence_spans import sentence_spans
from data_pipeline.transforms.span_lengths import SpanLengths

SINGLE_DRAW, KIND_DRAW, FORM_DRAW, GENERATION_DRAW, PLACE_DRAW, WHOLE_DRAW = range(6)
SPAN_LENGTH_DRAWS = 1 << 32  # + number of the span
SPAN_PLACE_DRAWS = 2 << 32  # + number of the span
SENTENCE_DRAWS = 3 << 32  # + number of the sentence
LOW_WORD = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True)
class _Texts:
    """M of the N pieces, as the draws see them."""

    piece_M: NDArray[np.int64]  # index among the N
    keys_M: NDArray[np.uint64]
    length_M: NDArray[np.int64]  # n: tokens with CLS and eos
    prompt_M: NDArray[np.int64]
    ends_document_M: NDArray[np.bool_]
    spare_M: NDArray[np.int64]  # positions by which the row may be longer than the text

    def take(self, chosen: NDArray[np.bool_]) -> Self:
        return type(self)(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @property
    def first_M(self) -> NDArray[np.int64]:
        """The first token that may be blanked."""
        return 1 + self.prompt_M

    @property
    def room_M(self) -> NDArray[np.int64]:
        """Tokens that may be blanked: neither CLS, prompt, nor the last one (eos or not)."""
        return np.maximum(self.length_M - 2 - self.prompt_M, 0)

    @property
    def max_spans_M(self) -> NDArray[np.int64]:
        """Blanks the row has room for: each adds a mask or eop, and a sop."""
        return self.spare_M // 2

    def budget_M(self, ratio: float) -> NDArray[np.int64]:
        """Tokens the blanks hold at least: the ratio of the text without its prompt, 1 or more."""
        return np.maximum((ratio * (self.length_M - self.prompt_M)).astype(np.int64), 1)


@dataclass(frozen=True)
class _Drawn:
    """Spans of some pieces, and what was left out. `order_S`: rank in part B, 32 random bits."""

    piece_S: NDArray[np.int64]
    start_S: NDArray[np.int64]
    length_S: NDArray[np.int64]
    order_S: NDArray[np.uint64]
    lost_M: NDArray[np.int64]
    unplaced_M: NDArray[np.int64]
    clipped_M: NDArray[np.int64]


def draw_plan(
    pieces: Pieces,
    keys_N: NDArray[np.uint64],
    max_row_tokens_N: NDArray[np.int64],
    config: BlankConfig,
    lengths: SpanLengths,
) -> BlankPlan:
    """The blanks of N pieces.

    keys_N: hash keys of the pieces; max_row_tokens_N: longest row that each may become.
    Raises ValueError if a piece is longer than its row may be, or holds no token beside CLS.
    """
    length_N = pieces.source_lengths_N
    _check_lengths(length_N, max_row_tokens_N)
    texts = _Texts(
        np.arange(len(pieces)),
        keys_N,
        length_N,
        pieces.prompt_N,
        pieces.ends_document_N,
        max_row_tokens_N - length_N,
    )
    kind_N = draw_kinds(keys_N, config)
    suffix_N = np.zeros(len(pieces), np.bool_)
    all_drawn: list[tuple[_Texts, _Drawn]] = []
    for kind in np.flatnonzero(np.bincount(kind_N, minlength=len(KINDS))):
        some = texts.take(kind_N == kind) if (kind_N != kind).any() else texts
        if KINDS[kind] == "token":
            drawn = _draw_spans(some, some.budget_M(config.mask_ratio), lengths)
        elif KINDS[kind] == "single":
            drawn = _draw_spans(some, np.ones(len(some.piece_M), np.int64), lengths)
        elif KINDS[kind] == "sentence":
            drawn = _draw_sentences(some, pieces, config)
        else:
            is_whole = KINDS[kind] == "whole"
            drawn, suffix_N[some.piece_M] = _draw_stretches(some, config, is_whole=is_whole)
        all_drawn.append((some, drawn))
    return _assemble(texts, kind_N, suffix_N, all_drawn, config)


def _check_lengths(length_N: NDArray[np.int64], max_row_tokens_N: NDArray[np.int64]) -> None:
    too_long = np.flatnonzero(length_N > max_row_tokens_N)
    if len(too_long):
        i = too_long[0]
        raise ValueError(
            f"a piece of {length_N[i]} tokens does not fit a row of {max_row_tokens_N[i]}. "
            "Cut the document, or raise row_tokens."
        )
    if (length_N < 2).any():
        raise ValueError("a piece must hold a token beside CLS, got an empty one.")


def draw_kinds(keys_N: NDArray[np.uint64], config: BlankConfig) -> NDArray[np.uint8]:
    """The kind of blank of each piece, an index into KINDS."""
    mixed = [KINDS.index(name) for name in ("token", "sentence", "document")]
    upto = np.cumsum([config.token_prob, config.sentence_prob, config.document_prob])
    upto = upto / upto[-1]  # the shares may miss 1 by rounding
    draw = np.searchsorted(upto, hashing.uniform(keys_N, KIND_DRAW), side="right")
    kind_N = np.array(mixed, np.uint8)[draw]
    single = hashing.uniform(keys_N, SINGLE_DRAW) < config.single_span_prob
    kind_N[single] = KINDS.index("single")
    whole = hashing.uniform(keys_N, WHOLE_DRAW) < config.whole_prob
    kind_N[whole] = KINDS.index("whole")
    return kind_N


def _draw_spans(texts: _Texts, budget_M: NDArray[np.int64], lengths: SpanLengths) -> _Drawn:
    """Token level: lengths until they hold the budget, then places at least one token apart."""
    owner, number, length, before = _draw_lengths(texts.keys_M, budget_M, lengths)
    left = texts.room_M[owner] - before - number  # one token between spans
    too_short = left < 1
    lost = ~too_short & (number >= texts.max_spans_M[owner])
    clipped = np.maximum(length - left, 0)
    placed = ~(too_short | lost)
    num_texts = len(texts.piece_M)
    tally = [np.bincount(owner[where], minlength=num_texts) for where in (lost, too_short)]
    tally.append(np.bincount(owner[placed], clipped[placed], num_texts).astype(np.int64))

    owner, number, length = owner[placed], number[placed], (length - clipped)[placed]
    bits = hashing.draws(texts.keys_M[owner], number + SPAN_PLACE_DRAWS)
    order = ragged.order_by(owner, bits >> np.uint64(32))
    length, bits = length[order], bits[order]
    offsets_M1 = ragged.offsets(np.bincount(owner, minlength=num_texts))
    free_M = texts.room_M - ragged.sums(length, offsets_M1) - np.diff(offsets_M1) + 2
    offset = ((bits >> np.uint64(32)) * free_M[owner].astype(np.uint64)) >> np.uint64(32)
    start = texts.first_M[owner] + offset.astype(np.int64)
    start += ragged.sums_before(length + 1, offsets_M1)
    return _Drawn(texts.piece_M[owner], start, length, bits & LOW_WORD, *tally)


def _draw_lengths(
    keys_M: NDArray[np.uint64], budget_M: NDArray[np.int64], lengths: SpanLengths
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Spans drawn until each budget is reached: owner, number, length, tokens drawn before."""
    sigma = lengths.std * (budget_M / lengths.mean**3) ** 0.5  # of the number of spans needed
    counts_M = np.minimum((budget_M / lengths.mean + 5 * sigma).astype(np.int64) + 2, budget_M)
    while True:
        owner = np.repeat(np.arange(len(keys_M)), counts_M)
        number = ragged.within(counts_M)
        length = lengths(hashing.draws(keys_M[owner], number + SPAN_LENGTH_DRAWS))
        offsets_M1 = ragged.offsets(counts_M)
        short_M = ragged.sums(length, offsets_M1) < budget_M
        if not short_M.any():
            break
        counts_M = np.where(short_M, budget_M, counts_M)  # spans hold a token: always enough
    before = ragged.sums_before(length, offsets_M1)
    needed = before < budget_M[owner]
    return owner[needed], number[needed], length[needed], before[needed]


def _draw_sentences(texts: _Texts, pieces: Pieces, config: BlankConfig) -> _Drawn:
    """Sentence level: shuffled sentences until they hold the budget."""
    owner, start, stop = sentence_spans(pieces, texts.piece_M)
    offsets_M1 = ragged.offsets(np.bincount(owner, minlength=len(texts.piece_M)))
    number = ragged.within(np.diff(offsets_M1))
    bits = hashing.draws(texts.keys_M[owner], number + SENTENCE_DRAWS)
    order = ragged.order_by(owner, bits >> np.uint64(32))
    start, length, bits = start[order], (stop - start)[order], bits[order]
    before = ragged.sums_before(length, offsets_M1)
    needed = before < texts.budget_M(config.sentence_ratio)[owner]
    lost = needed & (number >= texts.max_spans_M[owner])
    placed = needed & ~lost
    zeros_M = np.zeros(len(texts.piece_M), np.int64)
    lost_M = np.bincount(owner[lost], minlength=len(zeros_M))
    return _Drawn(
        texts.piece_M[owner[placed]], start[placed], length[placed], bits[placed] & LOW_WORD,
        lost_M, zeros_M, zeros_M,
    )  # fmt: skip


def _draw_stretches(
    texts: _Texts, config: BlankConfig, *, is_whole: bool
) -> tuple[_Drawn, NDArray[np.bool_]]:
    """Document level: one stretch inside the text, or (True in the second array) its suffix.

    is_whole: the suffix is all but CLS.
    """
    longest_M = np.maximum(texts.length_M - 2, 1)
    shortest_M = (config.min_generation_ratio * texts.length_M).astype(np.int64)
    shortest_M = np.clip(shortest_M, 1, longest_M)
    if config.direction == "unidirectional":
        shortest_M = longest_M
    if is_whole:
        shortest_M = longest_M = texts.length_M - 1
    draw_M = hashing.uniform_int(texts.keys_M, GENERATION_DRAW, longest_M - shortest_M + 1)
    generation_M = shortest_M + draw_M
    infill_M = hashing.uniform(texts.keys_M, FORM_DRAW) < config.infill_prob
    infill_M &= (texts.room_M >= 1) & (texts.spare_M >= 2) & (config.direction == "bidirectional")
    infill_M &= not is_whole
    suffix_M = ~infill_M & (texts.spare_M >= 1)

    inside_M = np.minimum(generation_M, texts.room_M)
    offset_M = hashing.uniform_int(texts.keys_M, PLACE_DRAW, texts.room_M - inside_M + 1)
    start_M = np.where(infill_M, texts.first_M + offset_M, texts.length_M - generation_M)
    length_M = np.where(infill_M, inside_M, generation_M)
    placed = infill_M | suffix_M
    zeros_M = np.zeros(len(placed), np.int64)
    drawn = _Drawn(
        texts.piece_M[placed], start_M[placed], length_M[placed], zeros_M[placed].astype(np.uint64),
        (~placed).astype(np.int64), zeros_M, generation_M * placed - length_M * placed,
    )  # fmt: skip
    return drawn, suffix_M


def _assemble(
    texts: _Texts,
    kind_N: NDArray[np.uint8],
    suffix_N: NDArray[np.bool_],
    all_drawn: list[tuple[_Texts, _Drawn]],
    config: BlankConfig,
) -> BlankPlan:
    """One plan of all that was drawn, the spans of each piece in the order of part B."""
    lost_N, unplaced_N, clipped_N = (np.zeros(len(kind_N), np.int32) for _ in range(3))
    for some, drawn in all_drawn:
        lost_N[some.piece_M] = drawn.lost_M
        unplaced_N[some.piece_M] = drawn.unplaced_M
        clipped_N[some.piece_M] = drawn.clipped_M

    def joined(name: str) -> NDArray:
        return np.concatenate(
            [getattr(drawn, name) for _, drawn in all_drawn] or [np.zeros(0, int)]
        )

    piece_S, start_S, length_S = joined("piece_S"), joined("start_S"), joined("length_S")
    rank_S = start_S if config.span_order == "text" else joined("order_S")
    order = ragged.order_by(piece_S, rank_S)
    return BlankPlan(
        source_lengths_N=texts.length_M,
        prompt_N=texts.prompt_M,
        ends_document_N=texts.ends_document_M,
        keys_N=texts.keys_M,
        kind_N=kind_N,
        suffix_N=suffix_N,
        start_S=start_S[order].astype(np.int32),
        length_S=length_S[order].astype(np.int32),
        span_offsets_N1=ragged.offsets(np.bincount(piece_S, minlength=len(kind_N))),
        spans_lost_N=lost_N,
        spans_unplaced_N=unplaced_N,
        tokens_clipped_N=clipped_N,
    )

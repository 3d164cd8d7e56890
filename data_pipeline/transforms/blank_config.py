"""Settings of blank infilling (GLM): which sort of blank, how much of it, the named ablations."""

from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

_PROBS = (
    "token_prob",
    "sentence_prob",
    "document_prob",
    "single_span_prob",
    "whole_prob",
    "infill_prob",
    "block_mask_prob",
)
_RATIOS = ("mask_ratio", "sentence_ratio", "min_generation_ratio")


@dataclass(frozen=True, kw_only=True)
class BlankConfig:
    """How text is blanked out. The defaults are the base model of Du et al. 2022.

    Raises ValueError where a value lies outside its range or values contradict each other.
    """

    token_prob: float = 1.0
    """Share of documents with token-level blanks, [MASK]: many short spans."""
    sentence_prob: float = 0.0
    """Share of documents with sentence-level blanks, [sMASK]: whole sentences."""
    document_prob: float = 0.0
    """Share of documents with a document-level blank, [gMASK]: one long stretch."""
    single_span_prob: float = 0.0
    """Share of documents, drawn before the three above, with one short span only."""
    whole_prob: float = 0.0
    """Share of documents, drawn before all others, that are written whole from [gMASK] alone: what
    is left of them is in the latent vector, if there is one."""

    mask_ratio: float = 0.15
    """Share of a text (CLS and eos counted, its prompt not) that token-level blanks reach."""
    sentence_ratio: float = 0.15
    """Share of a text (counted alike) that sentence-level blanks reach."""
    poisson_lambda: float = 3.0
    """Span lengths in tokens: Poisson with this parameter, conditioned on 1..max_span."""
    max_span: int = 39
    """Longest token-level span in tokens."""
    min_generation_ratio: float = 0.5
    """Shortest document-level blank as a share of the text; the longest is all but two tokens."""
    infill_prob: float = 0.5
    """Share of document-level blanks inside the text (eop is learned); others are its suffix."""
    block_mask_prob: float = 0.0
    """Share of the tokens read in part B that [dBLOCK] replaces (token level, targets stay)."""

    span_order: Literal["shuffled", "text"] = "shuffled"
    """Order in which the blanks are written; "text" is the ablation without shuffling."""
    block_positions: Literal["within_span", "none"] = "within_span"
    """Second position: place inside the span, or ("none") 1 on all of part B."""
    span_marks: Literal["mask", "sentinels"] = "mask"
    """All blanks share one mask token, or each has its own pair of MASKi and sopi (as in T5)."""
    mask_tokens: Literal["by_kind", "single"] = "by_kind"
    """[MASK], [sMASK] and [gMASK] by kind of blank, or [MASK] for all."""
    direction: Literal["bidirectional", "unidirectional"] = "bidirectional"
    """Or "unidirectional": part A is CLS and one token, the rest is written (document level)."""

    def __post_init__(self) -> None:
        for name in _PROBS:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}.")
        for name in _RATIOS:
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} must lie in (0, 1), got {getattr(self, name)}.")
        total = self.token_prob + self.sentence_prob + self.document_prob
        if abs(total - 1.0) > 1e-6:
            raise ValueError(
                f"token_prob + sentence_prob + document_prob must be 1, got {total:g} "
                f"({self.token_prob:g} + {self.sentence_prob:g} + {self.document_prob:g})."
            )
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal and getattr(self, name) not in get_args(hint):
                allowed = ", ".join(get_args(hint))
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)}.")
        if not self.poisson_lambda > 0.0:
            raise ValueError(f"poisson_lambda must be above 0, got {self.poisson_lambda}.")
        if self.max_span < 1:
            raise ValueError(f"max_span must be at least 1 token, got {self.max_span}.")
        if self.direction == "unidirectional" and self.document_prob - self.single_span_prob != 1.0:
            raise ValueError(
                'direction "unidirectional" writes document-level blanks only, got document_prob '
                f"{self.document_prob:g} and single_span_prob {self.single_span_prob:g}. "
                "Set document_prob to 1 and the other shares to 0."
            )

    def max_spans(self, source_tokens: int) -> int:
        """The most blanks that a text of `source_tokens` tokens can get."""
        return max(1, int(max(self.mask_ratio, self.sentence_ratio) * source_tokens))

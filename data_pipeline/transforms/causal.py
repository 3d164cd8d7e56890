"""Texts written from left to right: a language model's rows, with the text itself as source.

    piece 1 2 3 of a document that ends here, first_position 1

    ids        CLS  1  2  3   eos       CLS begins the text and is no target; eos is one. What reads
    targets      1  2  3  eos eos       eos has no target: its row is there because sources, which
    weights      1  1  1  1   0         hold eos too, are laid into rows of the same lengths.
    position     1  2  3  4   5

Nothing is drawn but what is hidden from an encoder (BERT's 80 / 10 / 10 %, Devlin et al. 2019): a
hash of the piece's key and the token's place, never CLS nor eos.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline import hashing, ragged
from data_pipeline.rows import KINDS, Pieces, Rows, Sources
from data_pipeline.tokenizing.special import SpecialIds, Vocabulary

HIDE_DRAWS = 5 << 32  # + place of the token; see blank_draw.py and blank_build.py for the others
HOW_DRAWS = 6 << 32
TOKEN_DRAWS = 7 << 32
MASKED, REPLACED = 0.8, 0.1  # shares of what is hidden; the rest stays as it is


@dataclass(frozen=True)
class CausalPlan:
    """N pieces as they are."""

    source_lengths_N: NDArray[np.int64]  # tokens with CLS and eos
    prompt_N: NDArray[np.int64]  # stored tokens at the front that carry no loss
    ends_document_N: NDArray[np.bool_]
    keys_N: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.source_lengths_N)

    @property
    def row_lengths_N(self) -> NDArray[np.int64]:
        """Tokens of each row: those of the text."""
        return self.source_lengths_N

    @property
    def num_targets_N(self) -> NDArray[np.int64]:
        """All tokens behind CLS but the prompt's."""
        return self.source_lengths_N - 1 - self.prompt_N

    def take(self, index: Any) -> Self:
        """The plan of some pieces, in the order asked for."""
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    @staticmethod
    def concatenate(plans: Sequence["CausalPlan"]) -> "CausalPlan":
        """One plan of the pieces of several, in order."""
        return CausalPlan(
            *(np.concatenate([getattr(p, f.name) for p in plans]) for f in fields(CausalPlan))
        )

    def counts(self) -> dict[str, int]:
        """Targets, all of one kind."""
        return {
            "pieces_without_target": int((self.num_targets_N == 0).sum()),
            "targets_whole": int(self.num_targets_N.sum()),
        }


class CausalTransform:
    """Rows of whole texts, each token written from those before it."""

    reads_encoder = False

    def __init__(
        self,
        special: SpecialIds,
        *,
        vocab_size: int,
        first_position: int = 0,
        denoise_ratio: float = 0.0,
        keeps_sources: bool = False,
    ) -> None:
        """vocab_size: ids in use. first_position: of CLS. keeps_sources: whether rows carry the
        texts for an encoder, with denoise_ratio of their tokens hidden."""
        self.special, self.vocab_size = special, vocab_size
        self.first_position, self.denoise_ratio = first_position, denoise_ratio
        self.keeps_sources = keeps_sources

    def draw(
        self, pieces: Pieces, keys_N: NDArray[np.uint64], max_row_tokens_N: NDArray[np.int64]
    ) -> CausalPlan:
        """The pieces themselves. Raises ValueError for one longer than its row may be."""
        lengths_N = pieces.source_lengths_N
        if (lengths_N > max_row_tokens_N).any():
            i = int(np.flatnonzero(lengths_N > max_row_tokens_N)[0])
            raise ValueError(
                f"a piece of {lengths_N[i]} tokens does not fit a row of {max_row_tokens_N[i]}. "
                "Cut the document, or raise row_tokens."
            )
        return CausalPlan(lengths_N, pieces.prompt_N, pieces.ends_document_N, keys_N)

    def build(self, tokens: NDArray[np.int32], plan: CausalPlan) -> Rows:
        """The rows of the plan's pieces. tokens: their stored tokens, without CLS and eos."""
        lengths_N = plan.source_lengths_N
        begin_N, last_N = ragged.offsets(lengths_N)[:-1], np.cumsum(lengths_N) - 1
        is_stored = np.ones(int(lengths_N.sum()), np.bool_)
        is_stored[begin_N] = is_stored[last_N[plan.ends_document_N]] = False
        ids = np.empty(len(is_stored), np.int32)
        ids[begin_N] = self.special.cls
        ids[last_N[plan.ends_document_N]] = self.special.eos
        ids[is_stored] = tokens
        place = ragged.within(lengths_N)
        weights = (place >= np.repeat(plan.prompt_N, lengths_N)).astype(np.float32)
        weights[last_N] = 0.0
        sources = None
        if self.keeps_sources:
            seen = hidden_from_encoder(
                ids,
                is_stored,
                place,
                np.repeat(plan.keys_N, lengths_N),
                vocabulary=Vocabulary(self.special, self.vocab_size),
                ratio=self.denoise_ratio,
            )
            sources = Sources(lengths_N, seen, plan.keys_N)
        targets = ids.copy()
        targets[:-1][weights[:-1] > 0] = ids[1:][weights[:-1] > 0]
        return Rows(
            lengths_N=lengths_N,
            sep_N=np.zeros_like(lengths_N),
            ids=ids,
            position=(place + self.first_position).astype(np.int32),
            block_position=np.zeros_like(ids),
            targets=targets,
            weights=weights,
            kind=(KINDS.index("whole") * (weights > 0)).astype(np.uint8),
            sources=sources,
        )


def hidden_from_encoder(
    ids: NDArray[np.int32],
    is_stored: NDArray[np.bool_],
    place: NDArray[np.int64],
    keys: NDArray[np.uint64],
    *,
    vocabulary: Vocabulary,
    ratio: float,
) -> NDArray[np.int32]:
    """The ids with a share `ratio` of those that are stored hidden.

    place: of each token inside its text; keys: the hash key of its text.
    """
    seen = ids.copy()
    if ratio == 0:
        return seen
    hidden = hashing.uniform(keys, place + HIDE_DRAWS) < ratio
    at = np.flatnonzero(hidden & is_stored)
    how = hashing.uniform(keys[at], place[at] + HOW_DRAWS)
    others = hashing.uniform_int(keys[at], place[at] + TOKEN_DRAWS, vocabulary.size)
    replaced = (how >= MASKED) & (how < MASKED + REPLACED)
    seen[at[how < MASKED]] = vocabulary.special.mask
    seen[at[replaced]] = others[replaced]
    return seen

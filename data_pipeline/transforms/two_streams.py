"""Texts written from left to right in one vocabulary, and read by an encoder in another.

    document "a river", decoder ids 7 8 9, encoder ids 31 32; one row of each stream

    ids        CLS  7  8  9  eos        the decoder's row, as causal.py writes it
    targets      7  8  9 eos eos
    sources    CLS 31 32 SEP            the encoder's row of the same document, in its own ids

A document lies in one row with both of its streams, whichever is longer (row_lengths_N), and is
never cut: the same place in two streams of ids is not known. Optimus (Li et al. 2020), section 4.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.rows import Pieces, Rows, Sources
from data_pipeline.tokenizing.special import Vocabulary
from data_pipeline.transforms.causal import CausalPlan, CausalTransform, hidden_from_encoder


@dataclass(frozen=True)
class TwoStreamPlan:
    """N documents as they are."""

    decoder: CausalPlan
    encoder_lengths_N: NDArray[np.int64]  # tokens of each source with CLS and SEP

    def __len__(self) -> int:
        return len(self.encoder_lengths_N)

    @property
    def row_lengths_N(self) -> NDArray[np.int64]:
        """The room of each document: its longer stream."""
        return np.maximum(self.decoder.row_lengths_N, self.encoder_lengths_N)

    @property
    def num_targets_N(self) -> NDArray[np.int64]:
        """The decoder's tokens behind CLS but the prompt's."""
        return self.decoder.num_targets_N

    def take(self, index: Any) -> Self:
        """The plan of some documents, in the order asked for."""
        return type(self)(self.decoder.take(index), self.encoder_lengths_N[index])

    @staticmethod
    def concatenate(plans: Sequence["TwoStreamPlan"]) -> "TwoStreamPlan":
        """One plan of the documents of several, in order."""
        return TwoStreamPlan(
            CausalPlan.concatenate([p.decoder for p in plans]),
            np.concatenate([p.encoder_lengths_N for p in plans]),
        )

    def counts(self) -> dict[str, int]:
        """Targets, and the tokens of both streams."""
        return self.decoder.counts() | {
            "tokens_decoder": int(self.decoder.row_lengths_N.sum()),
            "tokens_encoder": int(self.encoder_lengths_N.sum()),
        }


class TwoStreamTransform:
    """Rows of whole texts, with the same texts as an encoder of another vocabulary reads them."""

    reads_encoder = True

    def __init__(
        self, decoder: CausalTransform, encoder: Vocabulary, *, denoise_ratio: float = 0.0
    ) -> None:
        """decoder: of the written rows. denoise_ratio: share of the encoder's tokens that are
        hidden from it."""
        self.decoder, self.encoder, self.denoise_ratio = decoder, encoder, denoise_ratio
        self.vocab_size = decoder.vocab_size

    def draw(
        self, pieces: Pieces, keys_N: NDArray[np.uint64], max_row_tokens_N: NDArray[np.int64]
    ) -> TwoStreamPlan:
        """The documents themselves.

        Raises ValueError for a piece that is no whole document, or longer than its row may be.
        """
        assert pieces.encoder_lengths_N is not None
        is_cut_N = (pieces.start_N > 0) | ~pieces.ends_document_N
        if is_cut_N.any():
            raise ValueError(
                f"document {pieces.document_N[is_cut_N.argmax()]} is longer than "
                "data.packing.source_tokens, and one with two streams is never cut. Raise "
                "source_tokens, or prepare with --max-tokens."
            )
        encoder_lengths_N = pieces.encoder_lengths_N + 2
        is_long_N = encoder_lengths_N > max_row_tokens_N
        if is_long_N.any():
            at = int(is_long_N.argmax())
            raise ValueError(
                f"document {pieces.document_N[at]} has {encoder_lengths_N[at]} tokens of the "
                f"encoder (CLS and SEP counted), more than a row of {max_row_tokens_N[at]}. Raise "
                "data.packing.row_tokens, or prepare with --max-tokens."
            )
        return TwoStreamPlan(self.decoder.draw(pieces, keys_N, max_row_tokens_N), encoder_lengths_N)

    def build(self, tokens: NDArray[np.int32], plan: TwoStreamPlan) -> Rows:
        """The rows of the plan's documents. tokens: the decoder's of all, then the encoder's."""
        num_stored = int((plan.decoder.source_lengths_N - 2).sum())
        rows = self.decoder.build(tokens[:num_stored], plan.decoder)
        return replace(rows, sources=self._sources(tokens[num_stored:], plan))

    def _sources(self, stored: NDArray[np.int32], plan: TwoStreamPlan) -> Sources:
        lengths_N, special = plan.encoder_lengths_N, self.encoder.special
        begin_N, last_N = ragged.offsets(lengths_N)[:-1], np.cumsum(lengths_N) - 1
        is_stored = np.ones(int(lengths_N.sum()), np.bool_)
        is_stored[begin_N] = is_stored[last_N] = False
        ids = np.empty(len(is_stored), np.int32)
        ids[begin_N], ids[last_N], ids[is_stored] = special.cls, special.sep, stored
        keys_N = plan.decoder.keys_N
        seen = hidden_from_encoder(
            ids,
            is_stored,
            ragged.within(lengths_N),
            np.repeat(keys_N, lengths_N),
            vocabulary=self.encoder,
            ratio=self.denoise_ratio,
        )
        return Sources(lengths_N, seen, keys_N)

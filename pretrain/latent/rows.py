"""Documents as rows of their own, in their order, made by the transform that training uses.

    rows = TextRows(MemorySplit.from_documents(ids), transform, seed=0, source_tokens=64)
    batch = rows.batch(np.array([3, 1]))       # (2, T), T the longer of the two

A row is the same in any company: what is drawn for it is a hash of its document's number. Where a
document is longer than `source_tokens` it is cut at sentence ends, as in training.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.hashing import key
from data_pipeline.packing.cut import cut_documents, read_documents
from data_pipeline.packing.loader import Batch, Position, batch_of
from data_pipeline.packing.plan import PlanReport, WindowPlan
from data_pipeline.protocols import Split, Transform
from data_pipeline.tokenizing.special import Vocabulary
from data_pipeline.transforms.blank import BlankConfig, BlankTransform
from pretrain.objectives.latent import LatentObjective
from pretrain.settings.latent_config import GlmVaeConfig

ROOM = 4  # times source_tokens: a row is never short of room for what its blanks add

# Every text from [gMASK] alone, whatever shares of blanks a run was trained with.
WHOLE_TEXTS: dict[str, Any] = {
    "token_prob": 0.0,
    "sentence_prob": 0.0,
    "document_prob": 1.0,
    "single_span_prob": 0.0,
    "whole_prob": 1.0,
}


def blanks_of(objective: LatentObjective) -> BlankConfig | None:
    """How an objective blanks texts out; None where it writes them whole."""
    config = objective.config
    return config.blanks if isinstance(config, GlmVaeConfig) else None


def whole_transform(
    objective: LatentObjective, vocabulary: Vocabulary, *, source_tokens: int
) -> Transform:
    """How texts become rows that are written whole, from nothing but z."""
    blanks, (special, vocab_size) = blanks_of(objective), vocabulary
    if blanks is None:
        return objective.transform(special, source_tokens=source_tokens, vocab_size=vocab_size)
    return BlankTransform(
        replace(blanks, **WHOLE_TEXTS),
        special,
        source_tokens=source_tokens,
        vocab_size=vocab_size,
        keeps_sources=True,
    )


class TextRows:
    """N rows, one text each."""

    def __init__(
        self,
        split: Split,
        transform: Transform,
        *,
        seed: int,
        source_tokens: int,
        num_documents: int | None = None,
    ) -> None:
        """source_tokens: of the longest text, CLS and eos counted. num_documents: the first so many
        of the split; None: all."""
        self.split = split
        count = split.num_documents if num_documents is None else num_documents
        documents = read_documents(
            split,
            np.arange(min(count, split.num_documents)),
            reads_encoder=transform.reads_encoder,
        )
        stretches = cut_documents(documents, np.full(len(documents.number_N), source_tokens))
        pieces = stretches.pieces()
        self.document_N = pieces.document_N
        self.start_N = pieces.start_N + pieces.prompt_N  # where what is learned begins
        self.stop_N = pieces.stop_N
        self.num_cut = int((np.bincount(stretches.owner_N) > 1).sum())
        keys_N = key(seed, 0, pieces.document_N, pieces.start_N)
        plan = transform.draw(pieces, keys_N, np.full(len(pieces), ROOM * source_tokens))
        self.lengths_N: NDArray[np.int64] = np.asarray(plan.row_lengths_N)
        self.num_targets_N: NDArray[np.int64] = np.asarray(plan.num_targets_N)
        every = np.arange(len(pieces))
        self._window = WindowPlan(
            split,
            transform,
            ROOM * source_tokens,
            stretches,
            plan,
            order=every,
            row_offsets_R1=np.arange(len(pieces) + 1),
            source_tokens_R=stretches.source_lengths_N,
            report=_NO_REPORT,
        )

    def __len__(self) -> int:
        return len(self.lengths_N)

    def batch(self, index_B: NDArray[np.int64]) -> Batch:
        """The rows with these numbers, as wide as the longest of them."""
        width = int(self.lengths_N[index_B].max())
        return batch_of(replace(self._window, row_tokens=width).build(index_B), Position(), 0)

    def in_batches(self, num_rows: int) -> Iterator[NDArray[np.int64]]:
        """All rows, the longest first, so many at a time: numbers (B,)."""
        order = np.argsort(-self.lengths_N, kind="stable")
        for first in range(0, len(order), num_rows):
            yield order[first : first + num_rows]

    def tokens(self, number: int) -> NDArray[np.int32]:
        """What is learned of text `number`: its stored tokens behind its prompt."""
        one = slice(number, number + 1)
        return self.split.tokens(self.document_N[one], self.start_N[one], self.stop_N[one])


_NO_REPORT = PlanReport(
    num_rows=0, row_tokens=0, tokens=0, source_tokens=0, stored_tokens=0, documents=0,
    documents_long=0, documents_cut_to_fill=0, pieces=0, pieces_all_prompt=0, counts={},
)  # fmt: skip

"""A split held in memory: what a reader of shards offers, for a few documents that are no files.

split = MemorySplit.from_documents([[5, 6, 7], [8]], sentence_ends=[[3], []])
split.tokens(np.array([1, 0]), np.array([0, 1]), np.array([1, 3]))      # [8, 6, 7]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_pipeline import ragged


@dataclass(frozen=True)
class MemorySplit:
    """Documents in memory with the methods of `data_pipeline.storage.shards.Split`."""

    flat_tokens: NDArray[np.int32]
    token_offsets: NDArray[np.int64]
    prompts: NDArray[np.int64]
    flat_sentence_ends: NDArray[np.int64]
    sentence_offsets: NDArray[np.int64]
    name: str = "memory"
    fingerprint: str = "memory"
    encoder: "MemorySplit | None" = None
    """The same documents under a second tokenizer."""

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[ArrayLike],
        *,
        prompt_lengths: ArrayLike | None = None,
        sentence_ends: Sequence[ArrayLike] | None = None,
    ) -> "MemorySplit":
        """Documents as token ids; without prompts and sentence ends there are none."""
        tokens, token_offsets = _flat(documents, np.int32)
        ends = sentence_ends if sentence_ends is not None else [[] for _ in documents]
        flat_ends, sentence_offsets = _flat(ends, np.int64)
        prompts = np.zeros(len(documents)) if prompt_lengths is None else prompt_lengths
        prompts = np.asarray(prompts, dtype=np.int64)
        return cls(tokens, token_offsets, prompts, flat_ends, sentence_offsets)

    @property
    def num_documents(self) -> int:
        return len(self.prompts)

    @property
    def num_tokens(self) -> int:
        return int(self.token_offsets[-1])

    def lengths(self, document_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Stored tokens of each document, its prompt included."""
        return self.token_offsets[document_N + 1] - self.token_offsets[document_N]

    def prompt_lengths(self, document_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leading tokens of each document that are prompt."""
        return self.prompts[document_N]

    def sentence_ends(
        self, document_N: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Token counts after which sentences end, end to end, and where each document's begin."""
        first_N = self.sentence_offsets[document_N]
        counts_N = self.sentence_offsets[document_N + 1] - first_N
        return self.flat_sentence_ends[ragged.spread(first_N, counts_N)], ragged.offsets(counts_N)

    def tokens(
        self, document_N: NDArray[np.int64], start_N: NDArray[np.int64], stop_N: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """The stretches of the given documents, end to end."""
        first_N = self.token_offsets[document_N] + start_N
        return self.flat_tokens[ragged.spread(first_N, stop_N - start_N)]


def _flat(lists: Sequence[ArrayLike], dtype: type) -> tuple[NDArray, NDArray[np.int64]]:
    arrays = [np.asarray(values, dtype=dtype) for values in lists]
    flat = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
    return flat, ragged.offsets([len(array) for array in arrays])

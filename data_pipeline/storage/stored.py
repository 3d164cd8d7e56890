"""Documents as they are stored: what prepare hands to the shard writer, many at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged


@dataclass(frozen=True)
class StoredDocuments:
    """N documents end to end: document i owns lengths_N[i] tokens and num_ends_N[i] sentence ends.

    A document is its prompt, then its text. Sentence ends are token counts from its first token.
    encoder: the same documents under a second tokenizer, where shards hold two streams; whatever
    is done to the documents is done to both.
    """

    tokens: NDArray[np.int32]
    lengths_N: NDArray[np.int64]
    prompt_lengths_N: NDArray[np.int64]
    sentence_ends: NDArray[np.int64]
    num_ends_N: NDArray[np.int64]
    text_hash_N: NDArray[np.uint64]
    encoder: "StoredDocuments | None" = None

    def __len__(self) -> int:
        return len(self.lengths_N)

    def take(self, chosen_N: NDArray[np.bool_]) -> "StoredDocuments":
        """The documents where `chosen_N` is True."""
        if chosen_N.all():
            return self
        return self.reordered(np.flatnonzero(chosen_N))

    def reordered(self, index_N: NDArray[np.int64]) -> "StoredDocuments":
        """The documents with these numbers, in this order."""
        lengths_N, num_ends_N = self.lengths_N[index_N], self.num_ends_N[index_N]
        first_N, first_end_N = (
            ragged.offsets(c)[index_N] for c in (self.lengths_N, self.num_ends_N)
        )
        return StoredDocuments(
            tokens=self.tokens[ragged.spread(first_N, lengths_N)],
            lengths_N=lengths_N,
            prompt_lengths_N=self.prompt_lengths_N[index_N],
            sentence_ends=self.sentence_ends[ragged.spread(first_end_N, num_ends_N)],
            num_ends_N=num_ends_N,
            text_hash_N=self.text_hash_N[index_N],
            encoder=self.encoder and self.encoder.reordered(index_N),
        )

    def part(self, start: int, stop: int) -> "StoredDocuments":
        """Documents start..stop - 1."""
        tokens = slice(*(int(self.lengths_N[:n].sum()) for n in (start, stop)))
        ends = slice(*(int(self.num_ends_N[:n].sum()) for n in (start, stop)))
        return StoredDocuments(
            tokens=self.tokens[tokens],
            lengths_N=self.lengths_N[start:stop],
            prompt_lengths_N=self.prompt_lengths_N[start:stop],
            sentence_ends=self.sentence_ends[ends],
            num_ends_N=self.num_ends_N[start:stop],
            text_hash_N=self.text_hash_N[start:stop],
            encoder=self.encoder and self.encoder.part(start, stop),
        )

    def narrowed(self) -> "StoredDocuments":
        """One stream with counts of 32 bits and without the hashes: what waits for its index."""
        names = ("lengths_N", "prompt_lengths_N", "sentence_ends", "num_ends_N")
        arrays = {name: getattr(self, name).astype(np.uint32) for name in names}
        return StoredDocuments(tokens=self.tokens, text_hash_N=self.text_hash_N[:0], **arrays)

    def with_prompts(self, prompts: list[NDArray[np.int32]]) -> "StoredDocuments":
        """One stream of the same documents, so far without prompts, each behind its own, whose end
        is an end."""
        added_N = np.array([len(p) for p in prompts], np.int64)
        starts_N = np.cumsum(self.lengths_N) - self.lengths_N
        first_end_N = np.cumsum(self.num_ends_N) - self.num_ends_N
        with_prompt = np.flatnonzero(added_N)
        ends = self.sentence_ends + np.repeat(added_N, self.num_ends_N)
        return StoredDocuments(
            tokens=np.insert(
                self.tokens, np.repeat(starts_N, added_N), np.concatenate(prompts, dtype=np.int32)
            ),
            lengths_N=self.lengths_N + added_N,
            prompt_lengths_N=added_N,
            sentence_ends=np.insert(ends, first_end_N[with_prompt], added_N[with_prompt]),
            num_ends_N=self.num_ends_N + (added_N > 0),
            text_hash_N=self.text_hash_N,
        )

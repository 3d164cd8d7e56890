"""Ids of an indexed dataset become documents, as they are: where sentences end is found out.

Sentences end where sequences do in a document of several, else where the text says so
(sentences.py): the text is tokenized again, and where that gives the same ids its offsets are
theirs. Where it does not, each token stands for what it adds to the one before it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.preparing.megatron_files import IndexedBatch, IndexedFiles, too_many_ids
from data_pipeline.reading.text_lines import MAX_CHARACTERS
from data_pipeline.storage.stored import StoredDocuments
from data_pipeline.tokenizing.backend import EncodedTexts
from data_pipeline.tokenizing.sentences import ends_in_tokens
from data_pipeline.tokenizing.tokenizer import Tokenizer

_BATCH_IDS = 1 << 18
_MAX_PAIRS = 1 << 20  # of tokens whose text is remembered


@dataclass(frozen=True)
class _Document:
    ids: NDArray[np.int32]
    sequence_ends: NDArray[
        np.int64
    ]  # ids after which its sequences end, those without ids left out


@dataclass
class IndexedReader:
    """Turns batches of ids into documents, and counts what it does."""

    tokenizer: Tokenizer
    end_id: int | None
    is_checked: bool
    skipped: Counter[str] = field(default_factory=Counter)
    num_documents: int = 0
    num_ends: int = 0
    num_compared: int = 0  # documents, or sequences of them, whose text was tokenized again
    num_same: int = 0
    _added_texts: dict[tuple[int, int], str] = field(default_factory=dict)

    def documents(self, files: IndexedFiles) -> Iterator[StoredDocuments]:
        """The documents of one data set in their order.

        Raises ValueError where an id is none of the tokenizer's ordinary ones, or where most of
        the text that was compared so far gives other ids.
        """
        for batch in files.batches(_BATCH_IDS, MAX_CHARACTERS + 1):  # and the id that ends one
            batch = self._without_ends(batch)
            self._check(batch, files)
            yield self._stored(batch)
            self._refuse_others(files)

    def _without_ends(self, batch: IndexedBatch) -> IndexedBatch:
        """The batch with one end id less in each document that ends with one."""
        lengths_N = batch.lengths_N
        self.num_documents += len(lengths_N)
        has_ids = np.flatnonzero(lengths_N)
        last = np.cumsum(lengths_N)[has_ids] - 1
        if self.end_id is None or not len(last):
            return batch
        last = last[batch.ids[last] == self.end_id]
        self.num_ends += len(last)
        of_sequence = np.searchsorted(np.cumsum(batch.sequence_lengths), last, side="right")
        lengths = batch.sequence_lengths.copy()
        lengths[of_sequence] -= 1
        ids = np.delete(batch.ids, last)
        return IndexedBatch(batch.first_document, ids, lengths, batch.sequences_N)

    def _check(self, batch: IndexedBatch, files: IndexedFiles) -> None:
        """Raise ValueError where an id is none of the tokenizer's ordinary ones."""
        ids, num_pieces = batch.ids, self.tokenizer.num_pieces
        is_outside = (ids < 0) | (ids >= num_pieces)
        is_wrong = is_outside | self.tokenizer.is_control_V[np.where(is_outside, 0, ids)]
        too_long = batch.lengths_N > MAX_CHARACTERS
        if too_long.any():
            number = batch.first_document + int(too_long.argmax())
            raise too_many_ids(files.tokens_path, number, MAX_CHARACTERS)
        if not is_wrong.any():
            return
        at = int(is_wrong.argmax())
        ends_N = np.cumsum(batch.lengths_N)
        n = int(np.searchsorted(ends_N, at, side="right"))
        place = at - int(ends_N[n] - batch.lengths_N[n])
        where = f"{files.tokens_path}: document {batch.first_document + n} holds"
        if is_outside[at]:
            raise ValueError(
                f"{where} the id {ids[at]} at {place}, outside the tokenizer's own vocabulary "
                f"[0, {num_pieces}). Name the tokenizer that the files were made with."
            )
        raise ValueError(
            f"{where} the control id {ids[at]} ({self.tokenizer.pieces([ids[at]])[0]}) at {place}, "
            "which no text gives. If it ends documents, name it with --end-id; if it parts them, "
            "write the files again with one document for each."
        )

    def _stored(self, batch: IndexedBatch) -> StoredDocuments:
        """The documents that hold any text."""
        first_sequence = ragged.offsets(batch.sequences_N)
        bounds = ragged.offsets(batch.lengths_N)
        ids = batch.ids.astype(np.int32)
        parts = [
            _Document(ids[bounds[n] : bounds[n + 1]], _rising_ends(batch.sequence_lengths[a:b]))
            for n, (a, b) in enumerate(pairwise(first_sequence))
        ]
        texts = [self.tokenizer.decode(d.ids) for d in parts]
        has_text = [bool(text.strip()) for text in texts]
        self.skipped["blank"] += has_text.count(False)
        kept = [(d, t) for d, t, keep in zip(parts, texts, has_text) if keep]
        ends = self._sentence_ends([d for d, _ in kept], [t for _, t in kept])
        hashes = [xxhash.xxh3_64_intdigest(t.encode("utf-8")) for _, t in kept]
        empty = np.zeros(0, np.int64)
        return StoredDocuments(
            tokens=np.concatenate([empty.astype(np.int32), *(d.ids for d, _ in kept)]),
            lengths_N=np.array([len(d.ids) for d, _ in kept], np.int64),
            prompt_lengths_N=np.zeros(len(kept), np.int64),
            sentence_ends=np.concatenate([empty, *ends]),
            num_ends_N=np.array([len(e) for e in ends], np.int64),
            text_hash_N=np.array(hashes, np.uint64),
        )

    def _sentence_ends(
        self, documents: list["_Document"], texts: list[str]
    ) -> list[NDArray[np.int64]]:
        """Of each document: where its sequences end if it has several, else its sentences."""
        ends = [d.sequence_ends for d in documents]
        single = [n for n, d in enumerate(documents) if len(d.sequence_ends) == 1]
        chosen = [texts[n] for n in single]
        encoded = self.tokenizer.encode_with_offsets(chosen)
        flat, counts = ends_in_tokens(chosen, encoded)
        found = np.split(flat, np.cumsum(counts)[:-1]) if single else []
        for k, n in enumerate(single):
            again = encoded.ids[encoded.offsets_N1[k] : encoded.offsets_N1[k + 1]]
            if self._compare(documents[n].ids, again):
                ends[n] = found[k]
            else:
                ends[n] = self._ends_by_tokens(documents[n].ids)
        if self.num_compared < 1000:
            self._compare_sequences([d for d in documents if len(d.sequence_ends) > 1])
        return ends

    def _ends_by_tokens(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """Sentence ends from the text that each token adds to the one before it."""
        tokens = ids.tolist()
        texts = [self.tokenizer.decode(tokens[:1]), *map(self._added, tokens, tokens[1:])]
        bounds = ragged.offsets([len(t) for t in texts])
        encoded = EncodedTexts(ids, np.array([0, len(ids)]), bounds[:-1], bounds[1:])
        return ends_in_tokens(["".join(texts)], encoded)[0]

    def _added(self, before: int, token: int) -> str:
        text = self._added_texts.get((before, token))
        if text is None:
            whole = self.tokenizer.decode([before, token])
            text = whole.removeprefix(self.tokenizer.decode([before]))
            if len(self._added_texts) < _MAX_PAIRS:
                self._added_texts[before, token] = text
        return text

    def _compare_sequences(self, documents: list["_Document"]) -> None:
        sequences = [s for d in documents[:1000] for s in np.split(d.ids, d.sequence_ends[:-1])]
        again = self.tokenizer.encode([self.tokenizer.decode(s) for s in sequences])
        for sequence, ids in zip(sequences, again, strict=True):
            self._compare(sequence, ids)

    def _compare(self, ids: NDArray[np.int32], again: NDArray[np.int32]) -> bool:
        is_same = np.array_equal(ids, again)
        if is_same or self.tokenizer.special.unk not in ids:  # an unknown word is not read back
            self.num_compared += 1
            self.num_same += is_same
        return is_same

    def _refuse_others(self, files: IndexedFiles) -> None:
        if self.is_checked and 2 * self.num_same < self.num_compared:
            raise ValueError(
                f"{files.tokens_path}: of {self.num_compared:,} stretches of text "
                f"{self.num_same:,} give the same ids when they are tokenized again, so these are "
                "the ids of another tokenizer. Name the right one, or, if you know better, "
                "--retokenize ignore."
            )


def _rising_ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(lengths[lengths > 0])

"""Documents to ids, sentence ends and hashes, a batch at a time.

    Document("x.txt:1", "a b. c") -> tokens [5, 6, 2, 7], sentence ends [3, 4], hashes of the text

With a second tokenizer, the encoder's, a document has a second stream of the same kind. A document
goes to validation by the hash of its text, so the choice is the same in every corpus.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline.preparing.length_limits import LengthLimits
from data_pipeline.reading.documents import Document, Tally
from data_pipeline.storage.stored import StoredDocuments
from data_pipeline.tokenizing.sentences import ends_in_tokens
from data_pipeline.tokenizing.tokenizer import Tokenizer

_BATCH_CHARACTERS = 1 << 20  # text encoded in one call of the tokenizer


def encode_documents(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    tally: Tally,
    *,
    encoder: Tokenizer | None = None,
    limits: LengthLimits | None = None,
) -> Iterator[tuple[StoredDocuments, NDArray[np.uint64]]]:
    """Documents as they are stored, in order, and what tells equal ones, (N, 2).

    Two documents are equal if their texts and their prompts are: 128 bits of hash over both.
    Those of which a tokenizer keeps nothing, and those outside `limits`, are left out and counted.
    """
    limits = limits or LengthLimits()
    for batch in _batches(limits.kept_by_words(documents, tally)):
        text_hash_N, identity_N2 = _hashes(batch)
        stored, kept_N = _encoded(batch, text_hash_N, tokenizer)
        tally.skipped["no_tokens"] += int((~kept_N).sum())
        if encoder is not None:
            second, has_text_N = _encoded(batch, text_hash_N, encoder)
            tally.skipped["no_encoder_tokens"] += int((kept_N & ~has_text_N).sum())
            stored, kept_N = replace(stored, encoder=second), kept_N & has_text_N
        stored, identity_N2 = stored.take(kept_N), identity_N2[kept_N]
        kept_N = limits.kept_by_tokens(stored, tally)
        yield stored.take(kept_N), identity_N2[kept_N]


def _encoded(
    batch: list[Document], text_hash_N: NDArray[np.uint64], tokenizer: Tokenizer
) -> tuple[StoredDocuments, NDArray[np.bool_]]:
    """One stream of the documents, and of which the tokenizer keeps something, (N,)."""
    texts = [d.text for d in batch]
    encoded = tokenizer.encode_with_offsets(texts)
    ends, num_ends_N = ends_in_tokens(texts, encoded)
    stored = StoredDocuments(
        tokens=encoded.ids,
        lengths_N=np.diff(encoded.offsets_N1),
        prompt_lengths_N=np.zeros(len(batch), np.int64),
        sentence_ends=ends,
        num_ends_N=num_ends_N,
        text_hash_N=text_hash_N,
    )
    if any(d.prompt for d in batch):
        stored = stored.with_prompts(tokenizer.encode([d.prompt for d in batch]))
    return stored, np.diff(encoded.offsets_N1) > 0


def is_validation(text_hash_N: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """True for a `share` of all hashes, always the same ones and growing with the share."""
    return text_hash_N < np.uint64(share * 2.0**64)


def _hashes(batch: list[Document]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The 64-bit hash of each text, (N,), and 128 bits over prompt and text, (N, 2)."""
    text_hashes, identities = [], []
    for document in batch:
        content = document.text.encode("utf-8")
        text_hashes.append(xxhash.xxh3_64_intdigest(content))
        if document.prompt:  # neither holds a NUL
            content = document.prompt.encode("utf-8") + b"\0" + content
        identities.append(xxhash.xxh3_128_digest(content))
    flat = np.frombuffer(b"".join(identities), ">u8").astype(np.uint64)
    return np.array(text_hashes, np.uint64), flat.reshape(-1, 2)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document.text) + len(document.prompt)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch

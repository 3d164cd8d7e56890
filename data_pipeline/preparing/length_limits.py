"""Which documents are kept by their length: corpora of sentences leave out what is no sentence.

    limits = LengthLimits(min_words=2, max_words=63, max_tokens=256)
    documents = limits.kept_by_words(documents, tally)      # before anything is tokenized
    stored = stored.take(limits.kept_by_tokens(stored, tally))

Words are what white space divides, as in Optimus' data (Li et al. 2020; its published code keeps
sentences below 64 words and 256 tokens). What is left out is counted under a reason of its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.reading.documents import Document, Tally
from data_pipeline.storage.stored import StoredDocuments


@dataclass(frozen=True, kw_only=True)
class LengthLimits:
    """Bounds that a document must keep; None: no bound."""

    min_words: int | None = None
    """Words of its text, at least."""
    max_words: int | None = None
    """Words of its text, at most."""
    max_tokens: int | None = None
    """Its tokens, those of its prompt included, under either tokenizer, at most."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
        if self.min_words and self.max_words and self.min_words > self.max_words:
            raise ValueError(
                f"--min-words {self.min_words} lies above --max-words {self.max_words}: no text "
                "could be kept."
            )

    def set_limits(self) -> dict[str, Any]:
        """Those that are set, by their names."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def kept_by_words(self, documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
        """The documents with enough words and not too many; the others are counted."""
        least, most = self.min_words or 0, self.max_words
        if not least and most is None:
            yield from documents
            return
        for document in documents:
            words = len(document.text.split())
            if words < least:
                tally.skipped["too_few_words"] += 1
            elif most is not None and words > most:
                tally.skipped["too_many_words"] += 1
            else:
                yield document

    def kept_by_tokens(self, stored: StoredDocuments, tally: Tally) -> NDArray[np.bool_]:
        """True for documents of few enough tokens, (N,); each other one is counted once."""
        kept_N = np.ones(len(stored), np.bool_)
        if self.max_tokens is None:
            return kept_N
        named = {"too_many_tokens": stored, "too_many_encoder_tokens": stored.encoder}
        for reason, stream in named.items():
            if stream is not None:
                is_long_N = kept_N & (stream.lengths_N > self.max_tokens)
                tally.skipped[reason] += int(is_long_N.sum())
                kept_N &= ~is_long_N
        return kept_N

"""Where long documents are cut: at sentence ends, every stored token in exactly one piece.

The documents of a window are thought of as laid end to end; a place in that line is a window
coordinate. A set of pieces that covers the window is then nothing but its sorted beginnings.

    documents        0 0 0 0 0 0 0 0 0 1 1 1        lengths 9 and 3
    sentence ends          4     6       9            in window coordinates
    cut at 6 tokens  0 0 0 0|0 0 0 0 0|1 1 1        CLS + 5 reach into the second sentence

A piece of n stored tokens costs its row CLS + n, and eos where the document ends. A piece ends at
the last sentence end that fits, unless that leaves less than half of what is allowed: then it is as
long as allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.protocols import Split
from data_pipeline.rows import Pieces


@dataclass(frozen=True)
class Documents:
    """The index entries of a window's N documents, in their order."""

    number_N: NDArray[np.int64]  # inside the split
    prompt_N: NDArray[np.int64]
    base_N1: NDArray[np.int64]  # window coordinates: document i is base[i] .. base[i + 1] - 1
    sentence_ends: NDArray[np.int64]  # window coordinates, ascending
    encoder_lengths_N: NDArray[np.int64] | None = None  # in the second stream, where it is read

    @property
    def lengths_N(self) -> NDArray[np.int64]:
        return np.diff(self.base_N1)


@dataclass(frozen=True)
class Stretches:
    """N stretches of the documents, in window coordinates, in any order."""

    documents: Documents
    owner_N: NDArray[np.int64]  # place of the document inside the window
    begin_N: NDArray[np.int64]
    end_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.owner_N)

    def take(self, index: NDArray | slice) -> "Stretches":
        """The stretches with the given numbers, or where a mask is true."""
        return Stretches(
            self.documents, self.owner_N[index], self.begin_N[index], self.end_N[index]
        )

    @staticmethod
    def concatenate(parts: Sequence["Stretches"]) -> "Stretches":
        """The stretches of several sets of one window, in order."""
        owners, begins, ends = zip(*((part.owner_N, part.begin_N, part.end_N) for part in parts))
        return Stretches(
            parts[0].documents, np.concatenate(owners), np.concatenate(begins), np.concatenate(ends)
        )

    @cached_property
    def ends_document_N(self) -> NDArray[np.bool_]:
        """True where the document ends, so that eos follows."""
        return self.end_N == self.documents.base_N1[self.owner_N + 1]

    @cached_property
    def source_lengths_N(self) -> NDArray[np.int64]:
        """Tokens of each stretch with CLS and, where the document ends, eos."""
        return 1 + self.end_N - self.begin_N + self.ends_document_N

    @cached_property
    def prompt_N(self) -> NDArray[np.int64]:
        """Tokens at the front of each stretch that are prompt."""
        prompt_end_N = (self.documents.base_N1[:-1] + self.documents.prompt_N)[self.owner_N]
        return np.clip(prompt_end_N - self.begin_N, 0, self.end_N - self.begin_N)

    def pieces(self) -> Pieces:
        """The same as a transform sees them: numbers of documents, places inside them."""
        ends = self.documents.sentence_ends
        first_N = np.searchsorted(ends, self.begin_N, side="right")
        counts_N = np.searchsorted(ends, self.end_N, side="right") - first_N
        inside = ends[ragged.spread(first_N, counts_N)]
        base_N = self.documents.base_N1[self.owner_N]
        encoder_lengths_N = self.documents.encoder_lengths_N
        return Pieces(
            document_N=self.documents.number_N[self.owner_N],
            start_N=self.begin_N - base_N,
            stop_N=self.end_N - base_N,
            prompt_N=self.prompt_N,
            ends_document_N=self.ends_document_N,
            sentence_ends=inside - np.repeat(self.begin_N, counts_N),
            sentence_offsets_N1=ragged.offsets(counts_N),
            encoder_lengths_N=None
            if encoder_lengths_N is None
            else encoder_lengths_N[self.owner_N],
        )


def read_documents(
    split: Split, number_N: NDArray[np.int64], *, reads_encoder: bool = False
) -> Documents:
    """The index entries of the documents with these numbers; reads_encoder: of both streams."""
    base_N1 = ragged.offsets(split.lengths(number_N))
    ends, ends_offsets_N1 = split.sentence_ends(number_N)
    ends = ends + np.repeat(base_N1[:-1], np.diff(ends_offsets_N1))
    encoder_lengths_N = None
    if reads_encoder:
        assert split.encoder is not None
        encoder_lengths_N = split.encoder.lengths(number_N)
    return Documents(number_N, split.prompt_lengths(number_N), base_N1, ends, encoder_lengths_N)


def cut_documents(documents: Documents, limits_N: NDArray[np.int64]) -> Stretches:
    """All documents as stretches of at most limits_N source tokens (CLS and eos counted; >= 3)."""
    owner = np.flatnonzero(documents.lengths_N + 2 > limits_N)
    begin = documents.base_N1[owner]
    cut_owners, cuts = [np.arange(len(limits_N))], [documents.base_N1[:-1]]
    while len(owner):
        remaining = documents.base_N1[owner + 1] - begin
        begin = _next_cut(documents, begin, remaining, limits_N[owner])
        cut_owners.append(owner)
        cuts.append(begin)
        long = documents.base_N1[owner + 1] - begin + 2 > limits_N[owner]
        owner, begin = owner[long], begin[long]
    begins, owners = np.concatenate(cuts), np.concatenate(cut_owners)
    if len(cuts) > 1:
        order = np.argsort(begins, kind="stable")
        begins, owners = begins[order], owners[order]
    return Stretches(documents, owners, begins, np.append(begins[1:], documents.base_N1[-1]))


def _next_cut(
    documents: Documents,
    begin: NDArray[np.int64],
    remaining: NDArray[np.int64],
    limits: NDArray[np.int64],
) -> NDArray[np.int64]:
    # One token stays behind at least: eos alone would be a piece without text.
    longest = np.minimum(limits - 1, remaining - 1)
    at_sentence = last_sentence_end(documents, begin + longest)
    leaves_half = 2 * (1 + at_sentence - begin) >= limits
    return np.where(leaves_half, at_sentence, begin + longest)


def last_sentence_end(documents: Documents, place: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last sentence end of the window at or before each place; -1 where there is none."""
    ends = documents.sentence_ends
    found = np.searchsorted(ends, place, side="right") - 1
    if not len(ends):
        return np.full(len(place), -1)
    return np.where(found >= 0, ends[found], -1)

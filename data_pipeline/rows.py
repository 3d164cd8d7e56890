"""What travels from documents to packed rows: the three values each stage hands to the next.

    Pieces      stretches of documents, cut by the planner           what a transform may look at
    Rows        rows of many pieces, laid end to end, unpacked       what a transform builds
    PackedRows  a (B, T) block of rows with what each token sees     what a model reads

The document "x1 x2 x3" with its second token blanked, as GLM writes it (2D positions):

    ids             CLS  x1  [MASK]  x3  eos  |  sop  x2
    targets         CLS  x1  [MASK]  x3  eos  |  x2   eop
    weights         0    0   0       0   0    |  1    1
    position        0    1   2       3   4    |  2    2
    block_position  0    0   0       0   0    |  1    2

Here sep = 5: what stands before the bar is seen by all, behind it each token sees the past.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The sort of blank a target belongs to; 0 marks positions without a target.
KINDS = ("none", "token", "sentence", "document", "single", "whole")


@dataclass(frozen=True)
class Pieces:
    """N stretches of documents. A stretch of n stored tokens becomes CLS + n tokens (+ eos).

    sentence_ends: for all pieces end to end, the token counts (from the piece's first stored token)
    after which a sentence ends, ascending, in 1..n; piece i owns
    sentence_ends[sentence_offsets_N1[i] : sentence_offsets_N1[i + 1]].
    """

    document_N: NDArray[np.int64]  # number of the document inside its split
    start_N: NDArray[np.int64]  # first stored token of the stretch, counted inside the document
    stop_N: NDArray[np.int64]  # one past its last stored token
    prompt_N: NDArray[np.int64]  # leading tokens that are prompt: never blanked, no loss
    ends_document_N: NDArray[np.bool_]  # True where the document ends here, so that eos follows
    sentence_ends: NDArray[np.int64]
    sentence_offsets_N1: NDArray[np.int64]
    encoder_lengths_N: NDArray[np.int64] | None = None
    """Stored tokens of each piece's whole document in the second stream, where that is read."""

    def __len__(self) -> int:
        return len(self.document_N)

    @property
    def source_lengths_N(self) -> NDArray[np.int64]:
        """Tokens of each piece with its CLS and, where the document ends, its eos."""
        return 1 + self.stop_N - self.start_N + self.ends_document_N


@dataclass(frozen=True)
class Sources:
    """What N pieces read before anything was blanked, end to end, for models that encode them."""

    lengths_N: NDArray[np.int64]
    ids: NDArray[np.int32]  # piece i owns lengths_N[i] of them, CLS first
    keys_N: NDArray[np.uint64]  # the hash key of each piece (hashing.key): what noise is drawn from


@dataclass(frozen=True)
class Rows:
    """Rows of N pieces, end to end: row i owns `lengths_N[i]` entries of every flat array."""

    lengths_N: NDArray[np.int64]
    sep_N: NDArray[np.int64]  # tokens of the bidirectional part A at the front of each row
    ids: NDArray[np.int32]
    position: NDArray[np.int32]
    block_position: NDArray[np.int32]
    targets: NDArray[np.int32]
    weights: NDArray[np.float32]  # 0 where the position carries no loss
    kind: NDArray[np.uint8]  # index into KINDS
    sources: Sources | None = None  # where the transform keeps them


@dataclass(frozen=True)
class PackedSources:
    """The sources of B packed rows, laid end to end like the rows: document d here is d there."""

    ids: NDArray[np.int32]  # (B, T)
    document: NDArray[np.int32]  # (B, T); -1 on padding
    keys: NDArray[np.uint64]  # (B, N) for the N documents of the fullest row; 0 where there is none


@dataclass(frozen=True)
class PackedRows:
    """B rows of T positions. Query i sees key j of its row iff lo[i] <= j < hi[i].

    lo = the document's start, hi = max(i + 1, start + sep), both in packed coordinates, so that
    both rise with i. Padding has document -1 and lo = hi = 0: it sees nothing.
    """

    ids: NDArray[np.int32]
    position: NDArray[np.int32]
    block_position: NDArray[np.int32]
    targets: NDArray[np.int32]
    weights: NDArray[np.float32]
    kind: NDArray[np.uint8]
    document: NDArray[np.int32]  # 0, 1, 2, ... inside each packed row; -1 on padding
    lo: NDArray[np.int32]
    hi: NDArray[np.int32]
    sources: PackedSources | None = None

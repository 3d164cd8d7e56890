"""Where the sentences of pieces lie: what the sentence-level draw chooses from.

CLS a b . c eos    ends [3]    sentences 1..3 and 4 of the tokens, CLS being 0
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.rows import Pieces


def sentence_spans(
    pieces: Pieces, chosen_M: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Owner (index into chosen_M), start and stop of every sentence of the chosen pieces, in order.

    CLS is token 0 and in no sentence, nor are the prompt and eos; an unterminated tail is one.
    """
    low_M = pieces.prompt_N[chosen_M]
    high_M = (pieces.stop_N - pieces.start_N)[chosen_M]
    counts_M = np.diff(pieces.sentence_offsets_N1)[chosen_M]
    owner = np.repeat(np.arange(len(chosen_M)), counts_M)
    ends = pieces.sentence_ends[ragged.spread(pieces.sentence_offsets_N1[chosen_M], counts_M)]
    inner = (ends > low_M[owner]) & (ends < high_M[owner])
    owner, ends = owner[inner], ends[inner]

    has_text = np.flatnonzero(high_M > low_M)
    inner_M = np.bincount(owner, minlength=len(chosen_M))
    sentence_M1 = ragged.offsets(inner_M + (high_M > low_M))
    owners = np.repeat(np.arange(len(chosen_M)), np.diff(sentence_M1))
    starts, stops = np.empty(len(owners), np.int64), np.empty(len(owners), np.int64)
    starts[sentence_M1[has_text]] = low_M[has_text]
    stops[sentence_M1[has_text + 1] - 1] = high_M[has_text]
    at = ragged.spread(sentence_M1[:-1], inner_M)
    stops[at] = ends
    starts[at + 1] = ends
    return owners, starts + 1, stops + 1

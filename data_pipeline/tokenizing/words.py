"""Where words begin, told from pieces alone: for counts of words where there is no text.

    counted = word_table(tokenizer)           # (vocab_size,) bool, by id
    counted[ids].sum()                        # words and ends of texts among these ids

A word is what stands between spaces. Pieces of SentencePiece and byte-level vocabularies carry the
space before them. WordPiece marks what goes on with a word ("##"), so that punctuation, which it
cuts off, counts as a word of its own. Line breaks and tabs inside a byte-level text begin none.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.tokenizing.tokenizer import Tokenizer

SPACE, GOES_ON = "\u2581", "##"  # see Tokenizer.pieces


def word_table(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Which ids begin a word or end a text; no other special does."""
    pieces = np.array(tokenizer.pieces(np.arange(tokenizer.vocab_size)))
    goes_on = np.char.startswith(pieces, GOES_ON)
    begins = ~goes_on if goes_on.any() else np.char.startswith(pieces, SPACE)
    begins[list(set(tokenizer.special.by_name().values()))] = False
    begins[tokenizer.special.eos] = True
    return begins

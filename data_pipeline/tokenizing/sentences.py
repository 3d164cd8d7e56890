"""Where sentences end, judged by the text and never by the strings of tokens.

". ? ! ; :" end a sentence before white space or the end of the text, closing quotes and brackets
included; their full-width forms and the ellipsis anywhere; a newline always.

    sentence_ends('It is 3.14. "Why?" she said.')   # [(11, 11), (18, 18), (28, 28)], not 8
"""

import re

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.tokenizing.backend import EncodedTexts

# Quotes and brackets that close what the sentence opened: ASCII, curly, guillemets, full-width.
_CLOSERS = "\"'\\)\\]\\}\u201d\u2019\u00bb\u300d\u300f\uff09\u3011\u300b"
_WIDE_MARKS = "\u2026\u3002\uff1f\uff01\uff1b\uff1a"
# From the first of several marks only, and never less than all of them: linear in any text.
_ENDS = re.compile(
    rf"(?<![.?!;:])[.?!;:]++[{_CLOSERS}]*+(?=\s|\Z)|[{_WIDE_MARKS}]+[{_CLOSERS}]*|\n+"
)


def sentence_ends(text: str) -> list[tuple[int, int]]:
    """Where sentences end, rising: (the character after the mark, after newlines behind it).

    The end of the text itself is one only if marked. A sentence holds more than white space.
    """
    ends: list[tuple[int, int]] = []
    last = 0
    for match in _ENDS.finditer(text):
        is_newline = match[0][0] == "\n"
        after_mark = match.start() if is_newline else match.end()
        if is_newline and not text[last:after_mark].strip():  # nothing but white space since
            if ends:
                ends[-1] = (ends[-1][0], match.end())
        else:
            ends.append((after_mark, match.end()))
        last = match.end()
    return ends


def ends_in_tokens(
    texts: list[str], encoded: EncodedTexts
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token counts after which sentences end, from each text's first token, and how many each has.

    The counts rise inside each text, in 1..its number of tokens. A token that reaches over a mark
    belongs to the sentence before it, one that reaches over a newline to the sentence behind. The
    rest of a text without a mark is a sentence too: the last count is the number of tokens.
    """
    first_character = ragged.offsets([len(t) for t in texts])
    offsets_N1 = encoded.offsets_N1
    found = [(n, *end) for n, text in enumerate(texts) for end in sentence_ends(text)]
    owner, mark, newline = np.array(found, np.int64).reshape(-1, 3).T
    before_mark = np.searchsorted(encoded.starts, mark + first_character[owner], side="left")
    before_newline = np.searchsorted(encoded.ends, newline + first_character[owner], side="right")
    # A token without width may stand first in the next text, at the same place as this end.
    reached = np.minimum(np.maximum(before_mark, before_newline), offsets_N1[owner + 1])
    inside = reached[reached > offsets_N1[owner]]
    ends = np.unique(np.append(inside, offsets_N1[1:][np.diff(offsets_N1) > 0]))
    owner = np.searchsorted(offsets_N1, ends - 1, side="right") - 1
    return ends - offsets_N1[owner], np.bincount(owner, minlength=len(texts))

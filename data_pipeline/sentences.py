"""Where sentences end, judged by the text and never by the strings of tokens.

". ? ! ; :" end a sentence before white space or the end of the text, closing quotes and brackets
included; their full-width forms and the ellipsis anywhere; a newline always.

    sentence_ends('It is 3.14. "Why?" she said.')   # [(11, 11), (18, 18), (28, 28)], not 8
"""

import re

import numpy as np
from numpy.typing import NDArray

# Quotes and brackets that close what the sentence opened: ASCII, curly, guillemets, full-width.
_CLOSERS = "\"'\\)\\]\\}\u201d\u2019\u00bb\u300d\u300f\uff09\u3011\u300b"
_WIDE_MARKS = "\u2026\u3002\uff1f\uff01\uff1b\uff1a"
_ENDS = re.compile(rf"[.?!;:]+[{_CLOSERS}]*(?=\s|\Z)|[{_WIDE_MARKS}]+[{_CLOSERS}]*|\n+")


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
    text: str, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Token counts after which a sentence ends, ascending, without repeats, in 1..len(starts).

    starts, ends: the characters at which each token starts and ends, rising. A token that reaches
    over a mark belongs to the sentence before it, one that reaches over a newline to the sentence
    behind. The rest of a text without a mark is a sentence too: the last entry is the number of
    tokens.
    """
    if not len(starts):
        return np.zeros(0, np.int64)
    bounds = np.array(sentence_ends(text), np.int64).reshape(-1, 2)
    before_mark = np.searchsorted(starts, bounds[:, 0], side="left")
    before_newline = np.searchsorted(ends, bounds[:, 1], side="right")
    counts = np.unique(np.append(np.maximum(before_mark, before_newline), len(starts)))
    return counts[counts > 0]

"""A text with blanks, as a person writes it, into tokens: segments with marks between them.

    parse("The [MASK] sat. [sMASK]", tokenizer)     segments "The", " sat.", ""   marks mask, smask

White space in front of a mark belongs to what fills it, since a token carries the space on its
left; so it is taken off the segment and kept in `spaces`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline.tokenizing.special import SPECIAL_TEXT
from data_pipeline.tokenizing.tokenizer import Tokenizer

MARKS = {SPECIAL_TEXT[name]: name for name in ("mask", "smask", "gmask")}
_MARK = re.compile("|".join(re.escape(text) for text in MARKS))


@dataclass(frozen=True)
class BlankedText:
    """`len(marks)` blanks between `len(marks) + 1` segments of token ids."""

    text: str
    segments: tuple[NDArray[np.int32], ...]
    marks: tuple[str, ...]  # names of special ids: mask, smask or gmask
    spaces: tuple[str, ...]  # white space in front of each mark

    @property
    def continues(self) -> bool:
        """Whether the text ends with [gMASK], which asks for what comes after the text."""
        return self.marks[-1] == "gmask" and not len(self.segments[-1])

    def encode_truth(self, number: int, truth: str, tokenizer: Tokenizer) -> NDArray[np.int32]:
        """The tokens of `truth` where blank `number` stands, with the space in front of it.

        Raises ValueError when nothing is left of it.
        """
        is_first = number == 0 and not len(self.segments[0])
        ids = (
            tokenizer.encode([truth])[0]
            if is_first
            else tokenizer.encode_continuation(self.spaces[number] + truth)
        )
        if not len(ids):
            raise ValueError(f"what fills blank {number + 1} of {self.text!r} must not be empty.")
        return ids


def check_blanks(text: str, source: str = "the text") -> None:
    """ValueError, naming where the text comes from, when it holds no blank."""
    if not _MARK.search(text):
        raise ValueError(
            f"{source} holds no blank: {text!r}. Write [MASK] for some words, [sMASK] for a "
            f"sentence, [gMASK] for a long passage or, at the end, a continuation."
        )


def parse(text: str, tokenizer: Tokenizer) -> BlankedText:
    """The segments and marks of `text`. Raises ValueError when it holds no blank."""
    check_blanks(text)
    marks = [MARKS[found] for found in _MARK.findall(text)]
    pieces = _MARK.split(text)
    spaces = [piece[len(piece.rstrip()) :] for piece in pieces[:-1]]
    kept = [piece.rstrip() for piece in pieces]
    return BlankedText(text, tuple(_encode(kept, tokenizer)), tuple(marks), tuple(spaces))


def _encode(segments: Sequence[str], tokenizer: Tokenizer) -> list[NDArray[np.int32]]:
    first = tokenizer.encode([segments[0]])[0]
    return [first, *(tokenizer.encode_continuation(segment) for segment in segments[1:])]

"""A packed row drawn for people: a line for each token, with what it predicts and what it may see.

     i  token   target  loss   pos  block  sees     012345678901
     0  [CLS]                    0      0  [0, 7)   #######.....
     ...
     7  <sop>   5       token    5      1  [0, 8)   ########....

Wide characters (Chinese, Japanese, Korean, emoji) take two cells of a terminal, marks that sit on
other characters none; columns line up in cells.
"""

import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from data_pipeline.rows import KINDS, PackedRows

Pieces = Callable[[NDArray[np.integer]], Sequence[str]]

HEADINGS = ("i", "token", "target", "loss", "pos", "block", "sees")
TO_THE_RIGHT = {"i", "pos", "block"}
SEEN, HIDDEN = "#", "."


def cells(text: str) -> int:
    """Cells of a terminal that a text takes."""
    return sum(_char_cells(char) for char in text)


def _char_cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def printable(piece: str) -> str:
    """The piece on one line: what has no picture of its own is written as an escape."""
    return "".join(
        char if char.isprintable() or _char_cells(char) == 0 else repr(char)[1:-1] for char in piece
    )


def draw_row(
    packed: PackedRows,
    row: int,
    pieces: Pieces,
    *,
    captions: Sequence[str] = (),
    picture_tokens: int = 64,
) -> str:
    """Row `row` of a packed block, document by document.

    pieces: gives one string for each id. captions: a line above each document, from the first on.
    picture_tokens: the longest document whose mask is drawn, a column for each token.
    """
    document = packed.document[row]
    num_documents = int(document.max(initial=-1)) + 1
    blocks = []
    for number in range(num_documents):
        (at,) = np.nonzero(document == number)
        caption = captions[number] if number < len(captions) else f"document {number} of the row"
        lines = _draw_document(packed, row, at, pieces, with_mask=len(at) <= picture_tokens)
        blocks.append("\n".join([caption, *lines]))
    num_padding = int((document < 0).sum())
    if num_padding:
        blocks.append(f"{num_padding} of {len(document)} positions are padding")
    return "\n\n".join(blocks) + "\n"


def _draw_document(
    packed: PackedRows, row: int, at: NDArray[np.intp], pieces: Pieces, *, with_mask: bool
) -> list[str]:
    """The table of the document that lies at positions `at`; a rule parts A from B."""
    lo, hi = packed.lo[row, at], packed.hi[row, at]
    learned = packed.weights[row, at] > 0
    tokens = [printable(piece) for piece in pieces(packed.ids[row, at])]
    targets = iter(pieces(packed.targets[row, at][learned]))
    table = [
        (
            str(place),
            token,
            printable(next(targets)) if learned[i] else "",
            KINDS[packed.kind[row, place]] if learned[i] else "",
            str(packed.position[row, place]),
            str(packed.block_position[row, place]),
            f"[{lo[i]}, {hi[i]})",
        )
        for i, (place, token) in enumerate(zip(at, tokens))
    ]
    heading: tuple[str, ...] = HEADINGS
    if with_mask:
        keys = np.arange(at[0], at[-1] + 1)
        heading += ("".join(str(key % 10) for key in keys),)
        table = [
            (*line, "".join(np.where((lo[i] <= keys) & (keys < hi[i]), SEEN, HIDDEN)))
            for i, line in enumerate(table)
        ]
    lines = _align([heading, *table])
    sep = int(hi[0] - lo[0])
    if 0 < sep < len(at):
        lines.insert(1 + sep, "-" * max(cells(line) for line in lines))
    return lines


def _align(table: Sequence[tuple[str, ...]]) -> list[str]:
    """The lines of a table whose columns start in the same cell, numbers flush right."""
    widths = [max(cells(line[column]) for line in table) for column in range(len(table[0]))]
    lines = []
    for line in table:
        padded = [
            _pad(text, width, to_the_right=name in TO_THE_RIGHT)
            for text, width, name in zip(line, widths, table[0])
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _pad(text: str, width: int, *, to_the_right: bool) -> str:
    space = " " * (width - cells(text))
    return space + text if to_the_right else text + space

"""Lines of text out of bytes, each whole or with what is wrong with it; none grows without end.

    lines(iter([b"a\r\nb\xff\nc"]), "x.txt", "utf-8")
    # (1, "a"), (2, Unusable: x.txt, line 2, byte 4: not valid utf-8 ...), (3, "c")

Lines end at \\n, \\r\\n and \\r only: U+2028, U+0085 and their like stay inside the text.
"""

import codecs
import difflib
from collections.abc import Iterable, Iterator
from encodings import aliases

from data_pipeline.reading.decoded_text import NAME_IT, WRONG_BYTE, DecodedText
from data_pipeline.reading.unusable import Refuse, Unusable


class WrongBytes(Unusable):
    """A line that is not of the encoding. text: the line, with lone surrogates for wrong bytes."""

    def __init__(self, where: str, detail: str, text: str) -> None:
        super().__init__("wrong_encoding", where, detail)
        self.text = text


Line = tuple[int, str | Unusable]
MAX_CHARACTERS = 1 << 26  # of one line or document: a file that unpacks without end is bounded
# Python's own notations, not of files, and some that let half a character pass.
_NOT_OF_FILES = {"unicode-escape", "raw-unicode-escape", "undefined", "idna", "punycode", "utf-7"}

_NO_TEXT = {"base64_codec", "bz2_codec", "hex_codec", "quopri_codec", "rot_13", "uu_codec"}
_NO_TEXT |= {"zlib_codec", "mbcs", "utf_7", "idna", "punycode"}
_COMMON = ("utf-8", "utf-16", "utf-32", "latin-1", "cp1252", "gb18030", "big5", "shift_jis")
_COMMON += ("euc-jp", "euc-kr", "koi8-r")


def text_encoding(name: str) -> str:
    """The normal name of an encoding. Raises ValueError if there is none of that name."""
    try:
        found = codecs.lookup(name).name
        if found in _NOT_OF_FILES:
            raise LookupError
        "".encode(found)
    except LookupError as error:
        known = sorted({*_COMMON, *aliases.aliases.values()} - _NO_TEXT)
        near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"--encoding {name} is unknown.{hint} Known are {', '.join(_COMMON)}, "
            "and the other text encodings of Python."
        ) from error
    return found


def lines(
    chunks: Iterator[bytes],
    name: str,
    encoding: str,
    *,
    only_newline: bool = False,
    first_line: int = 1,
    first_byte: int = 0,
) -> Iterator[Line]:
    """(line number from 1, text without its line end); a last line without an end counts.

    In place of its text a line has what is wrong with it: bytes of another encoding, or more than
    MAX_CHARACTERS. only_newline: lines end at \\n alone, as in JSON Lines. The other arguments, and
    what is raised: see DecodedText.
    """
    newlines = "kept" if only_newline else "any"
    text = DecodedText(
        chunks,
        name,
        text_encoding(encoding),
        newlines=newlines,
        first_line=first_line,
        first_byte=first_byte,
    )
    return lines_of(text, text, first_line)


def lines_of(text: DecodedText, stretches: Iterable[str], number: int) -> Iterator[Line]:
    """The lines of stretches of `text`, the first of which has this number."""
    parts, size = [], 0  # of the line at hand; none is kept of one that is too long
    for stretch in stretches:
        first, *rest = stretch.split("\n")
        parts.append(first)
        size += len(first)
        for part in rest:
            yield number, _judged("".join(parts), size, number, text)
            number, parts, size = number + 1, [part], len(part)
        if size > MAX_CHARACTERS:
            parts = []
    if size:
        yield number, _judged("".join(parts), size, number, text)


def usable(numbered: Iterable[Line], refuse: Refuse) -> Iterator[tuple[int, str]]:
    """The lines that have a text, the others are handed to `refuse`."""
    for number, line in numbered:
        if isinstance(line, Unusable):
            refuse(line)
        else:
            yield number, line


def too_long(where: str, what: str) -> Unusable:
    """The error for a line or document of more than MAX_CHARACTERS."""
    return Unusable(
        "too_long",
        where,
        f"{what} of more than {MAX_CHARACTERS:,} characters, the most that is read as one. "
        "Divide it, or leave it out.",
    )


def _judged(line: str, size: int, number: int, text: DecodedText) -> str | Unusable:
    if size > MAX_CHARACTERS:
        return too_long(f"{text.name}:{number}", "a line")
    if text.problem is None or not (wrong := WRONG_BYTE.search(line)):
        return line
    if number == text.problem_line:
        return WrongBytes(text.problem.where, text.problem.detail, line)
    byte = len(line[: wrong.start()].encode(text.encoding, "surrogateescape"))
    detail = f"byte {byte} of the line is not valid {text.encoding}."
    return WrongBytes(f"{text.name}, line {number}", f"{detail} {NAME_IT}", line)

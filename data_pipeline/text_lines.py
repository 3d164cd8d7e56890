"""Lines of text out of bytes: decoded as they stream, every error with its file, line and byte.

A byte order mark is removed, and one of UTF-16 or UTF-32 decides the encoding. Without one
they would pass for UTF-8 full of NULs, so that a file of many NULs is refused. Lines end at \\n,
\\r\\n and \\r only: U+2028, U+0085 and their like stay inside the text.
"""

import codecs
import io
import itertools
import re
from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n?|\n")
_LOOKED_AT_BYTES = 4096  # of a file, to tell what it is
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b")) + b"\x7f"
_MARKS = (  # UTF-32 before UTF-16: its little-endian mark begins with the other's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def text_encoding(name: str) -> str:
    """The normal name of an encoding. Raises ValueError if there is none of that name."""
    try:
        found = codecs.lookup(name)
        "".encode(found.name)
        return found.name
    except LookupError as error:
        raise ValueError(
            f"--encoding {name} is unknown. Known are utf-8, latin-1, gb18030."
        ) from error


def lines(
    chunks: Iterator[bytes],
    name: str,
    encoding: str,
    *,
    only_newline: bool = False,
    first_line: int = 1,
    first_byte: int = 0,
) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its line end); a last line without an end counts.

    chunks: the bytes of the file as they come, none empty.
    only_newline: lines end at \\n alone, as in JSON Lines.
    first_line, first_byte: where the chunks begin, if that is behind a line end inside the file;
    what the start of a file tells of its encoding is then not looked for.
    Raises ValueError naming file, line and byte where the bytes are not of the encoding.
    """
    number, parts = first_line, []
    for text in _decoded(chunks, name, encoding, only_newline, first_line, first_byte):
        first, *rest = text.split("\n")
        parts.append(first)
        for part in rest:
            yield number, "".join(parts)
            number, parts = number + 1, [part]
    if last := "".join(parts):
        yield number, last


def _decoded(
    chunks: Iterator[bytes],
    name: str,
    encoding: str,
    only_newline: bool,
    first_line: int,
    first_byte: int,
) -> Iterator[str]:
    """Stretches of decoded text, line ends translated to \\n unless only \\n ends a line."""
    start = b""
    while len(start) < _LOOKED_AT_BYTES and (chunk := next(chunks, b"")):
        start += chunk
    chunks = itertools.chain([start] if start else [], chunks)
    encoding, at_start = text_encoding(encoding), first_byte == 0
    encoding = _marked_encoding(start, encoding) if at_start else encoding
    start = start[:_LOOKED_AT_BYTES]
    if at_start:
        _refuse_many_nuls(start, name, encoding)
    strict = codecs.getincrementaldecoder(encoding)("strict")
    decoder = io.IncrementalNewlineDecoder(strict, translate=not only_newline)
    line, fed_bytes = first_line, first_byte
    is_last = False
    while not is_last:
        chunk = next(chunks, b"")
        is_last = not chunk
        held_back = "\r" * (decoder.getstate()[1] & 1)  # it may be the first half of a line end
        try:
            text = decoder.decode(chunk, final=is_last)
        except UnicodeDecodeError as error:
            pending_bytes = len(error.object) - len(chunk)
            good = held_back + error.object[: error.start].decode(encoding, "ignore")
            line += good.count("\n") if only_newline else len(_LINE_END.findall(good))
            raise ValueError(
                f"{name}, line {line}, byte {fed_bytes - pending_bytes + error.start}: not valid "
                f"{encoding} ({error.reason}). {_remedy(start)}"
            ) from error
        except UnicodeError as error:  # of utf-16 and utf-32, which take the order from the mark
            raise ValueError(
                f"{name}, line 1, byte 0: no byte order mark, which --encoding {encoding} needs. "
                f"Name the order, as --encoding {encoding}-le."
            ) from error
        fed_bytes += len(chunk)
        line += text.count("\n")
        yield text.removeprefix("\ufeff") if at_start else text
        at_start = at_start and not text


def _marked_encoding(start: bytes, encoding: str) -> str:
    """The encoding a byte order mark names, else the one asked for."""
    if encoding != "utf-8":
        return encoding
    return next((marked for mark, marked in _MARKS if start.startswith(mark)), encoding)


def _refuse_many_nuls(start: bytes, name: str, encoding: str) -> None:
    """Raise ValueError where more than a quarter of a file's first bytes are NUL."""
    num_nuls = start.count(0)
    if encoding.startswith(("utf-16", "utf-32")) or 4 * num_nuls <= len(start) or len(start) % 2:
        return
    nuls = [start[place::4].count(0) for place in range(4)]
    full = len(start) // 4
    likely = ""
    if min(nuls[2:]) >= full > 2 * nuls[0]:
        likely = "utf-32-le"
    elif min(nuls[:2]) >= full > 2 * nuls[3]:
        likely = "utf-32-be"
    elif nuls[1] + nuls[3] > 4 * (nuls[0] + nuls[2]):
        likely = "utf-16-le"
    elif nuls[0] + nuls[2] > 4 * (nuls[1] + nuls[3]):
        likely = "utf-16-be"
    if likely:
        raise ValueError(
            f"{name} looks like {likely[:6].upper()} without a byte order mark: {num_nuls} of its "
            f"first {len(start)} bytes are NUL. Name its encoding: --encoding {likely}."
        )
    raise ValueError(
        f"{name} does not look like text: {num_nuls} of its first {len(start)} bytes are NUL. "
        "Leave it out, or convert it."
    )


def _remedy(start: bytes) -> str:
    """What to do about a file that begins so and is not of its encoding."""
    controls = len(start) - len(start.translate(None, _CONTROLS))
    if 50 * controls > len(start):
        return (
            f"It does not look like text: {controls} of its first {len(start)} bytes are control "
            "characters. Leave it out, or convert it."
        )
    return "Name the encoding the file was written in, as --encoding latin-1."

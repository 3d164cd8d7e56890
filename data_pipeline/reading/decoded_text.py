"""Text out of the bytes of a file as they stream; what is not of the encoding is named and marked.

A byte order mark is removed, and one of UTF-16 or UTF-32 decides the encoding. Without one
they would pass for UTF-8 full of NULs, so that a file of many NULs is refused.

    text = DecodedText(iter([b"caf\\xe9 one\\nrose"]), "x.txt", "utf-8", newlines="any")
    "".join(text)       # "caf\\udce9 one\\nrose": a wrong byte is a lone surrogate (PEP 383)
    text.problem        # Unusable: x.txt, line 1, byte 3: not valid utf-8 ...
"""

import codecs
import io
import itertools
import re
from collections.abc import Iterator
from typing import Literal

from data_pipeline.reading.unusable import Unusable

WRONG_BYTE = re.compile("[\udc80-\udcff]")  # as it stands in the text; right bytes never give one
_LINE_END = re.compile(r"\r\n?|\n")
NAME_IT = "Name the encoding the file was written in, as --encoding latin-1."
_LOOKED_AT_BYTES = 4096  # of a file, to tell what it is
_CONTROLS = bytes(set(range(1, 32)) - set(b"\t\n\v\f\r\x1b")) + b"\x7f"
_MARKS = (  # UTF-32 before UTF-16: its little-endian mark begins with the other's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class DecodedText:
    """Stretches of text, to be gone through once.

    chunks: the bytes of the file as they come, none empty. encoding: its normal name.
    newlines: "any" makes \\r\\n and \\r to \\n, "kept" leaves all as they are, unless the file has
    \\r alone at its beginning.
    first_line, first_byte: where the chunks begin, if that is behind a line end inside the file;
    what the start of a file tells of its encoding is then not looked for.
    Raises Unusable where the file is no text, or cannot be read on behind a wrong byte.
    """

    def __init__(
        self,
        chunks: Iterator[bytes],
        name: str,
        encoding: str,
        *,
        newlines: Literal["any", "kept"],
        first_line: int = 1,
        first_byte: int = 0,
    ) -> None:
        self.name, self.encoding, self.first_line = name, encoding, first_line
        self.problem: Unusable | None = None  # with the first wrong byte, once it has been met
        self.problem_line = 0
        self._chunks, self._newlines = chunks, newlines
        self._line, self._fed_bytes = first_line, first_byte
        self._start = b""

    def __iter__(self) -> Iterator[str]:
        chunks, at_start = self._begin(), self._fed_bytes == 0
        decoder = self._decoder("strict")
        is_last = False
        while not is_last:
            chunk = next(chunks, b"")
            is_last = not chunk
            before = decoder.getstate()
            try:
                text = decoder.decode(chunk, final=is_last)
            except UnicodeDecodeError as error:
                decoder, text = self._go_on(self._wrong(error, chunk, before[1]), before, chunk)
            except UnicodeError as error:  # of utf-16 and utf-32, whose order the mark tells
                raise Unusable(
                    "wrong_encoding",
                    f"{self.name}, line 1, byte 0",
                    f"no byte order mark, which --encoding {self.encoding} needs. "
                    f"Name the order, as --encoding {self.encoding}-le.",
                ) from error
            self._fed_bytes += len(chunk)
            self._line += text.count("\n")
            yield text.removeprefix("\ufeff") if at_start else text
            at_start = at_start and not text

    def _begin(self) -> Iterator[bytes]:
        """The chunks, once their start has been looked at."""
        start = b""
        while len(start) < _LOOKED_AT_BYTES and (chunk := next(self._chunks, b"")):
            start += chunk
        if self._fed_bytes == 0:
            self.encoding = _marked_encoding(start, self.encoding)
            _refuse_many_nuls(start[:_LOOKED_AT_BYTES], self.name, self.encoding)
            if b"\r" in start and b"\n" not in start:  # as old Macs write
                self._newlines = "any"
        self._start = start[:_LOOKED_AT_BYTES]
        return itertools.chain([start] if start else [], self._chunks)

    def _decoder(self, errors: str) -> io.IncrementalNewlineDecoder:
        decoder = codecs.getincrementaldecoder(self.encoding)(errors)
        return io.IncrementalNewlineDecoder(decoder, translate=self._newlines == "any")

    def _go_on(
        self, problem: Unusable, before: tuple[bytes, int], chunk: bytes
    ) -> tuple[io.IncrementalNewlineDecoder, str]:
        """The text of a chunk with wrong bytes, and the decoder for what follows."""
        if self.problem is None:
            self.problem, self.problem_line = problem, self._problem_line
        if "\n".encode(self.encoding) != b"\n":  # behind a wrong byte nothing is certain
            raise problem
        decoder = self._decoder("surrogateescape")
        decoder.setstate(before)
        try:
            return decoder, decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError:  # a wrong byte below 128
            raise problem from None

    def _wrong(self, error: UnicodeDecodeError, chunk: bytes, flags: int) -> Unusable:
        held_back = "\r" * (flags & 1)  # it may be the first half of a line end
        good = held_back + error.object[: error.start].decode(self.encoding, "ignore")
        ends = _LINE_END.findall(good) if self._newlines == "any" else re.findall("\n", good)
        self._problem_line = self._line + len(ends)
        byte = self._fed_bytes - (len(error.object) - len(chunk)) + error.start
        return Unusable(
            "wrong_encoding",
            f"{self.name}, line {self._problem_line}, byte {byte}",
            f"not valid {self.encoding} ({error.reason}). {_remedy(self._start)}",
        )


def _marked_encoding(start: bytes, encoding: str) -> str:
    """The encoding a byte order mark names, else the one asked for."""
    if encoding != "utf-8":
        return encoding
    return next((marked for mark, marked in _MARKS if start.startswith(mark)), encoding)


def _refuse_many_nuls(start: bytes, name: str, encoding: str) -> None:
    """Raise Unusable where so many of a file's first bytes are NUL that it is no text as it is.

    Text in which NULs stand, even many, is text: whoever reads it takes them out and counts them.
    """
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
        raise Unusable(
            "wrong_encoding",
            name,
            f"looks like {likely[:6].upper()} without a byte order mark: {num_nuls} of its "
            f"first {len(start)} bytes are NUL. Name its encoding: --encoding {likely}.",
        )
    if num_nuls == len(start) or _is_binary(start.replace(b"\0", b"")):
        raise Unusable(
            "not_text",
            name,
            f"does not look like text: {num_nuls} of its first {len(start)} bytes are NUL. "
            "Leave it out, or convert it.",
        )


def _is_binary(start: bytes) -> bool:
    """True if more than one in fifty bytes is a control character that text does not have."""
    return 50 * _num_controls(start) > len(start)


def _num_controls(start: bytes) -> int:
    return len(start) - len(start.translate(None, _CONTROLS))


def _remedy(start: bytes) -> str:
    """What to do about a file that begins so and is not of its encoding."""
    if _is_binary(start):
        return (
            f"It does not look like text: {_num_controls(start)} of its first {len(start)} bytes "
            "are control characters. Leave it out, or convert it."
        )
    return NAME_IT

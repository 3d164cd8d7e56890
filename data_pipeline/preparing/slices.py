"""The input cut into slices by nothing but itself, so that whoever works on them gets the same.

    slice 0   a.txt, b.jsonl.gz, c.csv       consecutive files of slice_bytes together
    slice 1   d.txt from byte 0              a large file of plain lines: stretches of slice_bytes,
    slice 2   d.txt from byte 67,108,864     each beginning behind the first line end from there on
    slice 3   e.csv.gz                       any other file whole, however large

A line belongs to the slice in which it begins. Nothing is read to know the slices but the first
bytes of the large files; where its lines begin and end is found out by who reads the stretch.
"""

import codecs
import io
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import xxhash

from data_pipeline.reading.byte_stream import CHUNK_BYTES
from data_pipeline.reading.documents import Document, ReadSettings, Tally, read_source
from data_pipeline.reading.file_kinds import Source

_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
# Encodings in which the byte 10 is a newline wherever it stands, behind a wrong byte too.
_NEWLINE_IS_A_BYTE = re.compile(r"utf-8|ascii|iso8859-\d+|cp125\d|koi8-[ru]")
_LOOKED_AT_BYTES = 4096  # of a large file: what may be refused by its start must stay whole
_LOOKS_AT_ONCE = 16
_MAX_SLICES = 1_000_000
_SEARCH_BYTES = 1 << 16  # read at a time where a line end is looked for
_FETCHED_BYTES = 8 << 20  # of a file behind a URL, at a time


@dataclass(frozen=True)
class Piece:
    """A source, or the lines of it that begin in the bytes begin..end - 1; end None: all of it."""

    number: int  # of the source among all
    source: Source
    begin: int = 0
    end: int | None = None


def plan_slices(
    sources: list[Source], settings: ReadSettings, slice_bytes: int
) -> list[tuple[Piece, ...]]:
    """The slices of all sources, in the order of their documents.

    Raises ValueError if they are too many.
    """
    slices: list[tuple[Piece, ...]] = []
    together: list[Piece] = []
    size_bytes = 0
    are_lines = _of_lines(sources, settings, slice_bytes)
    for number, source in enumerate(sources):
        added = source.size_bytes if source.size_bytes is not None else slice_bytes
        if together and size_bytes + added > slice_bytes:
            slices.append(tuple(together))
            together, size_bytes = [], 0
        if number in are_lines:
            bounds = range(0, added, slice_bytes)
            if len(slices) + len(bounds) > _MAX_SLICES:
                raise ValueError(
                    f"--slice-bytes {slice_bytes} cuts the input into more than {_MAX_SLICES:,} "
                    "slices. Choose more bytes; the default is 64 MiB."
                )
            slices += [(Piece(number, source, b, min(b + slice_bytes, added)),) for b in bounds]
        else:
            together.append(Piece(number, source))
            size_bytes += added
    if together:
        slices.append(tuple(together))
    return slices


def in_ranges(numbers: Iterable[int], most: int | None = None) -> str:
    """Rising numbers in few words: 0, 1, 2, 5, 7, 8 -> "0-2,5,7-8".

    most: ranges that are named; "..." stands for the others.
    """
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        first = ranges.pop()[0] if ranges and ranges[-1][1] == number - 1 else number
        ranges.append((first, number))
    words = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:most]]
    return ",".join(words if len(words) == len(ranges) else [*words, "..."])


def read_piece(
    piece: Piece,
    settings: ReadSettings,
    tally: Tally,
    on_bytes: Callable[[int], object],
    copy: Path | None = None,
) -> Iterator[Document]:
    """The documents of a piece; at its end `tally` holds size and hash of the bytes it is.

    copy: a file to be made of these bytes, where the piece is a stretch.
    Errors name the line by its number in the file.
    """
    if piece.end is None:
        yield from read_source(piece.source, settings, tally, on_bytes)
        return
    begin, end = _line_bounds(piece)
    if begin == end:  # one line reaches over the whole stretch
        tally.size_bytes, tally.xxh3 = 0, xxhash.xxh3_128_hexdigest(b"")
        return
    stretch = replace(
        piece.source,
        open=lambda: copied(open_stretch(piece.source, begin, end), copy),
        first_byte=begin,
    )
    policy = deepcopy(tally.refuse)  # as it is before this piece
    try:
        yield from read_source(stretch, settings, tally, on_bytes)
    except ValueError:
        if begin == 0:
            raise
        # What lies in front is counted only now: read again, the error knows its line.
        numbered = replace(stretch, first_line=1 + _line_ends_before(piece.source, begin))
        for _ in read_source(numbered, settings, Tally(refuse=policy), lambda num_bytes: None):
            pass
        raise


def opened(source: Source) -> BinaryIO:
    """The bytes of a source that has bytes, as a context manager too."""
    assert source.open is not None
    return cast(BinaryIO, source.open())


def _of_lines(sources: list[Source], settings: ReadSettings, slice_bytes: int) -> set[int]:
    """The numbers of large sources that can be cut at lines."""
    large = [n for n, source in enumerate(sources) if (source.size_bytes or 0) > slice_bytes]
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:  # behind URLs each look is a way to a server
        answers = pool.map(lambda number: _is_lines(sources[number], settings), large)
        return {number for number, is_lines in zip(large, answers, strict=True) if is_lines}


def _is_lines(source: Source, settings: ReadSettings) -> bool:
    """True where every byte 10 of a file ends a line, and each line is a document of its own."""
    if "://" in source.name and source.open_range is None:
        return False
    by_line = source.kind == "jsonl" or (source.kind == "text" and settings.document == "line")
    if not by_line or source.compression or source.open is None:
        return False
    if not _NEWLINE_IS_A_BYTE.fullmatch(settings.encoding):
        return False
    assert source.size_bytes is not None
    with open_stretch(source, 0, min(_LOOKED_AT_BYTES, source.size_bytes)) as raw:
        start = raw.read(_LOOKED_AT_BYTES)
    return not start.startswith(_WIDE_MARKS) and b"\0" not in start


def _line_bounds(piece: Piece) -> tuple[int, int]:
    """Where the first line that begins in a piece begins, and where the last one ends."""
    assert piece.end is not None and piece.source.size_bytes is not None
    begin = _line_start(piece.source, piece.begin, piece.end)
    if begin == piece.end:
        return begin, begin
    return begin, _line_start(piece.source, piece.end, piece.source.size_bytes)


def _line_start(source: Source, begin: int, end: int) -> int:
    """The first place in begin..end - 1 at which a line begins, else `end`."""
    if begin == 0 or begin == end:
        return begin
    place = begin - 1
    with open_stretch(source, place, end - 1, _SEARCH_BYTES) as raw:
        while content := raw.read(_SEARCH_BYTES):
            if (found := content.find(b"\n")) >= 0:
                return place + found + 1
            place += len(content)
    return end


def _line_ends_before(source: Source, end: int) -> int:
    """The line ends in front of a byte: newlines, and in text also each lone carriage return."""
    num_ends, last = 0, b""
    with open_stretch(source, 0, end) as raw:
        while content := raw.read(CHUNK_BYTES):
            num_ends += content.count(b"\n")
            if source.kind == "text":
                pairs = content.count(b"\r\n") + (last == b"\r" and content[:1] == b"\n")
                num_ends += content.count(b"\r") - pairs
                last = content[-1:]
    return num_ends


@contextmanager
def open_stretch(
    source: Source, begin: int, end: int, block_bytes: int = _FETCHED_BYTES
) -> Iterator[BinaryIO]:
    """The bytes begin..end - 1 of a file. block_bytes: fetched at once of one behind a URL."""
    if source.open_range is not None:
        with source.open_range(begin, end, block_bytes) as raw:
            yield raw
        return
    with opened(source) as raw:
        raw.seek(begin)
        yield cast(BinaryIO, _Stretch(raw, end - begin))


@contextmanager
def copied(stretch: AbstractContextManager[BinaryIO], copy: Path | None) -> Iterator[BinaryIO]:
    """The same bytes, written to the file `copy` as they pass, which is there if all have."""
    with stretch as raw:
        if copy is None:
            yield raw
            return
        partial = copy.with_name(f".{copy.name}.{secrets.token_hex(4)}")
        try:
            with partial.open("xb") as file:
                yield cast(BinaryIO, _Copied(raw, file))
            os.rename(partial, copy)
        finally:
            partial.unlink(missing_ok=True)


class _Copied(io.RawIOBase):
    """What is read of one file, written to another."""

    def __init__(self, raw: BinaryIO, file: BinaryIO) -> None:
        self._raw, self._file = raw, file

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        content = self._raw.read(size)
        self._file.write(content)
        return content


class _Stretch(io.RawIOBase):
    """The next `size_bytes` of a file, as a file."""

    def __init__(self, raw: BinaryIO, size_bytes: int) -> None:
        self._raw, self._left = raw, size_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert size >= 0
        content = self._raw.read(min(size, self._left))
        self._left -= len(content)
        return content

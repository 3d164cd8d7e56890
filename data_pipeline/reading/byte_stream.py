"""Bytes of a file on their way: counted, hashed, decompressed, never all at once.

    stream = CountedStream(raw, on_bytes)                      # hashes the file as it lies there
    for chunk in decompressed(stream.chunks(), "gz", "x.txt.gz"): ...
    stream.size_bytes, stream.xxh3                             # once all chunks have passed

A compressed file is read to its last byte, all its members: one that is cut off, damaged or
followed by anything else is an error, where bz2.open and lzma.open would be silent.
"""

import bz2
import io
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Literal

import xxhash

from data_pipeline.reading.unusable import Unusable

CHUNK_BYTES = 1 << 20
Compression = Literal["gz", "bz2", "xz", "zst"]
_XZ_MEMORY_BYTES = 1 << 28  # `xz -9` asks for 65 MiB, a few bytes of header could for 4 GiB
_BEGINS_WITH: dict[Compression, tuple[bytes, ...]] = {
    "gz": (b"\x1f\x8b",),
    "bz2": (b"BZh",),
    "xz": (b"\xfd7zXZ\0", b"\x5d\0\0"),  # the second of the older .lzma, which unpacks alike
    "zst": (b"\x28\xb5\x2f\xfd", *(bytes([n]) + b"\x2a\x4d\x18" for n in range(0x50, 0x60))),
}


class CountedStream:
    """Bytes that are counted and hashed as they pass, and told to a progress bar."""

    def __init__(self, raw: BinaryIO, on_bytes: Callable[[int], object]) -> None:
        self._raw, self._on_bytes = raw, on_bytes
        self._hash = xxhash.xxh3_128()
        self.size_bytes = 0

    @property
    def xxh3(self) -> str:
        return self._hash.hexdigest()

    def chunks(self) -> Iterator[bytes]:
        """The bytes to the end, about a MiB at a time."""
        while chunk := self._raw.read(CHUNK_BYTES):
            self._hash.update(chunk)
            self.size_bytes += len(chunk)
            self._on_bytes(len(chunk))
            yield chunk


def size_and_hash(
    raw: BinaryIO, on_bytes: Callable[[int], object] = lambda _: None
) -> tuple[int, str]:
    """Bytes of a file from here to its end, and their xxh3 in hex (128 bits)."""
    stream = CountedStream(raw, on_bytes)
    for _ in stream.chunks():
        pass
    return stream.size_bytes, stream.xxh3


def decompressed(
    chunks: Iterator[bytes], compression: Compression | None, name: str
) -> Iterator[bytes]:
    """The content of a file in chunks of at most a MiB, none empty; None: as it is.

    Raises Unusable naming the file where it is not whole or not what its ending says.
    """
    if compression is None:
        yield from chunks
        return
    read = _zstandard if compression == "zst" else _members
    reason = "damaged_file"
    try:
        if not (first := next(chunks, b"")):
            raise EOFError("it is empty")
        if not first.startswith(tuple(b[: len(first)] for b in _BEGINS_WITH[compression])):
            reason = "not_compressed"
            raise EOFError("it does not begin as one; if it is plain, rename it")
        yield from read(itertools.chain([first], chunks), compression)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk, not of what stands on it
        told = " ".join(str(error).split())
        raise Unusable(
            reason, name, f"no whole .{compression} file ({told}). Copy or compress it again."
        ) from error


def _members(chunks: Iterator[bytes], compression: Compression) -> Iterator[bytes]:
    """The members of a .gz, .bz2 or .xz file, one after another; zeros may lie between them."""
    pending = next(chunks, b"")
    is_first = True
    while is_first or pending:
        member, is_first = _Member(compression), False
        while not member.is_whole:
            if content := member.feed(pending):
                yield content
            pending = b""
            if member.needs_input and not member.is_whole:
                pending = next(chunks, b"")
                if not pending:
                    raise EOFError("it ends too early")
        pending = member.behind
        while not (pending := pending.lstrip(b"\0") if compression != "bz2" else pending):
            if not (pending := next(chunks, b"")):
                return


class _Member:
    """One compressed stream; `feed` gives at most a MiB at a time, whatever lies in its input."""

    def __init__(self, compression: Compression) -> None:
        self._zlib = zlib.decompressobj(wbits=31) if compression == "gz" else None
        self._other = (
            bz2.BZ2Decompressor()
            if compression == "bz2"
            else lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)
        )

    def feed(self, data: bytes) -> bytes:
        """Content of what was given so far; call again with b"" unless `needs_input`."""
        if self._zlib:
            return self._zlib.decompress(self._zlib.unconsumed_tail + data, CHUNK_BYTES)
        return self._other.decompress(data, CHUNK_BYTES)

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail if self._zlib else self._other.needs_input

    @property
    def is_whole(self) -> bool:
        return self._zlib.eof if self._zlib else self._other.eof

    @property
    def behind(self) -> bytes:
        """What follows the stream in its input."""
        return self._zlib.unused_data if self._zlib else self._other.unused_data


def _zstandard(chunks: Iterator[bytes], compression: Compression) -> Iterator[bytes]:
    import pyarrow

    stream = pyarrow.CompressedInputStream(_Readable(chunks), "zstd")
    while content := stream.read(CHUNK_BYTES):
        yield content


class _Readable(io.RawIOBase):
    """Chunks as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._pending = chunks, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert size >= 0
        self._pending = self._pending or next(self._chunks, b"")
        given, self._pending = self._pending[:size], self._pending[size:]
        return given

"""Compressed files give their whole content or an error with their name, never a part of it."""

import bz2
import gzip
import io
import lzma

import numpy as np
import pytest

from data_pipeline.reading import byte_stream
from data_pipeline.reading.byte_stream import CountedStream, decompressed, size_and_hash


def _zstd(content: bytes) -> bytes:
    import pyarrow

    return pyarrow.compress(content, codec="zstd", asbytes=True)


COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": _zstd}
CONTENT = np.random.default_rng(0).integers(0, 9, 70_000).astype(np.uint8).tobytes()
each_compression = pytest.mark.parametrize("compression", COMPRESS)


def read(compressed: bytes, compression: str) -> bytes:
    stream = CountedStream(io.BytesIO(compressed), lambda n: None)
    content = list(decompressed(stream.chunks(), compression, "x"))
    assert all(0 < len(chunk) <= byte_stream.CHUNK_BYTES for chunk in content)
    assert stream.size_bytes == len(compressed)
    return b"".join(content)


@each_compression
@pytest.mark.parametrize("chunk_bytes", [997, 1 << 20])
def test_all_members_of_a_file_are_read(monkeypatch, compression, chunk_bytes):
    monkeypatch.setattr(byte_stream, "CHUNK_BYTES", chunk_bytes)
    compress = COMPRESS[compression]
    assert read(compress(CONTENT), compression) == CONTENT
    assert read(compress(CONTENT) + compress(b"more"), compression) == CONTENT + b"more"
    assert read(compress(b""), compression) == b""
    assert read(compress(b"\0" * 5_000_000), compression) == b"\0" * 5_000_000


@each_compression
def test_a_file_cut_off_anywhere_is_an_error(compression):
    whole = COMPRESS[compression](CONTENT)
    for length in {0, 1, 5, len(whole) // 2, len(whole) - 9, len(whole) - 1}:
        with pytest.raises(ValueError, match=rf"x: no whole \.{compression} file"):
            read(whole[:length], compression)


@each_compression
@pytest.mark.parametrize("behind", [b"abc", b"\0\0\0\0abc", b"a plain text\n" * 100])
def test_anything_behind_the_last_member_is_an_error(compression, behind):
    with pytest.raises(ValueError, match="x: no whole"):
        read(COMPRESS[compression](CONTENT) + behind, compression)


@each_compression
def test_plain_text_with_such_an_ending_is_an_error(compression):
    with pytest.raises(ValueError, match="x: no whole"):
        read(b"the river rose\n" * 50, compression)


@pytest.mark.parametrize("compression", ["gz", "xz"])
def test_zeros_that_fill_a_block_are_no_content(compression):
    assert read(COMPRESS[compression](b"a") + bytes(512), compression) == b"a"


def test_a_file_is_hashed_to_its_end():
    import xxhash

    told: list[int] = []
    content = CONTENT * 20
    expected = (len(content), xxhash.xxh3_128_hexdigest(content))
    assert size_and_hash(io.BytesIO(content), told.append) == expected
    assert sum(told) == len(content) and len(told) == 2

"""Bytes become lines exactly, and what is not text is named by file, line and byte."""

import io
import random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.reading import byte_stream, text_lines
from data_pipeline.reading.byte_stream import CountedStream
from data_pipeline.reading.text_lines import lines, text_encoding, usable
from data_pipeline.reading.unusable import Refuse, Unusable, stop


def read(
    content: bytes, encoding: str = "utf-8", refuse: Refuse = stop, **options
) -> list[tuple[int, str]]:
    stream = CountedStream(io.BytesIO(content), lambda n: None)
    return list(usable(lines(stream.chunks(), "x.txt", encoding, **options), refuse))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\r", ["a", "b"]),
        (b"a\r\rb", ["a", "", "b"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a", ["a"]),
        (b"", []),
        (b"\n", [""]),
        (b"\xef\xbb\xbfa\nb", ["a", "b"]),
        ("a\u2028b\u0085c\x0bd\x0ce\x1cf\n".encode(), ["a\u2028b\u0085c\x0bd\x0ce\x1cf"]),
        ("a\ufeffb\n".encode(), ["a\ufeffb"]),
    ],
)
def test_lines_end_at_newline_and_return_only(content, expected):
    assert [line for _, line in read(content)] == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_byte_order_mark_decides_the_encoding(encoding):
    text = "the river\nd\u00e9j\u00e0 vu\n"
    assert [line for _, line in read(text.encode(encoding))] == ["the river", "d\u00e9j\u00e0 vu"]


def test_json_lines_end_at_newline_only():
    assert read(b"a\rb\r\nc", only_newline=True) == [(1, "a\rb\r"), (2, "c")]


@given(st.text(alphabet="ab\r\n\u00e9\u2028", max_size=30), st.integers(1, 5))
def test_the_size_of_the_chunks_does_not_matter(text, chunk_bytes):
    whole = read(text.encode())
    original = byte_stream.CHUNK_BYTES
    byte_stream.CHUNK_BYTES = chunk_bytes
    try:
        assert read(text.encode()) == whole
    finally:
        byte_stream.CHUNK_BYTES = original
    assert [line for _, line in whole] == io.StringIO(text, newline=None).read().split("\n")[
        : len(whole)
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize(
    ("content", "line", "byte"),
    [
        (b"caf\xe9 one\n", 1, 3),
        (b"a\nb\r\nc\rd\xff", 4, 8),
        ("\u00e9\u00e9\n".encode() + b"\xc3", 2, 5),
    ],
)
def test_wrong_bytes_are_named_by_line_and_byte(content, line, byte, chunk_bytes, monkeypatch):
    monkeypatch.setattr(byte_stream, "CHUNK_BYTES", chunk_bytes)
    with pytest.raises(ValueError, match=rf"x\.txt, line {line}, byte {byte}: .*--encoding"):
        read(content)


def test_the_encoding_asked_for_is_used():
    assert read(b"caf\xe9\n", "latin-1") == [(1, "caf\u00e9")]
    assert read("\u4f60\n".encode("gb18030"), "gb18030") == [(1, "\u4f60")]


@pytest.mark.parametrize("name", ["utf-9", "base64"])
def test_an_unknown_encoding_is_refused(name):
    with pytest.raises(ValueError, match=f"--encoding {name} is unknown"):
        text_encoding(name)


@pytest.mark.parametrize("chunk_bytes", [1, 3, 1 << 20])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_characters_without_a_mark_are_not_utf_8(encoding, chunk_bytes, monkeypatch):
    monkeypatch.setattr(byte_stream, "CHUNK_BYTES", chunk_bytes)
    text = "the river\nd\u00e9j\u00e0 vu\n"
    for content in (text, text * 1000):
        says = rf"x\.txt: looks like {encoding[:6].upper()} without .*: --encoding {encoding}\.$"
        with pytest.raises(ValueError, match=says):
            read(content.encode(encoding))
        with pytest.raises(ValueError, match=says):
            read(content.encode(encoding), "latin-1")
        assert read(content.encode(encoding), encoding) == read(content.encode())


@pytest.mark.parametrize("encoding", ["utf-16", "UTF_32"])
def test_an_encoding_that_needs_a_mark_says_so(encoding):
    name = text_encoding(encoding)
    with pytest.raises(ValueError, match=rf"^x\.txt, line 1, byte 0: no byte .*{name}-le\.$"):
        read("the river".encode(f"{encoding}-le"), encoding)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (random.Random(0).randbytes(9000), "not valid utf-8 .* It does not look like text"),
        (random.Random(1).randbytes(70), "not valid utf-8 .* It does not look like text"),
        (bytes(5000), "does not look like text: 4096 of its first 4096 bytes are NUL"),
        (b"\x7fELF\0\0\1\0" * 99, "does not look like text: 297 of its first 792 bytes are NUL"),
    ],
)
def test_bytes_that_are_no_text_are_not_taken_for_latin_1(content, says):
    with pytest.raises(ValueError, match=says) as raised:
        read(content)
    assert "latin" not in str(raised.value)


def test_a_few_nuls_are_left_to_whoever_cleans_them():
    assert read(b"a\0b\0\n") == [(1, "a\0b\0")]
    assert read(b"river\0" * 1000)[0][1].count("\0") == 1000


def test_passing_bytes_are_counted_and_hashed():
    told = []
    stream = CountedStream(io.BytesIO(b"abc\n"), told.append)
    assert list(lines(stream.chunks(), "x", "utf-8")) == [(1, "abc")]
    assert (stream.size_bytes, sum(told)) == (4, 4)
    assert stream.xxh3 == xxhash.xxh3_128_hexdigest(b"abc\n")


def read_on(content: bytes, encoding: str = "utf-8", **options):
    """The lines that can be used, and what was said of the others."""
    refused: list[Unusable] = []
    return read(content, encoding, refused.append, **options), [str(r) for r in refused]


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 1 << 20])
def test_lines_of_wrong_bytes_are_left_out_and_all_others_read(chunk_bytes, monkeypatch):
    monkeypatch.setattr(byte_stream, "CHUNK_BYTES", chunk_bytes)
    content = b"one\r\ncaf\xe9\xff two\r\n\xc3\xa9t\xc3\xa9\rx \xe2\x82\n\xf0\x9f\x98\x80\nend\xc3"
    kept, refused = read_on(content)
    assert kept == [(1, "one"), (3, "\u00e9t\u00e9"), (5, "\U0001f600")]
    assert [r.split(":")[0] for r in refused] == [
        "x.txt, line 2, byte 8",
        "x.txt, line 4",
        "x.txt, line 6",
    ]
    assert "byte 2 of the line is not valid utf-8" in refused[1]


def test_a_file_of_another_encoding_is_read_in_linear_time():
    content = b"caf\xe9 au lait\n" * 200_000 + b"tea\n"
    kept, refused = read_on(content)
    assert kept == [(200_001, "tea")] and len(refused) == 200_000


@pytest.mark.parametrize("encoding", ["gb18030", "shift_jis", "euc_kr", "cp1252"])
def test_wrong_bytes_of_other_encodings_cost_their_line_alone(encoding):
    good = {"gb18030": "\u4f60", "shift_jis": "\u3042", "euc_kr": "\uac00", "cp1252": "\u20ac"}
    line = good[encoding].encode(encoding)
    wrong = {"cp1252": b"a\x81b"}.get(encoding, b"a\xff\xffb")
    kept, refused = read_on(line + b"\n" + wrong + b"\n" + line + b"\n", encoding)
    assert kept == [(1, good[encoding]), (3, good[encoding])] and len(refused) == 1


def test_nothing_is_read_behind_wrong_bytes_of_a_wide_encoding():
    content = "the river\n".encode("utf-16") + b"\x00\xdc\x00\xdc" + "rose\n".encode("utf-16-le")
    with pytest.raises(Unusable, match=r"^x\.txt, line 2, byte 22: not valid utf-16"):
        read(content, refuse=lambda error: None)


@pytest.mark.parametrize("chunk_bytes", [1, 4, 1 << 20])
def test_a_line_over_the_limit_is_refused_and_never_held(chunk_bytes, monkeypatch):
    monkeypatch.setattr(byte_stream, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(text_lines, "MAX_CHARACTERS", 10)
    kept, refused = read_on(b"0123456789\n0123456789a\nb\n" + b"c" * 99)
    assert kept == [(1, "0123456789"), (3, "b")]
    assert [r.split(", the most")[0] for r in refused] == [
        "x.txt:2: a line of more than 10 characters",
        "x.txt:4: a line of more than 10 characters",
    ]


@pytest.mark.parametrize("name", ["unicode_escape", "utf-7", "undefined", "idna"])
def test_notations_of_python_are_no_encodings_of_files(name):
    with pytest.raises(ValueError, match=f"--encoding {name} is unknown"):
        text_encoding(name)

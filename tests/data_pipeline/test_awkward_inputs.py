"""Awkward inputs, both policies: the run ends with file, line and reason, or counts and goes on.

The kinds are those that people bring; each is written by its test.
"""

import bz2
import gzip
import json
import lzma
import re
from collections import Counter

import numpy as np
import pytest

from data_pipeline.reading import byte_stream, documents, json_rows, records, text_lines
from data_pipeline.reading.documents import Document, ReadSettings, Tally, read_source
from data_pipeline.reading.sources import find_sources
from data_pipeline.reading.unusable import Skipping, Unusable


def read(path, tally: Tally | None = None, **settings) -> list[Document]:
    """The documents of a path, by the policy `stop` unless the tally has another."""
    tally = tally or Tally()
    sources = find_sources([str(path)], tally.skipped)
    wanted = ReadSettings(**settings)
    return [d for s in sources for d in read_source(s, wanted, tally, lambda n: None)]


def read_on(path, **settings) -> tuple[list[str], dict[str, int]]:
    """The texts that can be used, and the numbers of what is left out, blank ones included."""
    policy = Skipping(limit=10**6)
    tally = Tally(refuse=policy)
    texts = [d.text for d in read(path, tally, **settings)]
    return texts, dict(policy.counts + tally.skipped)


@pytest.fixture
def write(tmp_path):
    def write_file(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture
def small_limit(monkeypatch):
    """Lines and documents of at most 50 characters."""
    for module in (text_lines, documents, json_rows, records):
        monkeypatch.setattr(module, "MAX_CHARACTERS", 50)


ROWS = (
    """{"text": "one"}
{"content": "renamed"}
{"id": 3}
{"text": null}
{"text": 7}
{"text": ["a", "b"]}
["top"]
"top"
{"text": "unterminated
{'text': 'single quotes'}
{"text": "first", "text": "second"}
{"text": "three", "meta": {"url": "x", "n": 1}}
{"Text": "capital"}
null
{"text": "a"} {"text": "b"}
{"text": "\\ud800"}
{"text": "\\ud83d\\ude00", "id": """
    + "9" * 5000
    + """}
{"text": "last"}"""
)


def test_rows_that_are_wrong_are_counted_by_reason_and_the_others_kept(write):
    texts, counts = read_on(write("x.jsonl", ROWS))
    assert texts == ["one", "second", "three", "last"]
    assert counts == {
        "no_field": 3,
        "null_field": 1,
        "no_string": 2,
        "no_object": 3,
        "broken_json": 4,
        "lone_surrogate": 1,
    }


def test_the_first_wrong_row_ends_a_strict_run(write):
    with pytest.raises(Unusable, match=r"x\.jsonl:2: no field 'text'; it has: content\.") as raised:
        read(write("x.jsonl", ROWS))
    assert raised.value.reason == "no_field"


def test_skipping_is_capped_and_names_all_reasons(write):
    with pytest.raises(ValueError, match="more than --max-skipped 3 ") as raised:
        read(write("x.jsonl", ROWS), Tally(refuse=Skipping(limit=3)))
    assert "2 no_field, 1 no_string, 1 null_field" in str(raised.value)
    assert "x.jsonl:5" in str(raised.value)


def test_lines_of_another_encoding_are_left_out_alone(write):
    content = (
        b"good\nstart \xff\xfe bad\na cut caf\xc3\noverlong \xc0\xaf, surrogate \xed\xa0\x80\nend\n"
    )
    assert read_on(write("x.txt", content)) == (["good", "end"], {"wrong_encoding": 3})
    with pytest.raises(Unusable, match=r"x\.txt, line 2, byte 11: not valid utf-8"):
        read(write("x.txt", content))


@pytest.mark.parametrize("document", ["paragraph", "file"])
def test_a_document_with_a_wrong_line_is_left_out_whole(write, document):
    path = write("x.txt", b"a\nb\n\nc\ncaf\xe9\n\xe9\nd\n\ne\n")
    texts = {"paragraph": ["a\nb", "e"], "file": []}[document]
    assert read_on(path, document=document) == (texts, {"wrong_encoding": 1})


def test_a_wrong_line_inside_a_quoted_field_costs_its_row(write):
    path = write("x.csv", b'text,id\na,1\n"b\ncaf\xe9\nc",2\nd,3\n')
    texts, counts = read_on(path)
    assert texts == ["a", "d"] and counts == {"wrong_encoding": 1}


def test_a_quote_that_is_never_closed_does_not_swallow_the_file(write):
    path = write("x.csv", 'text,id\na,1\n"b,2\nc,3\n"d\ne",4\nf\ng,5,6\nh,7\n')
    texts, counts = read_on(path)
    assert texts == ["a", "c", "d\ne", "h"]
    assert counts == {"broken_row": 1, "field_count": 2}
    with pytest.raises(Unusable, match=r"x\.csv:3: broken row"):
        read(path)


@pytest.mark.parametrize("head", [b'text,"id\n', b"text,caf\xe9\n", b"text,text\n"])
def test_without_its_first_row_nothing_of_a_csv_file_is_read(write, head):
    texts, counts = read_on(write("x.csv", head + b"a,1\n"))
    assert texts == [] and list(counts.values()) == [1]


def test_behind_a_broken_element_nothing_of_an_array_is_read(write):
    path = write("x.json", '[{"text": "a"},\n7, {"text": null}, {"text": "b"},\n{"text": }]')
    assert read_on(path) == (
        ["a", "b"],
        {"no_object": 1, "null_field": 1, "broken_json": 1},
    )


@pytest.mark.parametrize("chunk_bytes", [1, 3, 100, 1 << 20])
def test_an_array_is_read_by_elements_however_it_is_laid_out(write, chunk_bytes, monkeypatch):
    monkeypatch.setattr(byte_stream, "CHUNK_BYTES", chunk_bytes)
    rows = [{"text": f"row {n} \u00e9 [{{,]"} for n in range(40)]
    for layout in ({}, {"indent": 2}, {"separators": (",", ":")}):
        path = write("x.json", "\n \n" + json.dumps(rows, **layout, ensure_ascii=False) + " \n")
        assert [d.text for d in read(path)] == [r["text"] for r in rows]
        assert [d.id for d in read(path)][-1] == f"{path}, row 40"
    assert read(write("x.json", " [ ] ")) == []


@pytest.mark.parametrize("end", ["", ",", "] x", "}", '{"text": "b"}]', ", ]", ",]"])
def test_an_array_that_does_not_end_well_is_broken(write, end):
    path = write("x.json", '[{"text": "a"}\n' + end)
    with pytest.raises(Unusable, match=r"x\.json:2: broken JSON"):
        read(path)


def test_lines_and_documents_over_the_limit_are_named_with_it(write, small_limit):
    long = "word " * 11
    assert read_on(write("x.txt", f"a\n{long}\nb")) == (["a", "b"], {"too_long": 1})
    assert read_on(write("x.jsonl", f'{{"text": "a"}}\n{{"text": "{long}"}}\n')) == (
        ["a"],
        {"too_long": 1},
    )
    paragraphs = "a\nb\n\n" + "word\n" * 11 + "\nc\n"
    assert read_on(write("y.txt", paragraphs), document="paragraph") == (
        ["a\nb", "c"],
        {"too_long": 1},
    )
    assert read_on(write("y.txt", paragraphs), document="file") == ([], {"too_long": 1})
    array = f'[{{"text": "a"}},\n{{"text": "{long * 9}"}}]'
    assert read_on(write("x.json", array))[0] == ["a"]
    csv = 'text,id\na,1\n"' + "word\n" * 11 + '",2\nb,3\n'
    assert read_on(write("x.csv", csv))[0] == ["a", "b"]
    with pytest.raises(Unusable, match=r"x\.txt:2: a line of more than 50 characters, the most"):
        read(write("x.txt", f"a\n{long}\nb"))


def _zstd(content: bytes) -> bytes:
    import pyarrow

    return pyarrow.compress(content, codec="zstd", asbytes=True)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "csv"])
@pytest.mark.parametrize("packed", ["gz", "bz2", "xz", "zst"])
def test_what_unpacks_without_end_is_bounded(write, kind, packed, monkeypatch):
    """30 million characters in a file of some kB, read in pieces of a MiB, never held."""
    import tracemalloc

    for module in (text_lines, documents, json_rows, records):
        monkeypatch.setattr(module, "MAX_CHARACTERS", 1 << 20)
    begin = {"txt": "a\n", "jsonl": '{"text": "', "json": '[{"text": "', "csv": 'text\n"'}[kind]
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": _zstd}[packed]
    path = write(f"x.{kind}.{packed}", compress(begin.encode() + b"x" * 30_000_000))
    assert path.stat().st_size < 60_000
    tracemalloc.start()
    texts, counts = read_on(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert texts == (["a"] if kind == "txt" else []) and counts == {"too_long": 1}
    assert peak_bytes < 20_000_000  # the window of .xz among them


@pytest.mark.parametrize("packed", ["gz", "bz2", "xz", "zst"])
def test_a_file_cut_off_at_any_byte_is_found(write, packed):
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": _zstd}[packed]
    whole = compress(b"the river rose\n" * 40)
    for length in range(len(whole)):
        with pytest.raises(Unusable, match=rf"^\S+x\.txt\.{packed}: no whole \.{packed} file"):
            read(write(f"x.txt.{packed}", whole[:length]))
    texts, counts = read_on(write(f"x.txt.{packed}", whole[:-1]))
    assert set(texts) <= {"the river rose"} and counts == {"damaged_file": 1}


def test_an_xz_file_that_asks_for_gigabytes_is_refused(write):
    import zlib

    content = bytearray(lzma.compress(b"the river rose\n"))
    header = slice(12, 12 + 4 * (content[12] + 1) - 4)
    assert content[header][2:4] == b"\x21\x01"  # LZMA2, one byte of properties
    content[16] = 40  # a dictionary of 4 GiB
    content[header.stop : header.stop + 4] = zlib.crc32(content[header]).to_bytes(4, "little")
    with pytest.raises(Unusable, match=r"no whole \.xz file .*[Mm]emory usage limit"):
        read(write("x.txt.xz", bytes(content)))


@pytest.mark.parametrize("packed", ["gz", "bz2", "xz", "zst"])
def test_plain_text_with_the_ending_of_a_packed_file_says_so(write, packed):
    path = write(f"x.txt.{packed}", "the river rose\n")
    with pytest.raises(Unusable, match="does not begin as one; if it is plain, rename it"):
        read(path)
    assert read_on(path) == ([], {"not_compressed": 1})


def test_a_source_left_out_does_not_hide_the_next(tmp_path, write):
    write("a.txt.gz", gzip.compress(b"a\nb\n")[:-3])
    write("b.txt", "c\n")
    texts, counts = read_on(tmp_path)
    assert texts[-1] == "c" and counts == {"damaged_file": 1}


def _parquet(path, **columns):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet_rows_that_are_wrong_are_counted(tmp_path):
    path = _parquet(tmp_path / "x.parquet", text=["a", None, "b", ""])
    assert read_on(path) == (["a", "b"], {"null_field": 1, "blank": 1})
    path = _parquet(tmp_path / "x.parquet", text=[b"a", b"b"])
    assert read_on(path) == ([], {"no_string": 2})


@pytest.mark.parametrize("column", ["string", "large_string", "string_view", "dictionary"])
def test_parquet_strings_of_every_type_are_strings(tmp_path, column):
    import pyarrow

    strings = pyarrow.array(["a", "b\u2028c", "a", "\u05e9"])
    types = {n: getattr(pyarrow, n)() for n in ("string", "large_string", "string_view")}
    values = strings.dictionary_encode() if column == "dictionary" else strings.cast(types[column])
    path = _parquet(tmp_path / "x.parquet", text=values)
    assert [d.text for d in read(path)] == ["a", "b\u2028c", "a", "\u05e9"]


def test_long_parquet_columns_of_all_kinds_keep_their_order(tmp_path):
    import pyarrow

    texts = [f"{n} " * (n % 400) for n in range(9000)]  # too many for one dictionary page
    path = _parquet(tmp_path / "x.parquet", text=texts, tags=[[t[:3]] for t in texts])
    assert [d.text for d in read(path)] == [t for t in texts if t]
    assert read_on(path, text_field="tags") == ([], {"no_string": 9000})
    path = _parquet(tmp_path / "x.parquet", text=pyarrow.array([{"a": "b"}, None]))
    assert read_on(path) == ([], {"no_string": 1, "null_field": 1})


def test_a_parquet_string_that_is_no_utf_8_is_named_by_row(tmp_path):
    import pyarrow

    raw = pyarrow.array([b"fine", b"caf\xe9", b"end"]).view(pyarrow.string())
    path = _parquet(tmp_path / "x.parquet", text=raw)
    with pytest.raises(Unusable, match=r"x\.parquet, row 2: not valid utf-8"):
        read(path)
    assert read_on(path) == (["fine", "end"], {"wrong_encoding": 1})


def _allocated_by_reading(path) -> tuple[int, int]:
    """Documents of a file, and the most bytes that pyarrow held while they were read."""
    import pyarrow

    before, most, num = pyarrow.total_allocated_bytes(), 0, 0
    for source in find_sources([str(path)], Counter()):
        for _ in read_source(source, ReadSettings(), Tally(), lambda n: None):
            num += 1
            most = max(most, pyarrow.total_allocated_bytes() - before)
    return num, most


def test_a_parquet_text_repeated_many_times_is_not_unpacked_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_UNPACKED_BYTES", 1 << 24)
    path = _parquet(tmp_path / "x.parquet", text=["x" * 1_000_000] * 120)
    assert path.stat().st_size < 200_000
    num, most = _allocated_by_reading(path)
    assert num == 120 and most < 60_000_000


def test_a_parquet_file_of_one_group_is_read_in_pieces(tmp_path):
    rng = np.random.default_rng(0)
    path = _parquet(tmp_path / "x.parquet", text=[rng.bytes(2000).hex() for _ in range(15_000)])
    assert path.stat().st_size > 50_000_000
    num, most = _allocated_by_reading(path)
    assert num == 15_000 and most < 20_000_000


TEXTS = [
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645.",  # right to left
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u200f(abc)\u200e",
    "e\u0301 \u00e9 a\u0323\u0307 \u0e01\u0e33 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "a\u2028b\u0085c\u2029d\x0be\x0cf",
    "\u200b\ufeffx\u00a0y\u3000z",
    "tab\tand \x1b[31m and \x7f",
]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "csv", "tsv", "parquet"])
def test_odd_characters_are_kept_as_they_are(write, tmp_path, kind):
    quoted = "text\n" + "".join('"' + t.replace('"', '""') + '"\n' for t in TEXTS)
    content = {
        "txt": "\n".join(TEXTS),
        "jsonl": "\n".join(json.dumps({"text": t}, ensure_ascii=False) for t in TEXTS),
        "json": json.dumps([{"text": t} for t in TEXTS]),
        "csv": quoted,
        "tsv": quoted,
    }
    if kind == "parquet":
        path = _parquet(tmp_path / "x.parquet", text=TEXTS)
    else:
        path = write(f"x.{kind}", content[kind])
    assert [d.text for d in read(path)] == TEXTS


@pytest.mark.parametrize("num_nuls", [3, 64, 5000])
def test_nuls_are_taken_out_of_text_however_many_there_are(write, num_nuls):
    line = b"The river rose in the night and carried the small bridge away.\n"
    path = write("x.txt", line + b"Two\0 NUL\0 bytes.\n" + bytes(num_nuls) + b"\n" + line)
    tally = Tally()
    assert [d.text for d in read(path, tally)][1:] == ["Two NUL bytes.", line.decode().strip()]
    assert tally.skipped == {"blank": 1} and tally.cleaned == {"nul_characters": num_nuls + 2}


def test_equal_documents_are_all_read(write):
    assert [d.text for d in read(write("x.txt", "a\n" * 5))] == ["a"] * 5


def test_one_token_documents_and_blank_ones_are_told_apart(write):
    texts, counts = read_on(write("x.txt", "a\n \n\n\t\n\u3000\n.\n\0\0\n7"))
    assert texts == ["a", ".", "7"] and counts == {"blank": 5}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_of_all_systems_give_the_same_documents(write, end, last):
    lines = [f"line {n}" for n in range(8)]
    path = write("x.txt", end.join(lines) + (end if last else ""))
    assert [d.text for d in read(path)] == lines


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv"])
def test_rows_end_as_lines_of_all_systems_do(write, end, kind):
    rows = {
        "jsonl": ['{"text": "a"}', '{"text": "b"}'],
        "json": ["[", '{"text": "a"},', '{"text": "b"}', "]"],
        "csv": ["text,id", "a,1", '"b",2'],
        "tsv": ["text\tid", "a\t1", "b\t2"],
    }
    path = write(f"x.{kind}", end.join(rows[kind]) + end)
    assert [d.text for d in read(path)] == ["a", "b"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "csv"])
def test_a_byte_order_mark_is_no_part_of_the_first_document(write, encoding, kind):
    content = {"txt": "d\u00e9", "jsonl": '{"text": "d\u00e9"}', "csv": "text\nd\u00e9"}
    content["json"] = "[" + content["jsonl"] + "]"
    (document,) = read(write(f"x.{kind}", content[kind].encode(encoding)))
    assert document.text == "d\u00e9"


def test_names_of_fields_cannot_spoil_the_message(write):
    key = "\ud800\n\x1b[2J" + "k" * 10_000
    with pytest.raises(Unusable) as raised:
        read(write("x.jsonl", json.dumps({key: "a"})))
    assert len(str(raised.value)) < 400 and str(raised.value).isprintable()


def test_random_bytes_are_documents_or_an_error_of_ours(write):
    """Whatever is in a file, reading it gives documents or Unusable, under both policies."""
    rng = np.random.default_rng(0)
    seeds = [b'{"text": "a"}\n[{"text": "b"}]\n', b'text,id\n"a",1\n', "d\u00e9\n".encode("utf-16")]
    endings = [
        "txt",
        "jsonl",
        "json",
        "csv",
        "txt.gz",
        "jsonl.zst",
        "csv.bz2",
        "json.xz",
        "parquet",
    ]
    for number in range(400):
        content = bytearray(seeds[number % 3] * int(rng.integers(1, 9)))
        for _ in range(int(rng.integers(1, 6))):
            content[int(rng.integers(len(content)))] = int(rng.integers(256))
        path = write(f"x.{endings[number % len(endings)]}", bytes(content))
        read_on(path)
        try:
            read(path)
        except Unusable as error:
            assert re.match(re.escape(str(path)), str(error))


@pytest.mark.parametrize(
    "fixture",
    [
        "model_file",
        pytest.param("byte_bpe_folder", marks=pytest.mark.slow),
        pytest.param("wordpiece_folder", marks=pytest.mark.slow),
    ],
)
def test_a_line_of_five_million_characters_is_prepared_and_planned(
    fixture, request, write, tmp_path
):
    """One document of it, and one of a word of 200,000 letters; rows are cut from both.

    Half a minute each with the two tokenizers of the slow set.
    """
    from data_pipeline.packing.plan import PackingConfig, plan_window
    from data_pipeline.preparing.prepare import PrepareSettings, prepare
    from data_pipeline.storage.shards import open_shards
    from data_pipeline.transforms.blank import BlankConfig, BlankTransform

    line = "the river rose in the night. " * 172_414 + "12345678"
    path = write("x.txt", f"{line}\n{'x' * 200_000} a\nthe gap\n")
    assert len(line) == 5_000_014
    folder = tmp_path / "shards"
    tokenizer = str(request.getfixturevalue(fixture))
    settings = PrepareSettings(
        input=[str(path)], tokenizer=tokenizer, output=str(folder), workers=1
    )
    assert prepare(settings).documents == 3
    shards = open_shards(folder)
    split = shards.splits["train"]
    ids = split.tokens([0], [0], split.lengths([0]))
    if fixture != "wordpiece_folder":
        assert shards.tokenizer().decode(ids) == line
    transform = BlankTransform(
        BlankConfig(), shards.special, source_tokens=512, vocab_size=shards.vocab_size
    )
    packing = PackingConfig(source_tokens=512, row_tokens=1152)
    plan = plan_window(split, transform, packing, seed=1, epoch=0, window=0)
    assert plan.num_rows > 100
    plan.build(np.arange(16))

"""Files become documents; nothing is dropped without a reason, and errors name file and line."""

import gzip

import pytest
import xxhash

from data_pipeline.reading.documents import Document, ReadSettings, Tally, read_source
from data_pipeline.reading.sources import find_sources


def read(path, tally: Tally | None = None, **settings) -> list[Document]:
    tally = tally or Tally()
    sources = find_sources([str(path)], tally.skipped)
    wanted = ReadSettings(**settings)
    return [d for s in sources for d in read_source(s, wanted, tally, lambda n: None)]


def texts(path, **settings) -> list[str]:
    return [d.text for d in read(path, **settings)]


@pytest.fixture
def text_file(tmp_path):
    def write(content: str | bytes):
        path = tmp_path / "x.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_a_document_is_a_line_a_paragraph_or_a_file(text_file):
    path = text_file("a\nb\n\n \t\nc\n")
    assert texts(path) == ["a", "b", "c"]
    assert texts(path, document="paragraph") == ["a\nb", "c"]
    assert texts(path, document="file") == ["a\nb\n\n \t\nc"]


def test_documents_are_named_by_file_and_line(text_file):
    path = text_file("a\n\n\nb\nc")
    assert [d.id for d in read(path)] == [f"{path}:1", f"{path}:4", f"{path}:5"]
    assert [d.id for d in read(path, document="paragraph")] == [f"{path}:1", f"{path}:4"]


def test_blank_documents_are_counted(text_file):
    tally = Tally()
    assert len(read(text_file("\n  \n\u3000\nreal\n\t\n\x00\x00\n"), tally)) == 1
    assert tally.skipped == {"blank": 5}


def test_nuls_are_taken_out_and_counted(text_file):
    tally = Tally()
    assert [d.text for d in read(text_file("a\x00b\x00\n"), tally)] == ["ab"]
    assert tally.cleaned["nul_characters"] == 2


def test_an_empty_file_is_counted(text_file):
    tally = Tally()
    assert read(text_file(""), tally) == []
    assert tally.skipped == {"empty_file": 1}


def test_one_line_of_five_megabytes_is_one_document(text_file):
    line = "the river rose in the night. " * 172_415
    (document,) = read(text_file(line))
    assert len(document.text) == 5_000_035


def test_json_lines_keep_what_stands_inside_a_string(write_jsonl):
    rows = [{"text": "a\nb\u2028c\r\nd", "title": "T"}, {"text": "b"}]
    path = write_jsonl(rows)
    assert texts(path) == ["a\nb\u2028c\r\nd", "b"]


def test_the_last_of_two_equal_keys_wins(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "first", "text": "second"}')
    assert texts(tmp_path / "x.jsonl") == ["second"]


def test_prompts_are_read_from_their_field(write_jsonl):
    path = write_jsonl([{"q": "Why?", "a": "Because."}, {"q": "", "a": "So."}])
    documents = read(path, text_field="a", prompt_field="q")
    assert [(d.prompt, d.text) for d in documents] == [("Why?", "Because."), ("", "So.")]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"content": "x"}', "no field 'text'; it has: content. Name one with --text-field"),
        ("{}", "no field 'text'; it has: none"),
        ('{"text": null}', "must be a string, got null"),
        ('{"text": 7}', "must be a string, got int"),
        ('{"text": ["x"]}', "must be a string, got list"),
        ('["x"]', "must be an object .*got list"),
        ('"x"', "must be an object .*got str"),
        ("null", "must be an object .*got NoneType"),
        ('{"text": "unterminated', "broken JSON"),
        ("{'text': 'x'}", "broken JSON"),
        ('{"text": "x"} {"text": "y"}', "broken JSON"),
        ('{"text": "\\ud83d"}', "half a character .*ud83d"),
        ("[" * 100_000, "broken JSON"),
    ],
)
def test_a_wrong_row_is_an_error_with_file_and_line(tmp_path, line, says):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "fine"}\n\n' + line + "\n")
    with pytest.raises(ValueError, match=rf"x\.jsonl:3: .*{says}"):
        read(path)


def test_a_missing_prompt_is_an_error(write_jsonl):
    path = write_jsonl([{"text": "a", "q": "b"}, {"text": "a"}])
    with pytest.raises(ValueError, match=r"rows\.jsonl:2: no field 'q'.*--prompt-field"):
        read(path, prompt_field="q")


def test_json_lines_in_utf16_are_read_by_their_mark(tmp_path):
    (tmp_path / "x.jsonl").write_bytes('{"text": "d\u00e9"}\n{"text": "b"}'.encode("utf-16"))
    assert texts(tmp_path / "x.jsonl") == ["d\u00e9", "b"]


def _parquet(path, columns, **options):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def test_parquet_rows_are_documents(tmp_path):
    path = _parquet(
        tmp_path / "x.parquet", {"text": ["a", "", "b\nc"], "q": ["1", "2", "3"]}, row_group_size=2
    )
    tally = Tally()
    documents = read(path, tally, prompt_field="q")
    assert [(d.text, d.prompt) for d in documents] == [("a", "1"), ("b\nc", "3")]
    assert tally.skipped == {"blank": 1} and tally.size_bytes == path.stat().st_size
    assert documents[1].id == f"{path}, row 3"


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"content": ["a"], "id": [1]}, "row 1: no field 'text'; it has: content, id"),
        ({"text": ["a", None]}, "row 2: field 'text' must be a string, got null"),
        ({"text": [b"a"]}, "row 1: field 'text' must be a string, got bytes"),
        ({"text": [3]}, "row 1: field 'text' must be a string, got int"),
    ],
)
def test_a_wrong_parquet_row_is_an_error_with_its_number(tmp_path, columns, says):
    path = _parquet(tmp_path / "x.parquet", columns)
    with pytest.raises(ValueError, match=rf"x\.parquet, {says}"):
        read(path)


def test_a_cut_off_parquet_file_is_an_error_with_its_name(tmp_path):
    path = _parquet(tmp_path / "x.parquet", {"text": ["a" * 1000, "b"]})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"x\.parquet: no readable Parquet file"):
        read(path)


def test_a_saved_dataset_is_read_by_rows(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(str(tmp_path / "d"))
    assert texts(tmp_path / "d") == ["a", "b"]


def test_a_hub_dataset_is_streamed(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(path, name, *, split, streaming):
        asked.append((path, name, split, streaming))
        return iter([{"text": "a"}, {"text": "b"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert texts("hf://owner/corpus") == ["a", "b"]
    assert texts("hf://datasets/owner/corpus/en:validation") == ["a", "b"]
    assert asked == [
        ("owner/corpus", None, "train", True),
        ("owner/corpus", "en", "validation", True),
    ]


def test_a_dataset_that_breaks_while_it_is_read_is_one_line(monkeypatch):
    datasets = pytest.importorskip("datasets")

    class BrokenNetwork(Exception):
        pass

    def rows():
        yield {"text": "a"}
        raise BrokenNetwork("connection\nreset")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows())
    with pytest.raises(ValueError, match=r"^datasets cannot read hf://owner/corpus: conn"):
        read("hf://owner/corpus")


def test_comma_and_tab_separated_rows_are_documents(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('id,text\r\n7,"a, ""b""\r\nc\u2028d"\r\n\r\n8,e\r\n')
    tally = Tally()
    assert [(d.id, d.text) for d in read(path, tally)] == [
        (f"{path}:2", 'a, "b"\r\nc\u2028d'),
        (f"{path}:5", "e"),
    ]
    assert tally.skipped == {"blank": 1} and tally.size_bytes == path.stat().st_size
    (tmp_path / "x.tsv").write_text("\ufefftext\tq\na, b\tWhy?\n" + "long " * 100_000 + "\t\n")
    documents = read(tmp_path / "x.tsv", prompt_field="q")
    assert [(d.prompt, len(d.text)) for d in documents] == [("Why?", 4), ("", 500_000)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("text\na\nb,c\n", ":3: 2 fields, the first row names 1"),
        ("id,text\n1,a\n2\n", ":3: 1 fields, the first row names 2"),
        ('text,id\na,1\n"b\nc,2\n', ":3: broken row"),
        ('text,id\n"a" b,1\n', ":2: broken row"),
        ("id,title\n1,a\n", ":2: no field 'text'; it has: id, title. Name one with --text-field"),
        ("text,text\na,b\n", ":1: two fields have one name"),
        (b"text\ncaf\xe9\n", ", line 2, byte 8: not valid utf-8"),
    ],
)
def test_a_wrong_csv_row_is_an_error_with_file_and_line(tmp_path, content, says):
    path = tmp_path / "x.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"x\.csv{says}"):
        read(path)


def test_a_json_file_is_an_array_or_an_object_a_line(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('\n[\n {"text": "a"},\n {"text": "b"}]\n')
    assert [(d.id, d.text) for d in read(path)] == [
        (f"{path}, row 1", "a"),
        (f"{path}, row 2", "b"),
    ]
    path.write_text('\n{"text": "a"}\n{"text": "b"}\n')
    assert [(d.id, d.text) for d in read(path)] == [(f"{path}:2", "a"), (f"{path}:3", "b")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"text": "a"},\n{"text": }]', ":2: broken JSON"),
        ('[{"text": "a"}]\n[{"text": "b"}]', ":2: broken JSON"),
        ('[{"text": "a"}, "b"]', ", row 2: each row must be an object"),
        ('[{"text": null}]', ", row 1: field 'text' must be a string, got null"),
        ('{"text": "a"}\n{"text": ', ":2: broken JSON"),
        ("[" * 100_000, ": broken JSON|:1: broken JSON"),
    ],
)
def test_a_wrong_json_file_is_an_error_with_its_place(tmp_path, content, says):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=rf"x\.json({says})"):
        read(tmp_path / "x.json")


@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "csv", "tsv"])
def test_compressed_files_are_read_like_plain_ones(tmp_path, kind):
    content = {"txt": "a\nb", "jsonl": '{"text": "a"}\n{"text": "b"}'}
    content |= {"json": '[{"text": "a"}, {"text": "b"}]', "csv": "text\na\nb", "tsv": "text\na\nb"}
    path = tmp_path / f"x.{kind}.gz"
    path.write_bytes(gzip.compress(content[kind].encode()))
    tally = Tally()
    assert [d.text for d in read(path, tally)] == ["a", "b"]
    # size and hash are of the file as it lies there
    assert tally.size_bytes == path.stat().st_size
    assert tally.xxh3 == xxhash.xxh3_128_hexdigest(path.read_bytes())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"x\.{kind}\.gz: no whole \.gz file"):
        read(path)
    path.write_bytes(gzip.compress(b""))
    assert read(path, tally) == [] and tally.skipped["empty_file"] == 1


def test_a_row_written_as_json_is_read_back(write_jsonl):
    text = 'quotes " and \\ and \u00e9 and \U0001f600 and \u0085'
    assert texts(write_jsonl([{"text": text}])) == [text]

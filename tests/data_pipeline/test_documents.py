"""Files become documents; nothing is dropped without a reason, and errors name file and line."""

import pytest

from data_pipeline.documents import Document, ReadSettings, Tally, read_source
from data_pipeline.sources import find_sources


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
    with pytest.raises(ValueError, match=r"x\.parquet is no readable Parquet file"):
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


def test_a_row_written_as_json_is_read_back(write_jsonl):
    text = 'quotes " and \\ and \u00e9 and \U0001f600 and \u0085'
    assert texts(write_jsonl([{"text": text}])) == [text]

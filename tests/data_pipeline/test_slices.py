"""The input is cut by itself alone; every line is read once, by the slice in which it begins."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_pipeline.preparing.slices as room
from data_pipeline.preparing.slices import plan_slices, read_piece
from data_pipeline.reading.documents import ReadSettings, Tally, read_source
from data_pipeline.reading.sources import find_sources
from data_pipeline.reading.unusable import Skipping

LINES = ReadSettings()


def plan(paths, slice_bytes, settings=LINES):
    sources = find_sources([str(p) for p in paths], Tally().skipped)
    return plan_slices(sources, settings, slice_bytes)


def shown(slices) -> list[list[tuple]]:
    """[[(file name, begin, end), ...], ...]"""
    return [[(p.source.name.rpartition("/")[2], p.begin, p.end) for p in s] for s in slices]


def texts(slices, settings=LINES, tally=None) -> list[str]:
    tally = tally or Tally()
    return [
        document.text
        for pieces in slices
        for piece in pieces
        for document in read_piece(piece, settings, tally, lambda num_bytes: None)
    ]


def test_small_files_go_together_large_ones_of_lines_are_cut(tmp_path):
    sizes = {"a.txt": 30, "b.csv": 40, "c.jsonl": 40, "d.txt": 250, "e.csv": 500, "f.txt": 10}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * (size - 1) + b"\n")
    assert shown(plan([tmp_path], 100)) == [
        [("a.txt", 0, None), ("b.csv", 0, None)],
        [("c.jsonl", 0, None)],
        [("d.txt", 0, 100)],
        [("d.txt", 100, 200)],
        [("d.txt", 200, 250)],
        [("e.csv", 0, None)],
        [("f.txt", 0, None)],
    ]


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("x.txt.gz", gzip.compress(b"a b\n" * 9), ReadSettings()),
        ("x.json", b'{"text": "a"}\n' * 9, ReadSettings()),
        ("x.txt", b"a b\n" * 9, ReadSettings(document="paragraph")),
        ("x.txt", b"a b\n" * 9, ReadSettings(document="file")),
        ("x.txt", "a b\n".encode("utf-16-le") * 9, ReadSettings(encoding="utf-16-le")),
        ("x.txt", ("\ufeff" + "a b\n" * 9).encode("utf-16-le"), ReadSettings()),
        ("x.txt", b"a b\n" * 9, ReadSettings(encoding="gbk")),
        ("x.txt", b"a\0b\n" * 9, ReadSettings()),
    ],
)
def test_whatever_has_lines_that_no_byte_tells_is_read_whole(tmp_path, name, content, settings):
    (tmp_path / name).write_bytes(content)
    assert shown(plan([tmp_path / name], 5, settings)) == [[(name, 0, None)]]


def test_slices_too_small_to_be_meant_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_MAX_SLICES", 100)
    (tmp_path / "x.txt").write_text("a b\n" * 100)
    with pytest.raises(ValueError, match="--slice-bytes 2 cuts the input into more than 100"):
        plan([tmp_path / "x.txt"], 2)


line_ends = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\n\r\n"])
line_texts = st.text(st.sampled_from("ab é\u2028\ufeff你"), max_size=12)


@given(st.lists(st.tuples(line_texts, line_ends), max_size=12), line_texts, st.integers(1, 30))
def test_the_documents_are_those_of_the_whole_file(tmp_path_factory, lines, last, slice_bytes):
    path = tmp_path_factory.mktemp("in") / "x.txt"
    path.write_bytes("".join(f"{text}{end}" for text, end in lines).encode() + last.encode())
    (source,) = find_sources([str(path)], Tally().skipped)
    whole, cut = Tally(), Tally()
    expected = [d.text for d in read_source(source, LINES, whole, lambda n: None)]
    slices = plan([path], slice_bytes)
    assert len(slices) == max(1, -(-path.stat().st_size // slice_bytes))
    assert texts(slices, tally=cut) == expected
    assert cut.skipped == whole.skipped


def test_pieces_tell_the_bytes_they_are(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"aaaa\nbb\ncccccccccc\nd\n")
    sizes = []
    for pieces in plan([tmp_path / "x.txt"], 5):
        tally = Tally()
        texts([pieces], tally=tally)
        sizes.append(tally.size_bytes)
    assert sizes == [5, 3 + 11, 0, 2, 0]  # "bb" and the long line begin in the second five bytes


@pytest.mark.parametrize("slice_bytes", [7, 20, 64, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_error_inside_a_file_names_its_line(tmp_path, slice_bytes, end):
    lines = [json.dumps({"text": f"number {n}"}) for n in range(40)]
    lines[27] = "{"
    (tmp_path / "x.jsonl").write_bytes(end.join(lines).encode())
    with pytest.raises(ValueError, match=r"x\.jsonl:28: broken JSON"):
        texts(plan([tmp_path / "x.jsonl"], slice_bytes))


def test_undecodable_bytes_inside_a_file_are_named_by_line_and_byte(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"ab\ncd\r\nef\rgh\nij\nk\xff\n")
    with pytest.raises(ValueError, match=r"x\.txt, line 6, byte 17"):
        texts(plan([tmp_path / "x.txt"], 6))


def test_more_skips_than_allowed_are_named_by_the_line_that_is_one_too_many(tmp_path):
    (tmp_path / "x.jsonl").write_text("\n".join(['{"text": "a"}', "{"] * 9))
    with pytest.raises(ValueError, match=r"6 broken_json\). The last: \S+x\.jsonl:12: broken"):
        texts(plan([tmp_path / "x.jsonl"], 20), tally=Tally(refuse=Skipping(5)))


def test_what_is_skipped_is_counted_once(tmp_path):
    lines = ['{"text": "a"}', "{", '{"no": 1}', '{"text": 3}', "", '{"text": "b"}'] * 5
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    counted = []
    for slice_bytes in (9, 40, 10_000):
        tally = Tally(refuse=Skipping(100))
        assert texts(plan([tmp_path / "x.jsonl"], slice_bytes), tally=tally) == ["a", "b"] * 5
        counted.append((tally.refuse.counts, tally.skipped))
    assert counted[0] == counted[1] == counted[2]
    assert counted[0][0].total() == 15 and counted[0][1]["blank"] == 5

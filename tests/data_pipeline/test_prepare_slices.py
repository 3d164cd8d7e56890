"""The shards do not know how the work was divided, and what is left out is counted and capped."""

import errno
import json
import os
from contextlib import contextmanager

import numpy as np
import pytest

from data_pipeline.preparing.merge import merge
from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.preparing.parts import PartWriter
from data_pipeline.preparing.prepare import AlreadyPrepared, PrepareSettings, prepare
from data_pipeline.preparing.prepare_slice import prepare_slice
from data_pipeline.preparing.request import open_request
from data_pipeline.reading.documents import ReadSettings
from data_pipeline.storage.manifest import read_manifest
from data_pipeline.storage.shards import open_shards

SLICE_BYTES = 6000  # mixed_folder is 17 slices then
CHOICES = {
    "plain": {},
    "in many shards": {"mix": 3, "validation": 0.2, "shard_tokens": 700},
    "without repeats": {"dedup": "exact", "validation": 0.3},
}


@pytest.fixture
def settings(tmp_path, model_file, mixed_folder):
    """Settings that prepare into tmp_path/NAME."""

    def build(name, **changes):
        given = {"input": [str(mixed_folder)], "tokenizer": str(model_file), "workers": 1}
        return PrepareSettings(output=str(tmp_path / name), **given | changes)

    return build


@pytest.fixture
def write(tmp_path):
    """Writes one input file and gives its path as a list of inputs."""

    def write_file(name, content) -> list[str]:
        (tmp_path / name).write_text(content)
        return [str(tmp_path / name)]

    return write_file


def contents(folder) -> dict[str, bytes]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def texts(folder) -> list[str]:
    """The documents of the train split, read back."""
    shards = open_shards(folder)
    split, tokenizer = shards.splits["train"], shards.tokenizer()
    numbers = np.arange(split.num_documents)
    lengths = split.lengths(numbers)
    flat = split.tokens(numbers, np.zeros_like(lengths), lengths)
    return [tokenizer.decode(t) for t in np.split(flat, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
def test_any_number_of_workers_and_slices_gives_the_same_bytes(settings, tmp_path, chosen):
    prepare(settings("whole", **chosen))
    expected = contents(tmp_path / "whole")
    for name, workers, slice_bytes in [("one", 1, 6000), ("two", 2, 6000), ("three", 3, 900)]:
        prepare(settings(name, workers=workers, slice_bytes=slice_bytes, **chosen))
        assert contents(tmp_path / name) == expected, name


def test_slices_by_hand_in_any_order_and_a_merge_give_the_same_bytes(settings, tmp_path):
    prepare(settings("whole", validation=0.2))
    request = open_request(settings("by hand", validation=0.2, slice_bytes=SLICE_BYTES))
    assert len(request.slices) > 10
    with OutputFolder(tmp_path / "by hand", is_shared=True) as work:
        for number in reversed(range(1, len(request.slices))):
            prepare_slice(request, number, work.slices)
    with OutputFolder(tmp_path / "by hand") as work:
        with pytest.raises(ValueError, match=r"1 of \d+ slices are not finished: number 0\."):
            merge(request, work)
        prepare_slice(request, 0, work.slices)
        merge(request, work)
    assert contents(tmp_path / "by hand") == contents(tmp_path / "whole")
    assert not (tmp_path / ".by hand.partial").exists()


def test_progress_counts_what_the_merge_reads_of_the_input_once_more(settings, mixed_folder):
    bars = []

    @contextmanager
    def watch(total_bytes):
        bars.append([total_bytes, 0])

        def on_bytes(num_bytes):
            bars[-1][1] += num_bytes

        yield on_bytes

    prepare(settings("whole"), watch)
    prepare(settings("x", slice_bytes=SLICE_BYTES), watch)
    _, of_whole, _, of_slices = bars
    assert of_whole[0] == of_whole[1] and of_slices[0] == of_slices[1]
    cut_bytes = sum((mixed_folder / name).stat().st_size for name in ("a.txt", "b.jsonl"))
    assert of_slices[0] >= of_whole[0] + cut_bytes


def test_tasks_share_a_folder_that_nobody_else_may_complete(settings, tmp_path):
    with OutputFolder(tmp_path / "x", is_shared=True):
        with OutputFolder(tmp_path / "x", is_shared=True):
            pass
        with pytest.raises(ValueError, match="another process is writing"):
            prepare(settings("x"))


def test_the_first_of_equal_documents_stays(settings, write, tmp_path):
    lines = ["the river", "a bridge", "the river", "old one", "a bridge", "the  river"]
    chosen = settings("x", input=write("x.txt", "\n".join(lines)), dedup="exact", slice_bytes=12)
    manifest = prepare(chosen)
    assert texts(tmp_path / "x") == ["the river", "a bridge", "old one", "the  river"]
    assert manifest.skipped == {"duplicate": 2}
    assert [s.documents for s in manifest.sources] == [4]


def test_documents_of_other_prompts_are_no_duplicates(settings, write, tmp_path):
    rows = [{"q": q, "text": t} for q, t in [("a", "b"), ("old", "b"), ("a", "b"), ("", "a b")]]
    path = write("x.jsonl", "\n".join(json.dumps(row) for row in rows))
    read = ReadSettings(prompt_field="q")
    assert prepare(settings("x", input=path, dedup="exact", read=read)).skipped == {"duplicate": 1}
    assert len(texts(tmp_path / "x")) == 3


def test_deduplication_leaves_the_split_of_each_text_as_it_was(settings, tmp_path):
    kept = prepare(settings("kept", validation=0.3))
    single = prepare(settings("single", validation=0.3, dedup="exact"))
    assert single.documents == kept.documents - single.skipped["duplicate"]
    assert sorted({*texts(tmp_path / "kept")}) == sorted(texts(tmp_path / "single"))


BAD_ROWS = ['{"text": "a"}', "{", '{"no": 1}', '{"text": null}', '{"text": "b"}', '"c"', "", "{"]


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_that_cannot_be_used_are_counted_by_reason(settings, write, tmp_path, workers):
    path = write("x.jsonl", "\n".join(BAD_ROWS * 4))
    manifest = prepare(settings("x", input=path, on_error="skip", workers=workers, slice_bytes=70))
    assert texts(tmp_path / "x") == ["a", "b"] * 4
    assert manifest.skipped.pop("blank") == 4
    assert sorted(manifest.skipped.values()) == [4, 4, 4, 8]


def test_more_skipped_than_allowed_is_an_error_that_counts(settings, write, tmp_path):
    path = write("x.jsonl", "\n".join(BAD_ROWS * 4))
    chosen = {"input": path, "on_error": "skip", "slice_bytes": 70}
    with pytest.raises(ValueError, match=r"more than --max-skipped 7 .*\(\d \w+, \d \w+"):
        prepare(settings("x", max_skipped=7, **chosen))
    # A larger limit goes on with the slices that are there: it decides about no byte.
    assert list((tmp_path / ".x.partial/slices").glob("*.json"))
    assert prepare(settings("x", max_skipped=20, **chosen)).documents == 8


def test_an_error_in_a_worker_is_one_line_with_file_and_line(settings, write, tmp_path):
    rows = ['{"text": "the river rose"}'] * 60
    rows[41] = "{"
    path = write("x.jsonl", "\n".join(rows))
    with pytest.raises(ValueError, match=r"^\S*x\.jsonl:42: broken JSON") as error:
        prepare(settings("x", input=path, workers=2, slice_bytes=200))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x").exists()


def test_workers_import_nothing_that_lies_where_the_user_is(settings, tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise SystemExit('imported')")
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    assert prepare(settings("x", workers=2, slice_bytes=SLICE_BYTES)).documents


def test_a_corrected_file_alone_is_read_again(settings, tmp_path, caplog):
    (tmp_path / "in").mkdir()
    for number in range(5):
        (tmp_path / f"in/{number}.txt").write_text(f"the river rose {number} times\n" * 20)
    (tmp_path / "in/3.txt").write_bytes(b"the river \xff\n")
    chosen = {"input": [str(tmp_path / "in")], "slice_bytes": 460}
    with pytest.raises(ValueError, match=r"3\.txt, line 1.*3 of 5 slices are finished and stay"):
        prepare(settings("x", **chosen))
    kept = {p.name: p.stat().st_ino for p in (tmp_path / ".x.partial/slices").iterdir()}
    (tmp_path / "in/3.txt").write_text("the river\n")
    with caplog.at_level("INFO"):
        manifest = prepare(settings("x", **chosen))
    assert manifest.documents == 81 and len(kept) == 6
    assert "3 of 5 slices were finished before." in caplog.text


def test_slices_of_a_changed_request_are_removed_and_said(settings, tmp_path, caplog):
    request = open_request(settings("x", slice_bytes=SLICE_BYTES))
    with OutputFolder(tmp_path / "x") as work:
        prepare_slice(request, 0, work.slices)
        prepare_slice(request, 3, work.slices)
    other = settings("x", slice_bytes=SLICE_BYTES, read=ReadSettings(document="file"))
    prepare(other)
    assert "2 finished slices of another request" in caplog.text
    prepare(settings("again", read=ReadSettings(document="file")))
    assert contents(tmp_path / "x") == contents(tmp_path / "again")


def test_a_damaged_part_is_found_and_made_anew(settings, tmp_path):
    request = open_request(settings("x", slice_bytes=SLICE_BYTES))
    with OutputFolder(tmp_path / "x") as work:
        prepare_slice(request, 0, work.slices)
        part = next(work.slices.glob("*.part"))
        content = part.read_bytes()
        part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"is damaged and was removed. Run the same command"):
        prepare(settings("x", slice_bytes=SLICE_BYTES))
    prepare(settings("x", slice_bytes=SLICE_BYTES))
    prepare(settings("whole"))
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")


def test_a_file_that_grows_while_it_is_read_is_an_error(settings, write, tmp_path):
    path = write("x.txt", "the river rose\n")
    request = open_request(settings("x", input=path))
    (tmp_path / "x.txt").write_text("the river rose\nin night\n")
    with (
        OutputFolder(tmp_path / "x") as work,
        pytest.raises(ValueError, match=r"x\.txt was written to while it was read"),
    ):
        prepare_slice(request, 0, work.slices)


@pytest.mark.parametrize("output", ["in/shards", "in/a/b"])
def test_an_output_inside_an_input_is_an_error(settings, tmp_path, output):
    (tmp_path / "in/a").mkdir(parents=True)
    (tmp_path / "in/x.txt").write_text("the river rose\n")
    with pytest.raises(ValueError, match=r"--output .* lies inside --input .*in, so that"):
        prepare(settings(output, input=[str(tmp_path / "in")]))
    assert not list(tmp_path.glob("**/.*"))


def test_an_output_that_is_a_link_to_an_empty_folder_is_where_it_leads(settings, tmp_path):
    (tmp_path / "disk/shards").mkdir(parents=True)
    (tmp_path / "x").symlink_to("disk/shards")
    manifest = prepare(settings("x"))
    assert (tmp_path / "x").is_symlink()
    assert read_manifest(tmp_path / "disk/shards") == manifest
    assert [p.name for p in (tmp_path / "disk").iterdir()] == ["shards"]
    with pytest.raises(AlreadyPrepared):
        prepare(settings("x"))


def test_an_output_that_is_a_link_to_itself_is_an_error(settings, tmp_path):
    (tmp_path / "x").symlink_to("x")
    with pytest.raises(ValueError, match="exists and holds something else"):
        prepare(settings("x"))


def test_an_output_where_a_disk_is_mounted_is_an_error_before_the_work(
    settings, tmp_path, monkeypatch
):
    (tmp_path / "x").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "x")
    with pytest.raises(ValueError, match=r"x is the root of a file system.* as .*x/shards\.$"):
        prepare(settings("x"))
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_full_disk_is_said_and_keeps_what_is_finished(settings, tmp_path, monkeypatch):
    calls = []

    def add(part, *arguments) -> None:
        calls.append(part)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(part, *arguments)

    plain = PartWriter.add
    monkeypatch.setattr(PartWriter, "add", add)
    with pytest.raises(ValueError, match=r"the disk is full under .*\.x\.partial .*4 of 12 slices"):
        prepare(settings("x", slice_bytes=SLICE_BYTES))
    prepare(settings("x", slice_bytes=SLICE_BYTES))
    assert len(set(map(id, calls[5:]))) == 8  # parts


def test_a_file_whose_name_is_no_text_is_named_by_its_bytes(settings, tmp_path):
    (tmp_path / "in").mkdir()
    path = os.fsdecode(os.fsencode(tmp_path / "in") + b"/\xff.txt")
    with open(path, "w") as file:
        file.write("the river\n")
    manifest = prepare(settings("x", input=[str(tmp_path / "in")]))
    assert manifest.sources[0].path == f"{tmp_path}/in/\\udcff.txt"


@pytest.mark.parametrize("option", ["workers", "slice_bytes", "shard_tokens"])
def test_counts_start_at_one(settings, option):
    with pytest.raises(ValueError, match=f"--{option.replace('_', '-')} must be at least 1, got 0"):
        settings("x", **{option: 0})

"""Inputs name files in a fixed order; what is left out is counted, what is wrong is named."""

import glob
import os
from collections import Counter
from pathlib import Path

import pytest

from data_pipeline.reading.file_kinds import kind_of, without_credentials
from data_pipeline.reading.patterns import expand
from data_pipeline.reading.sources import find_sources


def names(*inputs, skipped: Counter | None = None) -> list[str]:
    return [s.name for s in find_sources([str(i) for i in inputs], skipped or Counter())]


@pytest.fixture
def tree(tmp_path):
    for name in ("b.txt", "a/z.jsonl", "a/y.TXT", "c/d/e.parquet", "a.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    (tmp_path / ".hidden.txt").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/a.txt").write_text("x")
    (tmp_path / "notes.md").write_text("x")
    return tmp_path


def test_a_folder_is_read_in_the_order_of_its_paths(tree):
    skipped: Counter = Counter()
    found = [s.name for s in find_sources([str(tree)], skipped)]
    expected = ["a/y.TXT", "a/z.jsonl", "a.txt", "b.txt", "c/d/e.parquet"]
    assert found == [str(tree / name) for name in expected]
    assert skipped == {"hidden_file": 2, "unknown_file": 1}


def test_inputs_keep_the_order_they_are_given_in(tree):
    assert names(tree / "b.txt", tree / "a") == [
        str(tree / n) for n in ("b.txt", "a/y.TXT", "a/z.jsonl")
    ]


def test_globs_reach_into_folders(tree):
    assert names(f"{tree}/**/*.txt") == [str(tree / "a.txt"), str(tree / "b.txt")]
    skipped: Counter = Counter()
    find_sources([f"{tree}/*"], skipped)
    assert skipped == {"unknown_file": 1}


def test_a_name_with_glob_characters_that_exists_is_that_file(tmp_path):
    (tmp_path / "a[1].txt").write_text("x")
    assert names(tmp_path / "a[1].txt") == [str(tmp_path / "a[1].txt")]


def test_a_link_to_a_folder_above_is_counted_not_followed(tree):
    (tree / "a" / "loop").symlink_to(tree)
    skipped: Counter = Counter()
    assert len(find_sources([str(tree)], skipped)) == 5
    assert skipped["folder_link_loop"] == 1


def test_a_link_out_to_a_folder_around_the_input_is_not_followed(tree):
    (tree / "a" / "up").symlink_to("..")
    (tree / "a" / "root").symlink_to("/")
    skipped: Counter = Counter()
    found = [s.name for s in find_sources([str(tree / "a")], skipped)]
    assert found == [str(tree / "a" / n) for n in ("y.TXT", "z.jsonl")]
    assert skipped["folder_link_loop"] == 2


def test_a_pattern_from_here_is_not_led_out_to_a_folder_around(tree, monkeypatch):
    (tree / "a" / "up").symlink_to("..")
    monkeypatch.chdir(tree / "a")
    skipped: Counter = Counter()
    found = [s.name for s in find_sources(["**/*.[jT]*"], skipped)]
    assert found == ["y.TXT", "z.jsonl"] and skipped["folder_link_loop"] == 1


def test_a_folder_reached_by_two_links_is_read_once(tmp_path):
    """Twenty folders of two links to the next would be a million times the last one's file."""
    for n in range(20):
        (tmp_path / f"d{n:02d}").mkdir()
        for link in "ab":
            (tmp_path / f"d{n:02d}" / link).symlink_to(tmp_path / f"d{n + 1:02d}")
    (tmp_path / "d20").mkdir()
    (tmp_path / "d20" / "x.txt").write_text("x")
    skipped: Counter = Counter()
    (found,) = find_sources([str(tmp_path)], skipped)
    assert found.name == str(tmp_path / "d00" / "/".join("a" * 20) / "x.txt")
    assert skipped == {"folder_named_twice": 40}


def test_links_that_lead_nowhere_are_counted(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "self.txt").symlink_to("self.txt")
    (tmp_path / "gone.txt").symlink_to("absent.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    skipped: Counter = Counter()
    assert len(find_sources([str(tmp_path)], skipped)) == 1 and skipped == {"unknown_file": 3}
    with pytest.raises(ValueError, match=r"pipe\.txt is neither a file nor a folder"):
        names(tmp_path / "pipe.txt")


@pytest.mark.parametrize("pattern", ["**/*.txt", "**/**/a.txt", "**", "a/../*/**/*"])
def test_a_pattern_follows_no_link_to_a_folder_above(tree, pattern):
    (tree / "a" / "up").symlink_to("..")
    (tree / "c" / "d" / "top").symlink_to(tree)
    skipped: Counter = Counter()
    found = [s.name for s in find_sources([f"{tree}/{pattern}", f"{tree}/a.txt"], skipped)]
    assert len(found) == len(set(found)) <= 5 and str(tree / "a.txt") in found
    assert skipped["folder_link_loop"] in (1, 2)
    assert skipped["file_named_twice"] == (pattern != "a/../*/**/*")


def test_a_pattern_finds_what_glob_finds(tree):
    (tree / "linked").symlink_to(tree / "c")  # to a folder beside it
    for pattern in (
        "*",
        "**",
        "**/*",
        "a*",
        "?.txt",
        "[ab].txt",
        "**/y*",
        "c/**/e.*",
        "*/d/*",
        ".*",
    ):
        expected = [m for m in glob.glob(f"{tree}/{pattern}", recursive=True) if os.path.isfile(m)]
        assert [str(p) for p in expand(f"{tree}/{pattern}", Counter())] == sorted(
            set(expected), key=lambda m: Path(m).parts
        )


def test_a_pattern_without_a_folder_starts_here(tree, monkeypatch):
    monkeypatch.chdir(tree)
    assert names("?.txt") == ["a.txt", "b.txt"]
    assert names("**/z*") == ["a/z.jsonl"]


def test_a_file_that_is_named_twice_is_read_once(tree, memory):
    (tree / "c" / "again.txt").symlink_to(tree / "b.txt")
    skipped: Counter = Counter()
    inputs = [tree / "b.txt", tree, f"{tree}/*.txt", f"file://{tree}/b.txt"]
    urls = ["memory://corpus/b.txt", "memory://corpus"]
    found = [s.name for s in find_sources([*map(str, inputs), *urls], skipped)]
    expected = [str(tree / n) for n in ("b.txt", "a/y.TXT", "a/z.jsonl", "a.txt", "c/d/e.parquet")]
    assert found == [*expected, "memory://corpus/b.txt", "memory://corpus/a/c.jsonl"]
    assert skipped["file_named_twice"] == 2 + 2 + 1 + 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p / "absent.txt", "does not exist"),
        (lambda p: p / "notes.md", r"endings that can be read are \.txt, \.jsonl, .*\.parquet"),
        (lambda p: p / ".git" / "hooks*", "does not exist|holds no file"),
        (lambda p: p / "*.csv", "holds no file"),
        (lambda p: p / "notes.md", r"\.csv, \.tsv.* also with \.gz, \.bz2, \.xz, \.zst"),
    ],
)
def test_an_input_that_names_nothing_is_an_error(tree, make, says):
    with pytest.raises(ValueError, match=says):
        names(make(tree))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a/X.TXT", "text"),
        ("x.txt.gz", "text"),
        ("x.JSONL.XZ", "jsonl"),
        ("x.json.bz2", "json"),
        ("x.y.csv.zst", "csv"),
        ("x.tsv", "tsv"),
        ("x.parquet", "parquet"),
        ("x.parquet.gz", None),
        ("x.gz", None),
        ("x.txt.zip", None),
        ("txt", None),
    ],
)
def test_the_endings_of_a_name_tell_what_is_in_the_file(name, kind):
    assert kind_of(name) == kind


def test_a_folder_without_known_files_is_an_error(tmp_path):
    (tmp_path / "x.md").write_text("x")
    with pytest.raises(ValueError, match="holds no file ending in"):
        names(tmp_path)


def test_a_hidden_file_named_directly_is_read(tmp_path):
    (tmp_path / ".x.txt").write_text("x")
    (source,) = find_sources([str(tmp_path / ".x.txt")], Counter())
    assert source.name == str(tmp_path / ".x.txt")


def test_a_saved_datasetdict_names_what_to_do(tmp_path):
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(ValueError, match="Name the folder of one split"):
        names(tmp_path)


@pytest.fixture
def memory():
    fsspec = pytest.importorskip("fsspec")
    filesystem = fsspec.filesystem("memory")
    for name, text in {"/corpus/b.txt": "b\n", "/corpus/a/c.jsonl": '{"text": "c"}\n'}.items():
        filesystem.pipe(name, text.encode())
    filesystem.pipe("/corpus/notes.md", b"x")
    yield
    filesystem.rm("/corpus", recursive=True)


def test_urls_are_read_through_fsspec(memory):
    skipped: Counter = Counter()
    sources = find_sources(["memory://corpus"], skipped)
    assert [s.name for s in sources] == ["memory://corpus/a/c.jsonl", "memory://corpus/b.txt"]
    assert skipped == {"unknown_file": 1}
    with sources[1].open() as file:
        assert file.read() == b"b\n"
    assert names("memory://corpus/*.txt") == ["memory://corpus/b.txt"]
    assert names("memory://corpus/b.txt") == ["memory://corpus/b.txt"]


@pytest.mark.parametrize("url", ["memory://corpus/absent.txt", "nosuch://x/y.txt"])
def test_a_url_that_cannot_be_read_is_an_error_with_its_name(memory, url):
    with pytest.raises(ValueError, match=f"--input {url}"):
        names(url)


def test_a_url_that_is_not_there_is_named_as_given(memory):
    with pytest.raises(
        ValueError, match=r"^--input memory://corpus/no\.txt: there is no such file"
    ):
        names("memory://corpus/no.txt")


@pytest.mark.parametrize("name", ["x.txt.zip", "x.TGZ", "x.parquet.gz", "x.tar.xz"])
def test_packed_files_are_to_be_unpacked_not_renamed(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ValueError, match="Unpack it, and name what is in it") as raised:
        names(tmp_path / name)
    assert "Rename" not in str(raised.value)


class BrokenNetwork(Exception):
    """Of no class that Python knows, as those of botocore and aiohttp."""


def fails(*_args, **_options):
    raise BrokenNetwork("no route\nto host")


def test_a_network_that_breaks_is_one_line_with_the_source(memory, monkeypatch):
    import fsspec

    (source,) = find_sources(["memory://corpus/b.txt"], Counter())
    filesystem = fsspec.filesystem("memory")
    with monkeypatch.context() as broken:
        broken.setattr(type(filesystem), "open", fails)
        with pytest.raises(ValueError, match=r"^memory://corpus/b\.txt: no route to host$"):
            source.open()
        broken.setattr(type(filesystem), "info", fails)
        with pytest.raises(ValueError, match=r"^--input memory://corpus/b\.txt: no route"):
            find_sources(["memory://corpus/b.txt"], Counter())
    with source.open() as file, monkeypatch.context() as broken:
        broken.setattr(type(file._file), "read", fails, raising=False)
        with pytest.raises(ValueError, match=r"^memory://corpus/b\.txt: no route to host$"):
            file.read(10)


def test_credentials_are_left_out_of_names():
    url = "https://user:secret@host.org:80/a/b.txt?token=secret#x"
    assert without_credentials(url) == "https://host.org:80/a/b.txt"
    assert without_credentials("s3://bucket/a.txt") == "s3://bucket/a.txt"

"""Large inputs behind URLs: a slice fetches its own bytes, and the merge none of them again."""

from typing import ClassVar

import pytest

from data_pipeline.preparing import downloads
from data_pipeline.preparing.array import merge_slices, prepare_share
from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.preparing.request import open_request

SLICE_BYTES = 200_000
LOOKED_AT_BYTES = 3 * (1 << 16)  # of a slice: where its first and its last line end


@pytest.fixture
def bucket():
    """Five objects, 1.2 MB, in a store that notes which bytes of which object are fetched."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem
    from fsspec.spec import AbstractBufferedFile

    class Counted(AbstractBufferedFile):
        def _fetch_range(self, start: int, end: int) -> bytes:
            content = bytes(self.fs.store[self.path].getbuffer())[start:end]
            self.fs.fetched.append((self.path, start, start + len(content)))
            return content

    class Bucket(MemoryFileSystem):
        protocol = "bucket"
        store: ClassVar = {}
        pseudo_dirs: ClassVar = [""]
        fetched: ClassVar[list] = []
        infos: ClassVar[list] = []

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return "/" + path.removeprefix("bucket://").strip("/")

        def info(self, path, **kwargs):
            self.infos.append(path)
            return super().info(path, **kwargs)

        def _open(self, path, mode="rb", block_size=None, cache_type="readahead", **kwargs):
            if mode != "rb":
                return super()._open(path, mode, **kwargs)
            # As s3fs does: 50 MB are read ahead unless it is told not to.
            return Counted(self, path, mode, 50 << 20, cache_type=cache_type, size=self.size(path))

    fsspec.register_implementation("bucket", Bucket, clobber=True)
    Bucket.store.clear()
    Bucket.fetched.clear()
    lines = [f"{n} the river rose in the night and carried the small bridge away" for n in range(6)]
    small = "\n".join(lines) + "\n"
    filesystem = Bucket()
    filesystem.pipe("/box/a.txt", (small * 1500).encode())
    filesystem.pipe("/box/b.jsonl", b'{"text": "the old bridge"}\n' * 25_000)
    for name in "cde":
        filesystem.pipe(f"/box/{name}.txt", small.encode())
    return Bucket


@pytest.fixture
def settings(tmp_path, model_file):
    def build(name, **changes):
        given = {"input": ["bucket://box"], "tokenizer": str(model_file), "workers": 1}
        given |= {"slice_bytes": SLICE_BYTES}
        return PrepareSettings(output=str(tmp_path / name), **given | changes)

    return build


def contents(folder) -> dict[str, bytes]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def num_bytes(fetched) -> int:
    return sum(end - start for _, start, end in fetched)


def test_a_slice_fetches_its_own_bytes_alone(bucket, settings):
    request = open_request(settings("x"))
    planned = num_bytes(bucket.fetched)
    assert planned == 2 * 4096  # the first bytes of the two large objects
    num_slices = len(request.slices)
    assert num_slices > 6
    for number in range(num_slices):
        bucket.fetched.clear()
        prepare_share(settings("x"), number, num_slices)
        work = request.slices[number]
        names = {"/" + p.source.name.removeprefix("bucket://") for p in work.pieces}
        assert {path for path, *_ in bucket.fetched} - names <= {"/box/a.txt", "/box/b.jsonl"}
        assert num_bytes(bucket.fetched) <= planned + work.size_bytes + LOOKED_AT_BYTES


def test_the_merge_fetches_nothing_again(bucket, settings, tmp_path):
    num_slices = len(open_request(settings("x")).slices)
    prepare_share(settings("x"), 0, 1)
    kept = list(OutputFolder(tmp_path / "x").slices.glob("*.bytes"))
    assert len(kept) == num_slices - 1  # all but the one of small objects
    bucket.fetched.clear()
    merge_slices(settings("x"))
    assert num_bytes(bucket.fetched) == 2 * 4096
    prepare(settings("whole", slice_bytes=64 << 20))
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["whole", "x"]


@pytest.mark.parametrize("lost", ["room", "copies"])
def test_what_was_not_kept_is_fetched_again(bucket, settings, tmp_path, monkeypatch, caplog, lost):
    if lost == "room":
        monkeypatch.setattr(downloads, "_TIMES_FREE", 1 << 60)
    with caplog.at_level("INFO"):
        prepare_share(settings("x"), 0, 1)
    said = {"room": "are downloaded again by the merge", "copies": "stay beside the slices until"}
    assert f"0.00 GB of files behind URLs {said[lost]}" in caplog.text
    kept = list(OutputFolder(tmp_path / "x").slices.glob("*.bytes"))
    assert bool(kept) == (lost == "copies")
    for path in kept:
        path.unlink()
    bucket.fetched.clear()
    manifest = merge_slices(settings("x"))
    cut = [s for s in manifest.sources if s.path.endswith(("a.txt", "b.jsonl"))]
    assert num_bytes(bucket.fetched) == 2 * 4096 + sum(s.size_bytes or 0 for s in cut)
    prepare(settings("whole", slice_bytes=64 << 20))
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")


def test_a_copy_that_was_damaged_is_no_silent_hash(bucket, settings, tmp_path):
    prepare_share(settings("x"), 0, 1)
    path = max(OutputFolder(tmp_path / "x").slices.glob("*.bytes"))
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="has changed since it was read"):
        merge_slices(settings("x"))
    prepare(settings("x"))
    prepare(settings("whole", slice_bytes=64 << 20))
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")


def test_one_listing_tells_all_sizes(bucket, settings):
    bucket.infos.clear()
    open_request(settings("x"))
    looked = [path for path in bucket.infos if path.startswith("/box/")]
    assert set(looked) <= {"/box/a.txt", "/box/b.jsonl"}  # those that are opened

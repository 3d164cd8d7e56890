"""Shards on a disk of this machine: the same bytes or nothing, once, whoever asks at once."""

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import fsspec
import pytest

from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.storage import local_copy
from data_pipeline.storage.local_copy import LocalCopy
from data_pipeline.storage.shards import open_shards
from data_pipeline.storage.verify import verify

COPY = """
import sys
from pathlib import Path
from data_pipeline.storage.local_copy import LocalCopy
copy = LocalCopy(sys.argv[1], Path(sys.argv[2]))
print(sum(1 for _ in copy.work()), flush=True)
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(corpus_file: Path, model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared shards."""
    folder = tmp_path_factory.mktemp("shared") / "shards"
    prepare(
        PrepareSettings(
            input=[str(corpus_file)],
            tokenizer=str(model_file),
            output=str(folder),
            validation=0.1,
            shard_tokens=2000,
        )
    )
    return folder


def _copied(source: Path | str, cache: Path) -> Path:
    copy = LocalCopy(str(source), cache)
    for _ in copy.work():
        pass
    return copy.folder


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_copy_holds_every_byte_and_nothing_else(source: Path, tmp_path: Path) -> None:
    folder = _copied(source, tmp_path)
    assert _files(folder) == _files(source)
    shards = open_shards(folder)
    assert verify(folder, shards.manifest) == []
    assert shards.splits["train"].fingerprint == open_shards(source).splits["train"].fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == [f".{folder.name}.lock", folder.name]


def test_the_next_start_reads_the_manifest_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _copied(source, tmp_path)
    monkeypatch.setattr(LocalCopy, "_copy", None)
    assert _copied(source, tmp_path) == first


def test_shards_behind_a_url_are_copied(source: Path, tmp_path: Path) -> None:
    there = fsspec.filesystem("memory")
    there.put(f"{source}/", "/bucket/shards/", recursive=True)
    try:
        folder = _copied("memory://bucket/shards", tmp_path)
        assert _files(folder) == _files(source)
        assert folder.name.startswith("shards-")
        with pytest.raises(ValueError, match=r"memory://bucket/nothing/manifest\.json: "):
            LocalCopy("memory://bucket/nothing", tmp_path)
    finally:
        there.rm("/bucket", recursive=True)


def test_a_byte_that_changes_on_the_way_is_found(source: Path, tmp_path: Path) -> None:
    damaged, cache = tmp_path / "shards", tmp_path / "cache"
    shutil.copytree(source, damaged)
    path = max((damaged / "train").glob("*.tokens"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path.name} came with \d+ bytes and the checksum"):
        _copied(damaged, cache)
    path.write_bytes(_files(source)[f"train/{path.name}"])
    assert _files(_copied(damaged, cache)) == _files(source)  # goes on behind what was whole


def test_a_damaged_copy_is_made_anew(source: Path, tmp_path: Path) -> None:
    folder = _copied(source, tmp_path)
    path = next((folder / "train").glob("*.tokens"))
    os.truncate(path, 10)
    assert LocalCopy(str(source), tmp_path).problem() is not None
    assert _files(_copied(source, tmp_path)) == _files(source)


@pytest.mark.parametrize("told", ["before", "while it is written"])
def test_a_disk_without_room_is_said_and_left_clean(
    told: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told == "before":
        usage = namedtuple("usage", "total used free")(10, 10, 1000)
        monkeypatch.setattr(local_copy.shutil, "disk_usage", lambda _: usage)
    else:

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(local_copy.os, "fsync", full)
    with pytest.raises(ValueError, match=r"has no room for a copy of .* Name another folder"):
        _copied(source, tmp_path)
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def test_of_many_at_once_one_writes_and_a_killed_one_is_replaced(
    source: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", COPY, str(source), str(tmp_path)]
    copy = LocalCopy(str(source), tmp_path)
    work = copy.work()
    tmp_path.mkdir(exist_ok=True)
    lock = tmp_path / f".{copy.folder.name}.lock"
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True
    )
    assert held.stdout is not None and held.stdout.readline() == "held\n"
    others = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert next(work) == 0  # waits: another process writes
    held.send_signal(signal.SIGKILL)
    for _ in work:
        time.sleep(0.01)
    said = [other.communicate(timeout=120)[0] for other in others]
    assert [other.returncode for other in others] == [0, 0], said
    assert held.wait(timeout=60) == -signal.SIGKILL
    assert _files(copy.folder) == _files(source)
    assert sorted(p.name for p in tmp_path.iterdir()) == [lock.name, copy.folder.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
@pytest.mark.parametrize("left", ["a copy", "a lock", "half a copy", "a damaged copy", "no room"])
def test_a_second_user_of_the_folder(left: str, source: Path) -> None:
    """A folder that both may write, as /local/nvme of a host is, and what the first has left."""
    with TemporaryDirectory() as made:  # of which all parents may be searched, unlike tmp_path
        _test_a_second_user(left, source, Path(made))


def _test_a_second_user(left: str, source: Path, made: Path) -> None:
    cache, theirs = made / "cache", made / "shards"
    made.chmod(0o755)
    cache.mkdir()
    cache.chmod(0o1777 if left != "no room" else 0o755)
    shutil.copytree(source, theirs)
    copy = LocalCopy(str(theirs), cache)
    if left in ("a copy", "a damaged copy"):
        _copied(theirs, cache)
    elif left != "no room":
        copy.folder.with_name(f".{copy.folder.name}.lock").touch(mode=0o644)
    if left == "half a copy":
        (cache / f"{copy.folder.name}.0.partial").mkdir()
    if left == "a damaged copy":
        os.truncate(next((copy.folder / "train").glob("*.tokens")), 10)
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c",
         COPY, str(theirs), str(cache)],
        cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if left in ("a damaged copy", "no room"):
        assert re.search(
            r"ValueError: data\.local_cache: .* is closed to nobody: .* belongs to root\. .*"
            r"or name a folder of your own",
            done.stderr,
        ), done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert _files(copy.folder) == _files(source)


def test_a_disk_without_locks_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlockable(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unlockable)
    said = rf"the file system of {tmp_path} has no locks .* name a folder on another disk"
    with pytest.raises(ValueError, match=said):
        _copied(source, tmp_path)


HOLD = """
import fcntl, sys, time
with open(sys.argv[1], "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("root", "protocol", "file"),
    [
        ("https://h/shards?sig=a%2Fb&v=1", ("http", "https"), "https://h/shards/x/y?sig=a%2Fb&v=1"),
        ("https://h/shards/", ("http", "https"), "https://h/shards/x/y"),
        ("/a?b", ("file", "local"), "/a?b/x/y"),
        ("bucket/a?b", "memory", "bucket/a?b/x/y"),
    ],
)
def test_a_signature_stays_behind_the_file(
    root: str, protocol: str | tuple[str, ...], file: str
) -> None:
    assert local_copy._inside(root, "x/y", protocol) == file

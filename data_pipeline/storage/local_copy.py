"""A folder of shards copied to a disk of this machine, each byte compared with the manifest's hash.

    copy = LocalCopy("s3://bucket/shards", Path("/local/nvme"))     # or a folder of a shared disk
    for copied_bytes in copy.work():                                # about once a second
        ...
    open_shards(copy.folder)               # /local/nvme/shards-0123456789abcdef, complete or absent

A folder is named after its manifest, so other shards get another one, and a complete one serves the
next start. One process of a machine writes, the others wait; who is killed leaves whole files,
which the next one goes on behind. Nothing is ever removed but what was begun.
"""

import errno
import os
import pwd
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import xxhash

from data_pipeline.reading.file_kinds import scrubbed, without_credentials
from data_pipeline.storage import locking
from data_pipeline.storage.damage import size_problem
from data_pipeline.storage.manifest import MANIFEST_FILE, FileEntry, Manifest, read_manifest

CHUNK_BYTES = 4 << 20
TELL_EVERY_S = 1.0
GIB = 1024**3

_Result = TypeVar("_Result")


class _Source:
    """The folder that is copied: of a disk, or behind a URL that fsspec knows."""

    def __init__(self, place: str) -> None:
        self.name = without_credentials(place) if is_url(place) else place
        self._place = place

    def open(self, path: str) -> BinaryIO:
        """A file of the folder. Raises ValueError or OSError naming it."""
        if not is_url(self._place):
            return open(Path(self._place, path), "rb")
        return self._named(path, self._open_remote, path)

    def read(self, path: str, file: BinaryIO, size: int) -> bytes:
        """The next bytes of a file that `open` gave."""
        return self._named(path, file.read, size) if is_url(self._place) else file.read(size)

    def _open_remote(self, path: str) -> BinaryIO:
        import fsspec

        filesystem, root = fsspec.core.url_to_fs(self._place)
        return cast(BinaryIO, filesystem.open(_inside(root, path, filesystem.protocol), "rb"))

    def _named(self, path: str, call: Callable[..., _Result], *arguments: Any) -> _Result:
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 botocore, aiohttp and others share no class
            reason = scrubbed(" ".join(str(error).split()), self._place)[:300]
            raise ValueError(f"{self.name}/{path}: {reason or type(error).__name__}") from None


def _inside(root: str, path: str, protocol: str | tuple[str, ...]) -> str:
    """A file of the folder `root`: over http a query, as of a signature, stays behind the path."""
    query = ""
    if {"http", "https"} & {*([protocol] if isinstance(protocol, str) else protocol)}:
        root, mark, query = root.partition("?")
        query = mark + query
    return f"{root.rstrip('/')}/{path}{query}"


class LocalCopy:
    """One folder of shards on the way to this machine."""

    def __init__(self, source: str, cache: Path) -> None:
        """Raises ValueError or OSError where there are no finished shards in `source`."""
        self._source, self._cache = _Source(source), cache
        with self._source.open(MANIFEST_FILE) as file:
            self._manifest = self._source.read(MANIFEST_FILE, file, -1)
        name = without_credentials(source).rstrip("/").rpartition("/")[2] or "shards"
        self.folder = cache / f"{name}-{xxhash.xxh3_64_hexdigest(self._manifest)}"
        # Of each user one: nobody goes on behind what only another one may write.
        self._partial = self.folder.with_name(f"{self.folder.name}.{os.geteuid()}.partial")

    def work(self) -> Iterator[int]:
        """Copy what is missing, telling the bytes copied so far; once it ends, `folder` is whole.

        Waits while another process of this machine copies the same. Raises ValueError where bytes
        are not those of the manifest, the disk has no room or no locks, or another user keeps us
        from it; what was begun is removed if it is the room that is missing.
        """
        with self._permitted():
            if self.problem() is None:
                return
            self._cache.mkdir(parents=True, exist_ok=True)
            with _lock_file(self.folder.with_name(f".{self.folder.name}.lock")) as lock:
                while not locking.lock(lock, self._cache):
                    yield 0
                    time.sleep(TELL_EVERY_S / 2)
                if self.problem() is None:
                    return
                self._remove_damaged()
                with self._room_or_nothing():
                    yield from self._copy()

    def problem(self) -> str | None:
        """Why the copy that is there, if any, does not serve; None where it does."""
        if not (self.folder / MANIFEST_FILE).is_file():
            return f"{self.folder} is not complete"
        files = read_manifest(self.folder).files()
        return next((p for file in files if (p := size_problem(self.folder, file))), None)

    def _remove_damaged(self) -> None:
        try:
            shutil.rmtree(self.folder)
        except FileNotFoundError:
            return
        except PermissionError as problem:  # which names a file in it, without the folder
            raise PermissionError(problem.errno, problem.strerror, str(self.folder)) from problem

    def _copy(self) -> Iterator[int]:
        (self._partial / ".manifest").mkdir(parents=True, exist_ok=True)
        described = self._partial / ".manifest" / MANIFEST_FILE
        described.write_bytes(self._manifest)
        manifest = read_manifest(described.parent)
        missing = [f for f in manifest.files() if size_problem(self._partial, f)]
        self._check_room(missing)
        done = _total(manifest) - sum(f.size_bytes for f in missing)
        for file in missing:
            for copied in self._copy_file(file):
                yield done + copied
            done += file.size_bytes
        os.rename(described, self._partial / MANIFEST_FILE)
        described.parent.rmdir()
        os.rename(self._partial, self.folder)

    def _copy_file(self, entry: FileEntry) -> Iterator[int]:
        target = self._partial / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        written = target.with_name(f"{target.name}.copying")
        digest, copied, told_at = xxhash.xxh3_128(), 0, time.monotonic()
        with self._source.open(entry.path) as source, written.open("wb") as out:
            while chunk := self._source.read(entry.path, source, CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
                copied += len(chunk)
                if time.monotonic() - told_at >= TELL_EVERY_S:
                    told_at = time.monotonic()
                    yield copied
            out.flush()
            os.fsync(out.fileno())
        found = (copied, digest.hexdigest())
        if found != (entry.size_bytes, entry.xxh3):
            written.unlink()
            raise ValueError(
                f"{self._source.name}/{entry.path} came with {found[0]} bytes and the checksum "
                f"{found[1]}, not {entry.size_bytes} and {entry.xxh3}: it is damaged, or was "
                "damaged on the way. Start again, or prepare the data again."
            )
        os.rename(written, target)

    def _check_room(self, missing: list[FileEntry]) -> None:
        needed = sum(f.size_bytes for f in missing)
        free = shutil.disk_usage(self._cache).free
        if needed > free:
            raise OSError(
                errno.ENOSPC, f"{needed / GIB:.2f} GiB are missing, {free / GIB:.2f} free"
            )

    @contextmanager
    def _permitted(self) -> Iterator[None]:
        """Inside, what another user does not let us do is a ValueError that says whose it is."""
        try:
            yield
        except PermissionError as problem:
            place = Path(problem.filename or self._cache)
            if not place.is_relative_to(self._cache):
                raise
            near = next(p for p in (place, *place.parents) if os.access(p, os.F_OK))
            raise ValueError(
                f"data.local_cache: {place} is closed to {_user(os.geteuid())}: {near} belongs to "
                f"{_user(near.stat().st_uid)}. Let all users of the copy read it (chmod -R a+rX), "
                f"let them write into {self._cache} (chmod a+rwxt), or name a folder of your own."
            ) from problem

    @contextmanager
    def _room_or_nothing(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            shutil.rmtree(self._partial, ignore_errors=True)
            raise ValueError(
                f"{self._cache} has no room for a copy of {self._source.name} "
                f"({problem.strerror}). Name another folder, or remove copies there that nobody "
                "reads any more."
            ) from problem


def is_url(place: str) -> bool:
    """Whether `place` is no path of a disk."""
    return "://" in place


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    """The open file of a lock, made where there is none; another user's may only be read, which is
    enough to lock it."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        file = os.open(path, os.O_RDWR)
    except PermissionError:
        file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _total(manifest: Manifest) -> int:
    return sum(file.size_bytes for file in manifest.files())

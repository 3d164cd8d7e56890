"""A folder that is complete or not there, and the work on it, which outlives a kill.

.shards.partial/.lock        held by whoever works on it
.shards.partial/slices/      finished slices: kept, whatever ends the run
.shards.partial/shards/      the folder as it is written; renamed to shards/ when complete

with OutputFolder("shards") as work:
    ...                      # write into work.slices, then work.begin() and work.complete()
"""

import logging
import os
import re
import shutil
from pathlib import Path

from data_pipeline.reading.file_kinds import without_credentials
from data_pipeline.storage import locking

_LOCK_FILE = ".lock"
_MOUNTS = Path("/proc/self/mountinfo")
_log = logging.getLogger(__name__)


class OutputFolder:
    """The work on one folder.

    is_shared: several processes add slices, none completes it (tasks of a job array).
    final: where it is to be; a link to an empty folder: where that is.
    Raises ValueError if the place is taken, or if another process works on it.
    """

    def __init__(self, final: str | Path, *, is_shared: bool = False) -> None:
        # A real path: "." has a name in it, and a folder can be renamed to it, as not to a link.
        self.final = Path(os.path.realpath(final))
        self.partial = self.final.with_name(f".{self.final.name}.partial")
        self.slices = self.partial / "slices"
        self._shards = self.partial / "shards"
        self.is_shared = is_shared
        self._is_complete = False

    def __enter__(self) -> "OutputFolder":
        check_free(self.final)
        self.partial.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.partial, self.final, self.is_shared)
        if self.final.exists() and any(self.final.iterdir()):
            self._leave()
            raise ValueError(
                f"another process has just written --output {self.final}. Choose another name."
            )
        if not self.is_shared:
            self._clear()
        self.slices.mkdir(exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        has_slices = any(self.slices.glob("*.json"))
        if not self.is_shared and (self._is_complete or not has_slices):
            self._leave()
        else:
            os.close(self._lock)

    def begin(self) -> Path:
        """An empty folder, which `complete` puts in place."""
        return self.scratch(self._shards.name)

    def scratch(self, name: str) -> Path:
        """An empty folder of this name inside the work."""
        folder = self.partial / name
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        return folder

    def complete(self) -> None:
        """Put what `begin` gave in place, safe against a loss of power."""
        _sync_folders(self._shards)
        os.rename(self._shards, self.final)
        _sync(self.final.parent)
        self._is_complete = True

    def _leave(self) -> None:
        # Another process may put a lock file of its own there at this moment: it is refused.
        shutil.rmtree(self.partial, ignore_errors=True)
        os.close(self._lock)

    def _clear(self) -> None:
        """Remove what an interrupted run has left, but for finished slices."""
        for entry in self.partial.iterdir():
            if entry.name not in (_LOCK_FILE, self.slices.name):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for entry in self.slices.glob(".*"):
            entry.unlink()


def remove_leftovers(final: str | Path) -> None:
    """Remove the work on a complete folder, which a kill right after its completion leaves."""
    partial = OutputFolder(final).partial
    if partial.exists():
        try:
            lock = _locked(partial, Path(final), is_shared=False)
        except ValueError:  # whoever has completed it is about to remove them
            return
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def check_named(option: str, path: str) -> None:
    """Raise ValueError where an option is given nothing, a URL, or the root of the file system."""
    if not path.strip():
        raise ValueError(f"{option} is empty (an unset shell variable?). Name a file or folder.")
    if "://" in path:
        shown = without_credentials(path)
        raise ValueError(f"{option} must be a file or folder of this machine, got {shown}.")
    if not Path(os.path.abspath(path)).name:
        raise ValueError(f"{option} {path} is the root of the file system. Name a place in it.")


def check_free(folder: Path) -> None:
    """Raise ValueError unless a folder can be put in this place, which is no link."""
    if _is_mount(folder):
        raise ValueError(
            f"--output {folder} is the root of a file system, which no folder can take the place "
            f"of. Name one in it, as {folder / 'shards'}."
        )
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise ValueError(
            f"--output {folder} exists and holds something else than finished shards. "
            "Choose another name, or remove it."
        )


def _is_mount(folder: Path) -> bool:
    """True for a bind mount too, which os.path.ismount takes for a folder."""
    if os.path.ismount(folder):
        return True
    try:
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:  # no Linux: the rename at the end will say it
        return False
    places = (line.split()[4] for line in mounts)  # a space in them stands as \040
    return str(folder) in (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), p) for p in places)


def _locked(partial: Path, final: Path, is_shared: bool) -> int:
    """An open, locked file inside `partial`; the lock ends with this process."""
    path = partial / _LOCK_FILE
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError as error:  # another process has just removed the folder
        raise _busy(final) from error
    try:
        if not locking.lock(lock, final.parent, is_shared=is_shared):
            raise BlockingIOError
        if os.fstat(lock).st_ino != path.stat().st_ino:
            raise FileNotFoundError  # another process finished between our two calls
    except (BlockingIOError, FileNotFoundError) as error:
        os.close(lock)
        raise _busy(final) from error
    except locking.NoLocksError as error:
        _log.warning(
            "--output %s: %s Until then a second process that writes it is not noticed.",
            final,
            error,
        )
    return lock


def _busy(final: Path) -> ValueError:
    return ValueError(
        f"another process is writing --output {final}. Wait for it, or choose another name."
    )


def _sync_folders(folder: Path) -> None:
    for path, _, names in os.walk(folder):
        for name in names:
            _sync(Path(path) / name)
        _sync(Path(path))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""A folder that is complete or not there: written beside its place, then renamed into it.

    with OutputFolder("shards") as partial:     # .shards.partial/, locked
        ...                                     # write into `partial`

Behind these lines shards/ exists; after an exception or a kill it does not.
"""

import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType

_LOCK_FILE = ".lock"


class OutputFolder:
    """Raises ValueError if the place is taken, or another process is writing it."""

    def __init__(self, final: str | Path) -> None:
        self.final = Path(os.path.abspath(final))  # so that "." has a name
        self.partial = self.final.with_name(f".{self.final.name}.partial")

    def __enter__(self) -> Path:
        check_free(self.final)
        self.partial.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.partial, self.final)
        check_free(self.final)
        # What an interrupted run left is of no use: it holds no manifest. Start over.
        for entry in self.partial.iterdir():
            if entry.name != _LOCK_FILE:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        return self.partial

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                _sync_folders(self.partial)
                os.rename(self.partial, self.final)
                (self.final / _LOCK_FILE).unlink()
                _sync(self.final.parent)
            else:
                shutil.rmtree(self.partial)
        finally:
            os.close(self._lock)


def check_named(option: str, path: str) -> None:
    """Raise ValueError where an option is given nothing, or the root of the file system."""
    if not path.strip():
        raise ValueError(f"{option} is empty (an unset shell variable?). Name a file or folder.")
    if not Path(os.path.abspath(path)).name:
        raise ValueError(f"{option} {path} is the root of the file system. Name a place in it.")


def check_free(folder: Path) -> None:
    """Raise ValueError unless a folder can be made in this place."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise ValueError(
            f"--output {folder} exists and holds something else than finished shards. "
            "Choose another name, or remove it."
        )


def _locked(partial: Path, final: Path) -> int:
    """An open, locked file inside `partial`; the lock ends with this process."""
    path = partial / _LOCK_FILE
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino != path.stat().st_ino:
            raise FileNotFoundError  # another process finished between our two calls
    except OSError as error:
        os.close(lock)
        raise ValueError(
            f"another process is writing --output {final}. Wait for it, or choose another name."
        ) from error
    return lock


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

"""Files and datasets behind URLs, through fsspec; every failure is one line naming the input.

    s3://bucket/books/*.txt.gz      files, as on a disk
    hf://OWNER/NAME                 a dataset of the hub, streamed by `datasets`

Errors of a network come in the classes of whatever library speaks to it. Names and errors show a
URL without user, password and query.
"""

import glob
import io
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, BinaryIO, TypeVar, cast

from data_pipeline.file_kinds import (
    KNOWN,
    Source,
    file_source,
    how_to_read,
    kind_of,
    without_credentials,
)

_Result = TypeVar("_Result")


def remote_sources(url: str, skipped: Counter[str]) -> Iterator[Source]:
    """The sources a URL names: a file, those of a folder or glob, or a dataset of the hub."""
    if url.startswith("hf://") and kind_of(url) is None and not glob.has_magic(url):
        yield Source(without_credentials(url), "hub_dataset", url.removeprefix("hf://"), None, None)
        return
    filesystem, found = _naming(f"--input {without_credentials(url)}", _find, url)
    scheme = url.partition("://")[0]
    for path in sorted(found, key=lambda p: PurePosixPath(p).parts):
        if PurePosixPath(path).name.startswith("."):
            skipped["hidden_file"] += 1
        elif kind_of(path) is None:
            skipped["unknown_file"] += 1
        else:
            name = without_credentials(f"{scheme}://{path.partition('://')[2] or path.lstrip('/')}")
            yield file_source(name, path, found[path], _opener(filesystem, path, name))


def _find(url: str) -> tuple[Any, dict[str, int]]:
    """The filesystem of a URL, and the files there with their sizes (those of a known ending)."""
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url)
    if glob.has_magic(path):
        found = filesystem.glob(path)
    elif filesystem.isdir(path):
        found = filesystem.find(path)
    elif kind_of(path) is None:
        raise ValueError(f"endings that can be read are {KNOWN}. {how_to_read(path)}")
    else:
        found = [path]
    return filesystem, {p: filesystem.info(p)["size"] if kind_of(p) else 0 for p in found}


def _opener(filesystem: Any, path: str, name: str) -> Callable[[], BinaryIO]:
    def open_file() -> BinaryIO:
        return cast(BinaryIO, _NamedFile(_naming(name, filesystem.open, path, "rb"), name))

    return open_file


class _NamedFile(io.RawIOBase):
    """A file whose errors carry its name."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return _naming(self._name, self._file.read, size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return _naming(self._name, self._file.seek, offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def _naming(name: str, call: Callable[..., _Result], *arguments: Any) -> _Result:
    try:
        return call(*arguments)
    except Exception as error:  # botocore, aiohttp and others share no class
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if isinstance(error, FileNotFoundError):  # some say no more than the path
            reason = "there is no such file."
        for given in arguments:
            if isinstance(given, str) and "://" in given:
                reason = reason.replace(given, without_credentials(given))
        raise ValueError(f"{name}: {reason}") from error

"""Files and datasets behind URLs, through fsspec; every failure is one line naming the input.

    s3://bucket/books/*.txt.gz      files, as on a disk
    hf://OWNER/NAME                 a dataset of the hub, streamed by `datasets`

Errors of a network come in the classes of whatever library speaks to it. Names and errors show a
URL without user, password and query.
"""

import glob
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, BinaryIO, TypeVar, cast

from data_pipeline.reading.file_kinds import (
    KNOWN,
    Source,
    file_source,
    how_to_read,
    kind_of,
    scrubbed,
    without_credentials,
)

_Result = TypeVar("_Result")
_WEB = re.compile("https?://")


def remote_sources(url: str, skipped: Counter[str]) -> Iterator[Source]:
    """The sources a URL names: a file, those of a folder or glob, or a dataset of the hub."""
    if url.startswith("hf://") and kind_of(url) is None and not glob.has_magic(url):
        yield Source(without_credentials(url), "hub_dataset", url.removeprefix("hf://"), None, None)
        return
    filesystem, root, found = _naming(f"--input {without_credentials(url)}", url, _find, url)
    scheme = url.partition("://")[0]
    for path in sorted(found, key=lambda p: PurePosixPath(p).parts):
        below = PurePosixPath(path.removeprefix(root)).parts
        if any(part.startswith(".") for part in below):
            skipped["hidden_file"] += 1
        elif kind_of(without_credentials(path)) is None:
            skipped["unknown_file"] += 1
        else:
            name = without_credentials(f"{scheme}://{path.partition('://')[2] or path.lstrip('/')}")
            yield file_source(name, path, found[path], _opener(filesystem, path, name, url))


def _find(url: str) -> tuple[Any, str, dict[str, int | None]]:
    """The filesystem of a URL, what it names there, and the files with sizes (of known endings)."""
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url)
    plain = without_credentials(path)  # in a link of the web, ? begins a query and is no pattern
    if glob.has_magic(plain if _WEB.match(path) else path):
        found, root = filesystem.glob(path), re.split(r"[*?[]", path, maxsplit=1)[0]
    elif filesystem.isdir(path):
        found, root = filesystem.find(path), path
    elif kind_of(plain) is None:
        raise ValueError(f"endings that can be read are {KNOWN}. {how_to_read(plain)}")
    else:
        found, root = [path], path
    return filesystem, root, {p: _size_bytes(filesystem, p) for p in found}


def _size_bytes(filesystem: Any, path: str) -> int | None:
    """None where a server does not tell, 0 where nobody needs to know."""
    return filesystem.info(path)["size"] if kind_of(without_credentials(path)) else 0


def _opener(filesystem: Any, path: str, name: str, url: str) -> Callable[[], BinaryIO]:
    def open_file() -> BinaryIO:
        return cast(
            BinaryIO, _NamedFile(_naming(name, url, filesystem.open, path, "rb"), name, url)
        )

    return open_file


class _NamedFile(io.RawIOBase):
    """A file whose errors carry its name."""

    def __init__(self, file: Any, name: str, url: str) -> None:
        self._file, self._name, self._url = file, name, url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return _naming(self._name, self._url, self._file.read, size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return _naming(self._name, self._url, self._file.seek, offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def _naming(name: str, url: str, call: Callable[..., _Result], *arguments: Any) -> _Result:
    """What `call` gives; its failure as one line that holds no credential of the URL."""
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 botocore, aiohttp and others share no class
        reason = scrubbed(" ".join(str(error).split()), url)[:300] or type(error).__name__
        if isinstance(error, FileNotFoundError):  # some say no more than the path
            reason = "there is no such file."
        # Not `from error`: a traceback would show what was taken out.
        raise ValueError(f"{name}: {reason}") from None

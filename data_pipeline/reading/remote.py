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
from functools import partial
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
            size_bytes, has_ranges = found[path]
            opener = _opener(filesystem, path, name, url)
            ranges = _range_opener(filesystem, path, name, url) if has_ranges else None
            yield file_source(name, path, size_bytes, opener, ranges)


def _find(url: str) -> tuple[Any, str, dict[str, tuple[int | None, bool]]]:
    """The filesystem of a URL, what it names there, and the files: size, readable in parts."""
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url)
    plain = without_credentials(path)  # in a link of the web, ? begins a query and is no pattern
    if glob.has_magic(plain if _WEB.match(path) else path):
        found = filesystem.glob(path, detail=True)
        root = re.split(r"[*?[]", path, maxsplit=1)[0]
    elif filesystem.isdir(path):
        found, root = filesystem.find(path, detail=True), path
    elif kind_of(plain) is None:
        raise ValueError(f"endings that can be read are {KNOWN}. {how_to_read(plain)}")
    else:
        found, root = {path: filesystem.info(path)}, path
    is_plain = "::" not in url  # a file that is cached is fetched whole first
    return filesystem, root, {p: _told(filesystem, p, found[p], is_plain) for p in found}


def _told(
    filesystem: Any, path: str, told: dict[str, Any], is_plain: bool
) -> tuple[int | None, bool]:
    """Size of a file (None where a server does not tell) and whether it can be read in parts."""
    if kind_of(without_credentials(path)) is None:
        return 0, False  # nobody needs to know
    if told.get("size") is None:  # a listing of the web holds names alone
        told = filesystem.info(path)
    size_bytes = told["size"]
    has_ranges = is_plain and size_bytes is not None
    return size_bytes, has_ranges and (not _WEB.match(path) or told.get("partial", True))


def _opener(filesystem: Any, path: str, name: str, url: str) -> Callable[[], BinaryIO]:
    def open_file() -> BinaryIO:
        return cast(
            BinaryIO, _NamedFile(_naming(name, url, filesystem.open, path, "rb"), name, url)
        )

    return open_file


def _range_opener(
    filesystem: Any, path: str, name: str, url: str
) -> Callable[[int, int, int], BinaryIO]:
    def open_range(begin: int, end: int, block_bytes: int) -> BinaryIO:
        # cache_type: else what follows is fetched too, 50 MB of it from S3.
        file = _naming(name, url, partial(filesystem.open, path, "rb", cache_type="none"))
        return cast(BinaryIO, _Range(_NamedFile(file, name, url), begin, end, block_bytes))

    return open_range


class _Range(io.RawIOBase):
    """The bytes begin..end - 1 of a file, fetched in blocks."""

    def __init__(self, file: "_NamedFile", begin: int, end: int, block_bytes: int) -> None:
        self._file, self._left, self._block_bytes = file, end - begin, block_bytes
        self._fetched = memoryview(b"")
        file.seek(begin)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert size >= 0
        if not self._fetched and self._left:
            content = self._file.read(min(self._block_bytes, self._left))
            self._fetched = memoryview(content)
            self._left = self._left - len(content) if content else 0
        content = bytes(self._fetched[:size])
        self._fetched = self._fetched[size:]
        return content

    def close(self) -> None:
        self._file.close()
        super().close()


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

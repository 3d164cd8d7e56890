"""What can be read: kinds of file by their endings, and the source that every input becomes.

kind_of("a/X.TXT") == "text", kind_of("x.csv.gz") == "csv", compression_of("x.csv.gz") == "gz"
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

from data_pipeline.byte_stream import Compression

Kind = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "saved_dataset", "hub_dataset"]
_KIND_OF_ENDING: dict[str, Kind] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_PACKED = (".zip", ".tar", ".tgz", ".7z", ".rar", ".lz4", ".br", ".z")
KNOWN = (
    f"{', '.join(_KIND_OF_ENDING)}, all but .parquet also with "
    f".{', .'.join(get_args(Compression))} behind"
)


@dataclass(frozen=True)
class Source:
    """One thing to read. `open` gives its bytes; datasets have none and are opened by name."""

    name: str  # as errors and the manifest show it: never with credentials
    kind: Kind
    location: str
    size_bytes: int | None
    open: Callable[[], AbstractContextManager[BinaryIO]] | None
    compression: Compression | None = None
    first_line: int = 1  # of a stretch inside a file (slices.py): the number of its first line
    first_byte: int = 0  # and where in the file it begins; then it is the start of nothing


def kind_of(name: str) -> Kind | None:
    """The kind of a file by its ending (any case), or None; x.txt.gz is of the kind of x.txt."""
    if compression_of(name) is None:
        return _KIND_OF_ENDING.get(PurePosixPath(name).suffix.lower())
    kind = _KIND_OF_ENDING.get(PurePosixPath(PurePosixPath(name).stem).suffix.lower())
    return None if kind == "parquet" else kind  # it is compressed inside, and read out of order


def compression_of(name: str) -> Compression | None:
    """How a file is compressed, by its last ending, or None."""
    ending = PurePosixPath(name).suffix.lower().removeprefix(".")
    return next((c for c in get_args(Compression) if c == ending), None)


def how_to_read(name: str) -> str:
    """What to do about a file whose ending is none that can be read."""
    if compression_of(name) or PurePosixPath(name).suffix.lower() in _PACKED:
        return "Unpack it, and name what is in it."
    return "Rename the file."


def file_source(
    name: str,
    location: str,
    size_bytes: int,
    open_file: Callable[[], AbstractContextManager[BinaryIO]],
) -> Source:
    """A file of a known ending as a source."""
    kind = kind_of(location)
    assert kind is not None
    return Source(name, kind, location, size_bytes, open_file, compression_of(location))


def without_credentials(url: str) -> str:
    """A URL without user, password, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", "")) if parts.scheme else url

"""What can be read: kinds of file by their endings, and the source that every input becomes.

kind_of("a/X.TXT") == "text", kind_of("x.csv.gz") == "csv", compression_of("x.csv.gz") == "gz"
"""

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Literal, get_args
from urllib.parse import parse_qsl, quote, unquote

from data_pipeline.reading.byte_stream import Compression

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
_IS_SECRET = re.compile("TOKEN(?!I[SZ])|SECRET|PASSWORD|PASSWD|CREDENTIAL|ACCESS_KEY|API_KEY", re.I)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>()]+", re.I)
_QUERY = re.compile("[?#]")
_USER = r"[^/@?#]*:(?!\d+[/?#])"  # a name and a colon, which no port follows
_OF_BUCKETS = ("s3", "s3a", "s3n", "gs", "gcs", "oss")  # no port follows a bucket
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
    # Of a file behind a URL that can be read in parts: bytes begin..end - 1, fetched so many at
    # once and not one beyond. None: as a whole, or, on a disk, with a seek.
    open_range: Callable[[int, int, int], AbstractContextManager[BinaryIO]] | None = None
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
    size_bytes: int | None,
    open_file: Callable[[], AbstractContextManager[BinaryIO]],
    open_range: Callable[[int, int, int], AbstractContextManager[BinaryIO]] | None = None,
) -> Source:
    """A file of a known ending as a source."""
    file = without_credentials(location)
    kind = kind_of(file)
    assert kind is not None
    name = name.encode("utf-8", "backslashreplace").decode()  # of a file whose name is no text
    compression = compression_of(file)
    return Source(name, kind, location, size_bytes, open_file, compression, open_range)


def without_credentials(url: str) -> str:
    """A URL, or several chained by ::, without user, password, query and fragment."""
    return "::".join(_bare(part) for part in url.split("::"))


def _bare(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    before_query = _QUERY.split(rest, maxsplit=1)[0]
    # A secret may hold a slash, or a ? that nobody has escaped; an @ behind one may also be a
    # revision, or stand in a file's name or in the query.
    user, at, host = (before_query if "@" in before_query else rest).rpartition("@")
    named = re.match(r"[^/@?#]*:" if scheme.lower() in _OF_BUCKETS else _USER, user)
    if at and (named or not re.search(r"[/?#]", user)):
        return f"{scheme}://{_QUERY.split(host, maxsplit=1)[0]}"
    return f"{scheme}://{before_query}"


def scrubbed(message: str, *urls: str, shortest: int = 4) -> str:
    """A message without the credentials in `urls` or in this process's environment.

    Whatever stands before an @ or behind a ? in a URL of the message goes too. shortest: characters
    of a credential of `urls` that is looked for outside of URLs.
    """
    secrets = [v for n, v in os.environ.items() if _IS_SECRET.search(n) and len(v) >= 8]
    for part in "::".join(urls).split("::"):
        query = part.partition("?")[2].partition("#")[0]
        user = part.partition("://")[2].rpartition("@")[0]
        typed = [pair.partition("=")[2] for pair in query.split("&")]
        words = [query, *typed, *(v for _, v in parse_qsl(query)), user, user.partition(":")[2]]
        secrets += [form for w in words if len(w) >= shortest for form in _forms(w)]
    for secret in sorted(set(secrets), key=len, reverse=True):
        message = message.replace(secret, "***")
    return _URL.sub(lambda m: without_credentials(m[0]), message)


def _forms(word: str) -> set[str]:
    """How a library may word what a user typed: as it is, and with more or fewer %XX in it."""
    bare = unquote(word)
    forms = {word, bare, quote(word), quote(bare), quote(bare, safe="")}
    return forms | {re.sub("%[0-9A-F]{2}", lambda m: m[0].lower(), form) for form in forms}

"""Stretches of files behind URLs, kept from the slice that reads them to the merge.

The merge hashes every file that was cut into slices once more, as a whole. Of a file behind a URL
that would be a second download by one process, so each slice leaves its bytes beside its part:

    slices/FINGERPRINT.part, FINGERPRINT.json, FINGERPRINT.bytes

They go with the slices, when the folder is complete. Where the disk has too little room the merge
downloads them again.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from data_pipeline.preparing.request import Request, Slice
from data_pipeline.preparing.slices import open_stretch
from data_pipeline.reading.file_kinds import Source

_TIMES_FREE = 4  # of the bytes that are kept: the parts and the shards need room too
_log = logging.getLogger(__name__)


def copy_path(request: Request, number: int, folder: Path) -> Path | None:
    """Where the bytes of a slice are to be kept; None where there is no need, or no room."""
    if not _is_cut_url(request.slices[number]) or not _has_room(request, folder):
        return None
    return _path(folder, request.slices[number].fingerprint)


def say_what_is_kept(request: Request, folder: Path) -> None:
    """Say once what becomes of downloads, where there are any that the merge needs again."""
    if not (size_bytes := _bytes_of_urls(request)):
        return
    done = "stay beside the slices until the merge, which hashes them."
    if not _has_room(request, folder):
        done = "are downloaded again by the merge, which hashes them: too little room to keep them."
    _log.info("%.2f GB of files behind URLs %s", size_bytes / 1e9, done)


@contextmanager
def open_again(
    source: Source, work: Slice, begin: int, size_bytes: int, folder: Path
) -> Iterator[BinaryIO]:
    """The bytes that a slice was made of, kept or read once more."""
    path = _path(folder, work.fingerprint)
    is_kept = path.exists() and path.stat().st_size == size_bytes
    with path.open("rb") if is_kept else open_stretch(source, begin, begin + size_bytes) as raw:
        yield raw


def _path(folder: Path, fingerprint: str) -> Path:
    return folder / f"{fingerprint}.bytes"


def _is_cut_url(work: Slice) -> bool:
    piece = work.pieces[0]
    return piece.end is not None and piece.source.open_range is not None


def _bytes_of_urls(request: Request) -> int:
    return sum(s.size_bytes for s in request.slices if _is_cut_url(s))


def _has_room(request: Request, folder: Path) -> bool:
    return shutil.disk_usage(folder).free > _TIMES_FREE * _bytes_of_urls(request)

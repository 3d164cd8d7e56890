"""Guards against a file of the right size that holds other bytes than were written.

They look at what is read anyway, in whole arrays, so that a damaged shard neither asks for more
memory than there is nor is trained on in silence. What they cannot see (an id changed into another
id) is found by checksums: verify.py.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.reading.byte_stream import size_and_hash
from data_pipeline.storage.manifest import FileEntry


def damaged(path: Path, reason: str) -> ValueError:
    """The error for a file FOLDER/SPLIT/NAME of which `reason` is known."""
    return ValueError(
        f"{path} is damaged: {reason}. All damage is named by: "
        f"python -m data_pipeline verify {path.parent.parent}"
    )


def size_problem(folder: Path, file: FileEntry) -> str | None:
    """What is wrong with the size of a file, or None."""
    path = folder / file.path
    if not path.is_file():
        return f"{path} is missing"
    size_bytes = path.stat().st_size
    if size_bytes != file.size_bytes:
        return f"{path} has {size_bytes} bytes, not {file.size_bytes}"
    return None


def file_problem(
    folder: Path, file: FileEntry, on_bytes: Callable[[int], object] = lambda _: None
) -> str | None:
    """What is wrong with the size or the checksum of a file, or None."""
    if problem := size_problem(folder, file):
        return problem
    with (folder / file.path).open("rb") as raw:
        _, xxh3 = size_and_hash(raw, on_bytes)
    if xxh3 != file.xxh3:
        return f"{folder / file.path} has the checksum {xxh3}, not {file.xxh3}"
    return None


def refuse(is_wrong: NDArray[np.bool_], number: NDArray[np.int64], path: Path, reason: str) -> None:
    """Raise ValueError if anything is wrong. reason: {} is the number of the first document."""
    if is_wrong.any():
        raise damaged(path, reason.format(number[is_wrong.argmax()]))


def group_bounds(
    offsets_N1: NDArray[np.uint64], number: NDArray[np.int64], total: int, path: Path
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the groups of these numbers begin in a flat array of `total` entries, and their sizes.

    Raises ValueError naming `path` where a group is empty or lies outside the array.
    """
    begin = offsets_N1[number].astype(np.int64)  # 2^63 and more turn negative
    end = offsets_N1[number + 1].astype(np.int64)
    is_wrong = (begin < 0) | (end <= begin) | (end > total)
    refuse(is_wrong, number, path, f"the offsets of document {{}} do not rise within 0..{total}")
    return begin, end - begin


def first_not_rising(values: NDArray[np.int64], offsets_N1: NDArray[np.int64]) -> int | None:
    """The first entry that is not above the one before it in its group (or above 0), or None."""
    steps = np.diff(values, prepend=0)
    steps[offsets_N1[:-1]] = values[offsets_N1[:-1]]
    return int((steps < 1).argmax()) if steps.min(initial=1) < 1 else None

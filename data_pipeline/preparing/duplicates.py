"""Which documents repeat an earlier one, in bounded memory however many there are.

    identities  A B A C B      repeats  . . x . x      the first of each stays

The 128-bit hashes are dealt to files by their value, so that equal ones meet in one file, and each
file is small enough to be sorted. The answer is a byte a document in a file, mapped.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged

_SORTED_AT_ONCE = 2_000_000  # documents: some 200 MB
_MAX_FILES = 256


def find_repeats(
    identities: Iterable[NDArray[np.uint64]], num_documents: int, folder: Path
) -> NDArray[np.bool_]:
    """True for each document whose identity an earlier one has; the array lies in `folder`.

    identities: those of all documents in their order, (N, 2) a block. folder: an empty one.
    """
    repeats = _zeros(folder / "repeats", max(num_documents, 1))
    num_files = min(_MAX_FILES, 1 + num_documents // _SORTED_AT_ONCE)
    paths = [folder / f"identities-{number:03d}" for number in range(num_files)]
    _deal(identities, paths)
    for path in paths:
        seen_N2 = np.zeros((0, 2), np.uint64)
        for numbers_N, identity_N2 in _stretches(path):
            is_repeat_N = _repeats(seen_N2, identity_N2)
            repeats[numbers_N[is_repeat_N]] = True
            seen_N2 = np.concatenate([seen_N2, identity_N2[~is_repeat_N]])
        path.unlink()
    return repeats.view(np.ndarray)


def _zeros(path: Path, length: int) -> NDArray[np.bool_]:
    """A mapped file that has its place on the disk: a full one is an error now, no SIGBUS later."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, length)
    return np.memmap(path, np.bool_, "r+", shape=length)


def _deal(identities: Iterable[NDArray[np.uint64]], paths: list[Path]) -> None:
    """Write (number, identity) of every document to the file that its identity chooses."""
    first = 0
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for identity_N2 in identities:
            numbers_N = np.arange(first, first + len(identity_N2), dtype=np.uint64)
            first += len(identity_N2)
            rows_N3 = np.column_stack([numbers_N, identity_N2])
            file_N = (identity_N2[:, 1] % np.uint64(len(files))).astype(np.int64)
            rows_N3 = rows_N3[np.argsort(file_N, kind="stable")]
            bounds = ragged.offsets(np.bincount(file_N, minlength=len(files))).tolist()
            for file, start, stop in zip(files, bounds[:-1], bounds[1:], strict=True):
                file.write(rows_N3[start:stop].tobytes())


def _stretches(path: Path) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
    """The numbers and identities in one file, so many at once as can be sorted."""
    with path.open("rb") as file:
        while len(rows := np.fromfile(file, np.uint64, 3 * _SORTED_AT_ONCE)):
            rows_N3 = rows.reshape(-1, 3)
            yield rows_N3[:, 0].astype(np.int64), rows_N3[:, 1:]


def _repeats(seen_N2: NDArray[np.uint64], identity_N2: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """True for the rows that stand in `seen_N2`, or earlier in their own array."""
    all_N2 = np.concatenate([seen_N2, identity_N2])
    order_N = np.lexsort((all_N2[:, 1], all_N2[:, 0]))  # stable: equal ones keep their order
    sorted_N2 = all_N2[order_N]
    equal_N = (sorted_N2[1:] == sorted_N2[:-1]).all(axis=1)
    is_repeat_N = np.zeros(len(all_N2), np.bool_)
    is_repeat_N[order_N[1:][equal_N]] = True
    return is_repeat_N[len(seen_N2) :]

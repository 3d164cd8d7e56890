"""Finished parts become the shards of a folder: the last step of prepare, done by one process.

Parts are read in the order of their slices, so that the bytes are those that one process reading
all of the input would write. The manifest is written last.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.preparing.duplicates import find_repeats
from data_pipeline.preparing.merged_manifest import build_manifest, bytes_read_again, total
from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.preparing.parts import SliceRecord, blocks, finished_slice
from data_pipeline.preparing.request import Request
from data_pipeline.preparing.sharding import SplitWriters
from data_pipeline.preparing.slices import in_ranges
from data_pipeline.reading.unusable import check_skipped
from data_pipeline.storage.manifest import Manifest, write_manifest
from data_pipeline.storage.stored import StoredDocuments


def merge(
    request: Request,
    work: OutputFolder,
    on_bytes: Callable[[int], object] = lambda num_bytes: None,
) -> Manifest:
    """Write the shards of all slices, put them in place, and give their manifest.

    on_bytes: told the bytes of the parts, then of the input, as they are read: `merged_bytes`.
    Raises ValueError if a slice is not finished or damaged, or if nothing is left to train on.
    """
    records = finished_records(request, work.slices)
    folder = work.begin()
    repeats = None
    if request.settings.dedup == "exact":
        repeats = _find_repeats(request, records, work)
    splits = SplitWriters(folder, request.dtypes, request.settings)
    first = 0
    for stored in _documents(request, records, work.slices, on_bytes):
        stop = first + len(stored)
        if repeats is not None:
            stored = stored.take(~repeats[first:stop])
        splits.add(stored)
        first = stop
    manifest = build_manifest(request, records, repeats, splits, work, folder, on_bytes)
    write_manifest(manifest, folder)
    work.complete()
    return manifest


def merged_bytes(request: Request, records: list[SliceRecord]) -> int:
    """The bytes that a merge reads."""
    return sum(r.size_bytes for r in records) + bytes_read_again(request)


def finished_records(request: Request, folder: Path) -> list[SliceRecord]:
    """The records of all slices. Raises ValueError, naming them, where some are not finished."""
    os.listdir(folder)  # a network file system may still believe that a record is not there
    found = [finished_slice(folder, s.fingerprint) for s in request.slices]
    records = [record for record in found if record]
    if missing := [number for number, record in enumerate(found) if record is None]:
        raise ValueError(
            f"{len(missing):,} of {len(found):,} slices are not finished: number "
            f"{in_ranges(missing, 10)}. Prepare them first."
        )
    check_skipped(total(r.unusable for r in records), request.settings.max_skipped)
    return records


def _find_repeats(
    request: Request, records: list[SliceRecord], work: OutputFolder
) -> NDArray[np.bool_]:
    identities = (
        identity_N2
        for record in records
        for _, identity_N2 in blocks(work.slices, record, *request.dtypes)
    )
    num_documents = sum(r.documents for r in records)
    return find_repeats(identities, num_documents, work.scratch("sorting"))


def _documents(
    request: Request,
    records: list[SliceRecord],
    folder: Path,
    on_bytes: Callable[[int], object],
) -> Iterator[StoredDocuments]:
    for record in records:
        for stored, _ in blocks(folder, record, *request.dtypes):
            yield stored
        on_bytes(record.size_bytes)

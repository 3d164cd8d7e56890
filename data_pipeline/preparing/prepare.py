"""Documents to shards: `python -m data_pipeline prepare`. The same inputs give the same bytes.

    files -> slices -> parts, by any number of processes -> shards, by one -> manifest, last

What is finished survives a kill: the same request goes on behind it and ends with the same bytes.
"""

import errno
import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from data_pipeline.preparing.finished import finished_manifest
from data_pipeline.preparing.merge import merge, merged_bytes
from data_pipeline.preparing.output_folder import OutputFolder, remove_leftovers
from data_pipeline.preparing.parts import SliceRecord, finished_slice, remove_slice
from data_pipeline.preparing.prepare_slice import prepare_slice
from data_pipeline.preparing.request import PrepareSettings, Request, open_request
from data_pipeline.preparing.slice_pool import prepare_in_processes
from data_pipeline.reading.sources import total_bytes
from data_pipeline.reading.unusable import check_skipped
from data_pipeline.storage.manifest import MANIFEST_FILE, Manifest
from data_pipeline.watch import Watch, unwatched

__all__ = ["AlreadyPrepared", "PrepareSettings", "prepare"]

_log = logging.getLogger(__name__)


class AlreadyPrepared(Exception):
    """The output is finished and was made by the same request from the same files."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__()
        self.manifest = manifest


def prepare(settings: PrepareSettings, watch: Watch = unwatched) -> Manifest:
    """Write the folder of shards that `settings` asks for and give its manifest.

    watch: opens a progress bar over the bytes of the inputs, then one over those the merge reads.
    Raises ValueError on anything wrong with the inputs, AlreadyPrepared if there is nothing to do.
    """
    request = open_request(settings)
    output = Path(settings.output)
    if (output / MANIFEST_FILE).exists():
        manifest = finished_manifest(output, request)
        remove_leftovers(output)
        raise AlreadyPrepared(manifest)
    with OutputFolder(output) as work:
        try:
            with watch(total_bytes(request.sources)) as on_bytes:
                records = _prepare_slices(request, work.slices, on_bytes)
            with watch(merged_bytes(request, records)) as on_bytes:
                return merge(request, work, on_bytes)
        except ValueError as error:
            raise ValueError(f"{error}{_kept(request, work)}") from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ValueError(
                f"the disk is full under {work.partial} ({error.strerror}). Make room, and run the "
                f"same command again.{_kept(request, work)}"
            ) from error


def _prepare_slices(
    request: Request, folder: Path, on_bytes: Callable[[int], object]
) -> list[SliceRecord]:
    """Prepare the slices that are not finished yet, and give the records of all."""
    _remove_others(request, folder)
    found = [finished_slice(folder, s.fingerprint) for s in request.slices]
    records = {number: record for number, record in enumerate(found) if record}
    for number in records:
        on_bytes(request.slices[number].size_bytes)
    if records:
        _log.info("%d of %d slices were finished before.", len(records), len(found))
    skipped: Counter[str] = Counter()
    for record in records.values():
        skipped.update(record.unusable)

    def on_finished(number: int) -> None:
        record = finished_slice(folder, request.slices[number].fingerprint)
        assert record is not None
        records[number] = record
        skipped.update(record.unusable)
        check_skipped(skipped, request.settings.max_skipped)

    check_skipped(skipped, request.settings.max_skipped)
    missing = [number for number in range(len(found)) if number not in records]
    num_processes = min(_num_workers(request), len(missing))
    if num_processes > 1:  # a large file first, so that nobody waits for it at the end
        missing.sort(key=lambda number: -request.slices[number].size_bytes)
        prepare_in_processes(request, missing, num_processes, folder, on_bytes, on_finished)
    else:
        for number in missing:
            prepare_slice(request, number, folder, on_bytes)
            on_finished(number)
    return [records[number] for number in sorted(records)]


def _remove_others(request: Request, folder: Path) -> None:
    """Remove finished slices of other requests, or of files that have changed since."""
    wanted = {s.fingerprint for s in request.slices}
    others = {p.stem for p in folder.iterdir()} - wanted
    for fingerprint in others:
        remove_slice(folder, fingerprint)
    if others:
        _log.warning(
            "%d finished slices of another request, or of files that have changed, were removed.",
            len(others),
        )


def _num_workers(request: Request) -> int:
    if any(s.name.startswith("memory://") for s in request.sources):
        return 1  # such files are in this process alone
    return request.settings.workers or len(os.sched_getaffinity(0))


def _kept(request: Request, work: OutputFolder) -> str:
    """What an error adds about the slices that were finished before it, if they hold anything."""
    found = [finished_slice(work.slices, s.fingerprint) for s in request.slices]
    records = [record for record in found if record]
    if not any(record.documents for record in records):
        for record in records:
            remove_slice(work.slices, record.fingerprint)
        return ""
    return (
        f" ({len(records)} of {len(found)} slices are finished and stay in {work.partial}: "
        "the same command goes on behind them.)"
    )

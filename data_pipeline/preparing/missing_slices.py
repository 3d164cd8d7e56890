"""Slices of a request that are not finished yet, prepared by this process or by several.

    slices 0 1 2 3 4 5      finished before: 0 3      prepared now: 1 2 4 5

What was finished stays finished, whatever ends the work. prepare takes all slices, a task of a job
array takes its share of them.
"""

import errno
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from data_pipeline.preparing.downloads import say_what_is_kept
from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.preparing.parts import SliceRecord, finished_slice, remove_slice
from data_pipeline.preparing.prepare_slice import prepare_slice
from data_pipeline.preparing.request import Request
from data_pipeline.preparing.slice_pool import prepare_in_processes
from data_pipeline.reading.unusable import check_skipped

_SEEN_WITHIN_S = 90
_log = logging.getLogger(__name__)


class Deal(Protocol):
    """Who prepares slices: each of `numbers` once, in any order, by whoever is free."""

    def __call__(
        self,
        request: Request,
        numbers: Sequence[int],
        folder: Path,
        on_bytes: Callable[[int], object],
        on_finished: Callable[[int], object],
    ) -> None:
        """Prepare them into `folder`, telling bytes that are read and slices that are done."""
        ...


def prepare_missing(
    request: Request,
    numbers: Sequence[int],
    folder: Path,
    on_bytes: Callable[[int], object],
    deal: Deal | None = None,
) -> list[SliceRecord]:
    """Prepare those of the slices `numbers` that are not finished yet, and give the records of all.

    on_bytes: told the bytes of slices that were finished before, then those that are read.
    deal: who does it; None: this process and as many workers as the settings say.
    Raises ValueError on anything wrong with the input, or if more is skipped than is allowed.
    """
    slices, limit = request.slices, request.settings.max_skipped
    records: dict[int, SliceRecord] = {}
    skipped: Counter[str] = Counter()
    for number in numbers:
        if record := finished_slice(folder, slices[number].fingerprint):
            records[number] = record
            skipped.update(record.unusable)
            on_bytes(slices[number].size_bytes)
    if records:
        _log.info("%d of %d slices were finished before.", len(records), len(numbers))

    def on_finished(number: int) -> None:
        record = _finished_by_another(folder, slices[number].fingerprint)
        records[number] = record
        skipped.update(record.unusable)
        check_skipped(skipped, limit)

    check_skipped(skipped, limit)
    say_what_is_kept(request, folder)
    missing = [number for number in numbers if number not in records]
    (deal or _deal_here)(request, missing, folder, on_bytes, on_finished)
    return [records[number] for number in sorted(records)]


def _finished_by_another(folder: Path, fingerprint: str) -> SliceRecord:
    """The record of a slice that another process says is there: network file systems are late."""
    until_s = time.monotonic() + _SEEN_WITHIN_S
    while not (record := finished_slice(folder, fingerprint)):
        if time.monotonic() > until_s:
            raise ValueError(
                f"the slice {fingerprint} is finished, and not to be seen in {folder}. --output "
                "must lie on a disk that all hosts share."
            )
        os.listdir(folder)  # makes a network file system look again
        time.sleep(0.1)
    return record


def _deal_here(
    request: Request,
    numbers: Sequence[int],
    folder: Path,
    on_bytes: Callable[[int], object],
    on_finished: Callable[[int], object],
) -> None:
    """Each slice by this process, or by whichever of several that it starts is free."""
    num_processes = min(_num_workers(request), len(numbers))
    if num_processes > 1:
        ordered = large_first(request, numbers)
        prepare_in_processes(request, ordered, num_processes, folder, on_bytes, on_finished)
        return
    for number in numbers:
        prepare_slice(request, number, folder, on_bytes)
        on_finished(number)


def large_first(request: Request, numbers: Sequence[int]) -> list[int]:
    """The order for several at once: nobody waits for a large file at the end."""
    return sorted(numbers, key=lambda number: -request.slices[number].size_bytes)


def _num_workers(request: Request) -> int:
    if any(s.name.startswith("memory://") for s in request.sources):
        return 1  # such files are in this process alone
    return request.settings.workers or len(os.sched_getaffinity(0))


@contextmanager
def errors_tell_what_is_kept(request: Request, work: OutputFolder) -> Iterator[None]:
    """Inside, an error also says which slices were finished before it; a full disk is one too."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}{_kept(request, work)}") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ValueError(
            f"the disk is full under {work.partial} ({error.strerror}). Make room, and run the "
            f"same command again.{_kept(request, work)}"
        ) from error


def _kept(request: Request, work: OutputFolder) -> str:
    """What an error adds about the slices that were finished before it, if they hold anything."""
    found = [finished_slice(work.slices, s.fingerprint) for s in request.slices]
    records = [record for record in found if record]
    if not any(record.documents for record in records):
        if not work.is_shared:
            for record in records:
                remove_slice(work.slices, record.fingerprint)
        return ""
    return (
        f" ({len(records)} of {len(found)} slices are finished and stay in {work.partial}: "
        "the same command goes on behind them.)"
    )

"""prepare in pieces: tasks of a job array, on any hosts that share a disk, then one merge.

    slices 0 1 2 3 4 5 6      task 0 of 3: 0 3 6      task 1: 1 4      task 2: 2 5

The same files, tokenizer and settings give every task the same slices, so that tasks need to know
nothing of each other. A slice is finished when its record is there; a task that is run again does
what is missing. The folder has the bytes that one process would write.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.preparing.finished import AlreadyPrepared, refuse_finished
from data_pipeline.preparing.merge import finished_records, merge, merged_bytes
from data_pipeline.preparing.missing_slices import errors_tell_what_is_kept, prepare_missing
from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.preparing.parts import finished_slice
from data_pipeline.preparing.request import PrepareSettings, Request, open_request
from data_pipeline.preparing.slices import in_ranges
from data_pipeline.storage.manifest import Manifest
from data_pipeline.watch import Watch, unwatched

MAX_TASKS = 1001  # an array of SLURM, as it is shipped


@dataclass(frozen=True)
class Survey:
    """How much of a request is done."""

    num_slices: int
    size_bytes: int
    """Of all slices, about; a source whose size is not known counts as 0."""
    missing: tuple[int, ...]
    """Slices that are not finished, by number."""
    num_tasks: int
    is_complete: bool
    """True where the merged folder is there."""

    @property
    def tasks_left(self) -> str:
        """Tasks that have a slice to prepare, as "0-6,9"; empty where none has."""
        return in_ranges(sorted({number % self.num_tasks for number in self.missing}))

    def counts(self) -> dict[str, int | bool | str]:
        """The numbers, for a program."""
        return {
            "slices": self.num_slices,
            "size_bytes": self.size_bytes,
            "missing": len(self.missing),
            "tasks": self.num_tasks,
            "tasks_left": self.tasks_left,
            "merged": self.is_complete,
        }

    def __str__(self) -> str:
        size = f"{self.num_slices:,} slices, {self.size_bytes / 1e9:.3g} GB of input"
        if self.is_complete:
            return f"{size}: merged. Nothing to do."
        if not self.missing:
            return f"{size}: all finished. Merge them."
        return (
            f"{size}: {self.num_slices - len(self.missing):,} finished, {len(self.missing):,} "
            f"missing\ntasks with --of {self.num_tasks}: {self.tasks_left}"
        )


@dataclass(frozen=True)
class Share:
    """What one task has done."""

    num_slices: int
    """Of this task."""
    num_all: int
    """Of the whole request."""
    num_finished_now: int
    documents: int
    """In the slices of this task."""

    def __str__(self) -> str:
        if not self.num_slices:
            return f"nothing to do, there are {self.num_all:,} slices."
        before = self.num_slices - self.num_finished_now
        return (
            f"{self.num_slices:,} of {self.num_all:,} slices are finished, {before:,} of them "
            f"before. {self.documents:,} documents."
        )


def survey(settings: PrepareSettings, num_tasks: int | None = None) -> Survey:
    """What is left of a request. Writes nothing.

    num_tasks: tasks among which slices are dealt; None: one a slice, at most 1,001.
    Raises ValueError on anything wrong with the request.
    """
    request = open_request(settings)
    folder = OutputFolder(settings.output).slices
    is_complete = False
    try:
        refuse_finished(Path(settings.output), request, reads_files=False)
    except AlreadyPrepared:
        is_complete = True
    missing = [] if is_complete else _missing(request, folder)
    num_tasks = num_tasks or min(len(request.slices), MAX_TASKS)
    if num_tasks < 1:
        raise ValueError(f"--of must be at least 1, got {num_tasks}.")
    size_bytes = sum(s.size_bytes for s in request.slices)
    return Survey(len(request.slices), size_bytes, tuple(missing), num_tasks, is_complete)


def prepare_share(
    settings: PrepareSettings, task: int, num_tasks: int, watch: Watch = unwatched
) -> Share:
    """Prepare the slices of one task that are not finished: task, task + num_tasks, ...

    Raises ValueError on anything wrong with the input, AlreadyPrepared where they are merged.
    """
    if not 0 <= task < num_tasks:
        raise ValueError(
            f"--task must lie in 0..{num_tasks - 1} (--of {num_tasks}), got {task}. "
            "Number the tasks of an array from 0."
        )
    request = open_request(settings)
    refuse_finished(Path(settings.output), request, reads_files=False)
    numbers = range(task, len(request.slices), num_tasks)
    with (
        OutputFolder(settings.output, is_shared=True) as work,
        errors_tell_what_is_kept(request, work),
    ):
        num_missing = len(_missing(request, work.slices, numbers))
        with _watched(watch, request, numbers) as on_bytes:
            records = prepare_missing(request, numbers, work.slices, on_bytes)
    documents = sum(record.documents for record in records)
    return Share(len(numbers), len(request.slices), num_missing, documents)


def merge_slices(settings: PrepareSettings, watch: Watch = unwatched) -> Manifest:
    """Check that every slice is finished, merge them, and give the manifest.

    Raises ValueError naming the slices that are missing, AlreadyPrepared where they are merged.
    """
    request = open_request(settings)
    refuse_finished(Path(settings.output), request, reads_files=False)
    with OutputFolder(settings.output) as work:
        records = finished_records(request, work.slices)
        with (
            errors_tell_what_is_kept(request, work),
            watch(merged_bytes(request, records)) as on_bytes,
        ):
            return merge(request, work, on_bytes)


def _missing(request: Request, folder: Path, numbers: Sequence[int] | None = None) -> list[int]:
    """Which slices, among `numbers` or all, are not finished."""
    chosen = range(len(request.slices)) if numbers is None else numbers
    return [n for n in chosen if finished_slice(folder, request.slices[n].fingerprint) is None]


def _watched(
    watch: Watch, request: Request, numbers: Sequence[int]
) -> AbstractContextManager[Callable[[int], object]]:
    return watch(sum(request.slices[number].size_bytes for number in numbers))

"""The tasks of a sweep trained one after another on this machine."""

import logging
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pretrain.distributed.stop_signs import EXIT_CODE, SIGNALS, STOP_FILE
from pretrain.recording.status import state_of
from pretrain.settings.config import Config
from pretrain.settings.sweep_file import Task
from pretrain.settings.sweep_task import task_flags

logger = logging.getLogger(__name__)


def train_here(
    tasks: Sequence[Task], configs: Sequence[Config], array: str | None, command: Sequence[str],
    flags: Sequence[str] = (),
) -> int:  # fmt: skip
    """Train the tasks one after another with `command`; those that are finished are passed over.

    A task that fails is named at the end, after the others. Asked to stop, it asks the training
    that runs, and leaves the others. Returns the exit code: 0, 1 where some failed, or 85.
    """
    failed = []
    for task, config in zip(tasks, configs, strict=True):
        folder = Path(config.runs) / config.name
        if state_of(folder, steps=config.steps) == "finished":
            logger.info("task %d, %s: finished, passed over", task.number, folder)
            continue
        logger.info("task %d of %s: %s", task.number, task.file, folder)
        with _passing_on_stops(folder) as asked:
            code = subprocess.run(
                [*command, *task_flags(task, array), "--resume", "auto", *flags], check=False
            ).returncode
        if asked or code == EXIT_CODE:
            logger.info("stopped in task %d; the same command goes on from here", task.number)
            return EXIT_CODE
        if code:
            failed.append(task.number)
            logger.error("task %d failed with exit code %d, see %s", task.number, code, folder)
    if failed:
        logger.error("failed: tasks %s; the same command tries them again", failed)
    return 1 if failed else 0


@contextmanager
def _passing_on_stops(folder: Path) -> Iterator[list[int]]:
    """Inside, a signal to stop becomes a file STOP in the run's folder, which any launcher's ranks
    see; the signals are in the list that it gives."""
    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STOP_FILE).touch()

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if asked:
            (folder / STOP_FILE).unlink(missing_ok=True)

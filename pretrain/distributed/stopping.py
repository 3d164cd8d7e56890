"""How a run is asked to save and stop: signals, a file, a lost parent. All ranks agree at the end
of a step.

    Ctrl-C (SIGINT), SIGTERM or SIGUSR1 on any one rank    save, stop, exit code 85
    a file STOP in the run folder                          the same; it is removed
    the launcher that started a rank is gone               the same; a run by itself has none
    a second Ctrl-C, at least a second after the first     stop at once, nothing is saved

SIGTERM and SIGUSR1 after a first signal change nothing: the deepspeed launcher turns one Ctrl-C
into SIGINT and SIGTERM, and a terminal sends SIGINT to every process of its group.

The deepspeed launcher is two processes, `deepspeed` and under it a launch.py on each host, which
stays when the first is killed: a rank watches both.
"""

import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

from pretrain.distributed.launching import launchers
from pretrain.distributed.stop_signs import SIGNALS, STOP_FILE
from pretrain.distributed.world import World

logger = logging.getLogger(__name__)

SECOND_SIGINT_AFTER_S = 1.0

_REASONS = ("", "SIGINT", "SIGTERM", "SIGUSR1", "the file STOP", "the launcher is gone")


class StopRequests:
    """What this rank has been asked; `agreed` makes it a decision of all ranks."""

    def __init__(self, run_folder: Path, world: World) -> None:
        self._stop_file = run_folder / STOP_FILE
        self._world = world
        self._signal: int | None = None
        self._first_at_s = 0.0
        # For as long as the process lives: a signal after the last save must not spoil its end.
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def votes(self) -> torch.Tensor:
        """What this rank has been asked, float64, to be summed over all ranks for `agreed`."""
        votes = torch.zeros(len(_REASONS), dtype=torch.float64)
        votes[_REASONS.index(self._reason())] = 1
        return votes

    def agreed(self, votes_of_all: Sequence[float]) -> str | None:
        """Why all ranks stop after this step, or None to go on: the same on every rank."""
        counted = zip(_REASONS[1:], votes_of_all[1:], strict=True)
        reasons = [reason for reason, votes in counted if votes]
        if reasons and self._world.leads:
            try:
                self._stop_file.unlink(missing_ok=True)
            except OSError as problem:  # the save must not fail for it
                logger.warning("%s cannot be removed: %s", self._stop_file, problem)
        return reasons[0] if reasons else None

    def _reason(self) -> str:
        if self._signal is not None:
            return signal.Signals(self._signal).name
        if self._world.leads and self._stop_file.is_file():
            return "the file STOP"
        if self._world.launchers and launchers() != self._world.launchers:
            return "the launcher is gone"
        return ""

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._signal is None:
            self._signal, self._first_at_s = number, now_s
            name = signal.Signals(number).name
            os.write(2, f"{name}: saving after this step; Ctrl-C again stops at once\n".encode())
        elif number == signal.SIGINT and now_s - self._first_at_s >= SECOND_SIGINT_AFTER_S:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

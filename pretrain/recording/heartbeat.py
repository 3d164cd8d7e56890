"""The heartbeat of a run: its status.json, replaced every few seconds for as long as rank 0 lives.

A thread of its own beats, so that a long evaluation or save is not taken for a death; when the run
last came forward stands beside it. What earlier starts of the run have cost is counted on.
"""

import logging
import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from pretrain.recording import status
from pretrain.recording.status import Status

BEAT_S = 10.0

logger = logging.getLogger(__name__)


class Heartbeat:
    """Says what the run does until `end`."""

    def __init__(
        self, run_folder: Path, *, step: int, steps: int, ranks: int = 1, device: str = "cpu"
    ) -> None:
        """step: steps that are done; device: what each of `ranks` computes on."""
        self._folder = run_folder
        before = status.before(run_folder)
        self._before_s = before.device_seconds if before else 0.0
        saved = before is not None and before.checkpoint_step == step
        self._ranks = ranks
        self._born_at = psutil.Process().create_time()
        self._status = Status(
            state="running",
            step=step,
            steps=steps,
            host=socket.gethostname(),
            pid=os.getpid(),
            ranks=ranks,
            device=device,
            started_at=self._born_at,
            progressed_at=time.time(),
            checkpoint_at=before.checkpoint_at if before and saved else None,
            held_out_nats=before.held_out_nats if before and saved else None,
        )
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._is_written = True
        self._beat()
        threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True).start()

    def note(self, **fields: Any) -> None:
        """Remember what the run has come to; the next beat tells it."""
        with self._lock:
            self._status = replace(self._status, progressed_at=time.time(), **fields)

    def end(self, state: str, reason: str | None = None) -> None:
        """The last word: finished, stopped, preempted or failed."""
        self._ended.set()
        self.note(state=state, reason=reason)
        self._beat()

    def stop(self) -> None:
        """Beat no more; what was said last stays."""
        self._ended.set()

    def _keep_beating(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._beat()

    def _beat(self) -> None:
        with self._lock:
            cost_s = self._before_s + self._ranks * (time.time() - self._born_at)
            self._status = replace(self._status, device_seconds=cost_s)
            try:
                status.write(self._folder, self._status)
            except OSError as problem:
                if self._is_written:
                    logger.error("the run's status cannot be written: %s", problem)
                self._is_written = False
            else:
                self._is_written = True

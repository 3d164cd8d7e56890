"""Named scalars of a step, to TensorBoard, metrics.jsonl, status.json and the console line.

Tags are room/noun_unit: loss/total_nats, optimizer/learning_rate, speed/tokens_per_second. A
resumed run rewinds to its checkpoint: lines of metrics.jsonl after it are cut off and TensorBoard
is told to forget those steps, so no step stands twice or backward.
"""

import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from pretrain.checkpoints.checkpoint import DISK_FULL
from pretrain.recording.heartbeat import Heartbeat
from pretrain.recording.hparams import shown_settings
from pretrain.recording.metric_lines import TOKENS, rewind
from pretrain.recording.run_folder import RunFolder
from pretrain.recording.status import duration, in_words
from pretrain.training.setup import Setup

HELD_OUT = "validation/total_nats"  # what a training on the validation split would minimise
_STATUS_TAGS = {
    "loss_nats": "loss/total_nats",
    "tokens_per_second": "speed/tokens_per_second",
    "step_seconds": "speed/step_seconds",
}
_SAID = (
    ("loss/total_nats", 1, "loss {:.4f}"),
    ("optimizer/learning_rate", 1, "lr {:.1e}"),
    ("optimizer/gradient_norm", 1, "grad {:.2f}"),
    ("speed/tokens_per_second", 1000, "{:.1f}k tok/s"),
)

logger = logging.getLogger(__name__)


class Metrics:
    """The record of a run, written by rank 0 alone.

    first_step: the step that comes next; records of this step and later ones are removed.
    device: what each of `ranks` computes on. settings: those to show in the HParams tab.
    evaluates_again: the evaluation after the step before comes first, whether an earlier start that
    came to nothing has recorded it or not.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        first_step: int,
        total_steps: int,
        ranks: int = 1,
        device: str = "cpu",
        settings: Mapping[str, float | str] | None = None,
        evaluates_again: bool = False,
    ) -> None:
        self._folder, self._path = run, run.metrics
        self._last_step = first_step - 1
        self._tokens = rewind(self._path, first_step, evaluates_again=evaluates_again)
        # Unbuffered: what a full disk does not take is kept here, whole, and written later.
        self._lines = open(self._path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._unwritten = b""
        self._disk_is_full = False
        self._board: SummaryWriter | None = None
        self._settings = dict(settings or {})
        with self._unless_full():
            self._board = SummaryWriter(str(run.tensorboard), purge_step=first_step)
            self._show_settings(self._board, ended=False)
        self._total_steps = total_steps
        self._started_at = time.monotonic()
        self._first_step = first_step
        self._bar = tqdm(
            total=total_steps,
            initial=first_step - 1,
            unit="step",
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )
        self._whole_bar = logging_redirect_tqdm() if not self._bar.disable else nullcontext()
        self._whole_bar.__enter__()
        self._heartbeat = Heartbeat(
            run.path, step=self._last_step, steps=total_steps, ranks=ranks, device=device
        )
        if first_step > 1:
            self._heartbeat.note(checkpoint_step=self._last_step, tokens=self._tokens)

    @classmethod
    def of(cls, setup: Setup) -> Self:
        """The record of the run that `setup` describes, from its next step on."""
        device = setup.world.device
        return cls(
            setup.folder,
            first_step=setup.step + 1,
            total_steps=setup.config.steps,
            ranks=setup.world.world_size,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            settings=shown_settings(setup.config, setup.folder.swept()),
            evaluates_again=setup.owes_evaluation,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        try:
            if error is not None:
                self.fail(error)
            self.close()
        except OSError as problem:
            if error is None:
                raise
            logger.error("the record of the run is not complete: %s", problem)

    def fail(self, error: BaseException) -> None:
        """Say in status.json what ends the run."""
        self._heartbeat.end("failed", in_words(error))

    def step(self, step: int, scalars: Mapping[str, float], skipped: str | None = None) -> None:
        """Record the scalars of a step and say them in one line; `skipped`: why, where it was."""
        self._record(step, scalars)
        self._last_step = step
        self._tokens += scalars.get(TOKENS, 0.0)
        known = {field: scalars[tag] for field, tag in _STATUS_TAGS.items() if tag in scalars}
        self._heartbeat.note(step=step, tokens=self._tokens, **known)
        line = self._line(step, scalars, skipped)
        self._bar.update(step - self._bar.n)
        logger.log(logging.INFO if skipped is None else logging.WARNING, line)

    def evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record the held-out scalars after a step."""
        self._record(step, scalars)
        if HELD_OUT in scalars:
            self._heartbeat.note(held_out_nats=scalars[HELD_OUT])
        said = " | ".join(f"{tag.split('/', 1)[1]} {value:.4f}" for tag, value in scalars.items())
        self.say(f"step {step} | held out | {said}")

    def histogram(self, step: int, tag: str, values: Sequence[float]) -> None:
        """Show how `values` are distributed; metrics.jsonl gets them all, as a list."""
        self._write_line({"step": step, tag: list(values)})
        with self._unless_full() as board:
            if board:
                board.add_histogram(tag, np.asarray(values), step)

    def text(self, step: int, tag: str, text: str) -> None:
        """Show `text` (Markdown) in TensorBoard's text tab."""
        with self._unless_full() as board:
            if board:
                board.add_text(tag, text, step)

    def projector(
        self, step: int, tag: str, vectors_NZ: torch.Tensor, labels: Sequence[str]
    ) -> None:
        """Show N vectors, each with its label, in TensorBoard's projector."""
        with self._unless_full() as board:
            if board:
                board.add_embedding(vectors_NZ, list(labels), global_step=step, tag=tag)

    def saved(self, step: int, folder: Path) -> None:
        """A checkpoint of `step` is complete in `folder`."""
        self._heartbeat.note(checkpoint_step=step, checkpoint_at=time.time())
        self.say(f"step {step} | saved {folder}")

    def finish(self, stopped_by: str | None) -> None:
        """The run is done, has come to its stop_at_step, or has saved itself because of
        `stopped_by`."""
        last, total = self._last_step, self._total_steps
        state = "preempted" if stopped_by else "stopped" if last < total else "finished"
        self._heartbeat.end(state, "stop_at_step" if state == "stopped" else stopped_by)
        with self._unless_full() as board:
            if board and state == "finished":
                self._show_settings(board, ended=True)
        why = f"stopped by {stopped_by}" if stopped_by else "done"
        self.say(f"{why}: step {last} of {total}, in {self._folder.path}")

    def say(self, line: str) -> None:
        """One line to the log."""
        logger.info(line)

    def close(self) -> None:
        """Write out everything that is still held."""
        self._heartbeat.stop()
        self._whole_bar.__exit__(None, None, None)
        self._bar.close()
        self._write_line(None)
        self._lines.close()
        with self._unless_full() as board:
            if board:
                board.close()

    def flush(self) -> None:
        """Put what was recorded on the disk, before a checkpoint claims the step.

        Raises OSError where the disk does not take all lines of metrics.jsonl.
        """
        while self._unwritten:
            self._unwritten = self._unwritten[self._lines.write(self._unwritten) :]
        os.fsync(self._lines.fileno())
        self._disk_is_full = False
        with self._unless_full() as board:
            if board:
                board.flush()
            else:
                self._board = SummaryWriter(str(self._folder.tensorboard))

    def _show_settings(self, board: SummaryWriter, *, ended: bool) -> None:
        """Tell the HParams tab the run's settings, or that it is done.

        No list of metrics goes with them, so that the tab finds settings and metrics of all runs.
        """
        if not self._settings or board.file_writer is None:
            return
        _, start, end = hparams(self._settings, {})
        board.file_writer.add_summary(end if ended else start)

    def _record(self, step: int, scalars: Mapping[str, float]) -> None:
        finite = {tag: value if math.isfinite(value) else None for tag, value in scalars.items()}
        self._write_line({"step": step, **finite})
        with self._unless_full() as board:
            if board:
                for tag, value in scalars.items():
                    board.add_scalar(tag, value, step)

    def _write_line(self, row: Mapping[str, Any] | None) -> None:
        """Write `row`, and before it what a full disk did not take earlier."""
        if row is not None:
            self._unwritten += (json.dumps(row) + "\n").encode()
        with self._unless_full():
            while self._unwritten:
                self._unwritten = self._unwritten[self._lines.write(self._unwritten) :]

    @contextmanager
    def _unless_full(self) -> Iterator[SummaryWriter | None]:
        """Inside, a full disk is said once and passed over: saving decides whether the run goes on.

        Gives TensorBoard's writer, which a full disk ends; `flush` begins another one.
        """
        try:
            yield self._board
        except OSError as problem:
            if problem.errno not in DISK_FULL:
                raise
            if not self._disk_is_full:
                logger.error("the record of the run waits, the disk is full: %s", problem)
            self._disk_is_full, self._board = True, None

    def _line(self, step: int, scalars: Mapping[str, float], skipped: str | None) -> str:
        done = step - self._first_step + 1
        remaining_s = (time.monotonic() - self._started_at) / done * (self._total_steps - step)
        parts = [
            f"step {step}/{self._total_steps}",
            *(said.format(scalars[tag] / unit) for tag, unit, said in _SAID if tag in scalars),
            f"eta {duration(remaining_s)}",
        ]
        if skipped is not None:
            parts.insert(1, f"update skipped: {skipped}")
        return " | ".join(parts)

"""status.json of a run folder, its heartbeat: what the run is doing, for people, schedulers and
`python -m pretrain status`.

    {"state": "running", "step": 120, "steps": 5000, "loss_nats": 3.41, "tokens_per_second":
    41200.0, "host": "node3", "pid": 4711, ...}

States, with the reason of the last three in it:

    running    written every few seconds (heartbeat.py); two minutes old: killed, which is said
    finished   all steps are done
    stopped    saved at --stop_at_step, as planned
    preempted  saved because it was asked to (stopping.py), to be started again
    failed     ended by an error

Written by rank 0 through a rename, so a reader never sees half of it.
"""

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pretrain.settings.told import told

STATUS_FILE = "status.json"
STALE_AFTER_S = 120.0


@dataclass(frozen=True)
class Status:
    """Where a run stands."""

    state: str
    step: int
    steps: int
    loss_nats: float | None = None
    tokens_per_second: float | None = None
    step_seconds: float | None = None
    checkpoint_step: int | None = None
    reason: str | None = None
    written_at: float = 0.0  # seconds since the epoch, as all that end so
    progressed_at: float = 0.0  # the last step, evaluation or save that ended
    checkpoint_at: float | None = None
    started_at: float | None = None
    tokens: float = 0.0  # read since the run began, padding left out
    held_out_nats: float | None = None
    host: str | None = None  # of rank 0, and its process there
    pid: int | None = None
    ranks: int | None = None
    device: str | None = None  # cpu, or the GPU's name
    device_seconds: float = 0.0  # ranks x wall time, over all starts of the run


def write(run_folder: Path, status: Status) -> None:
    """Replace the status of a run."""
    partial = run_folder / f"{STATUS_FILE}.partial"
    said = asdict(replace(status, written_at=time.time()))
    partial.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, run_folder / STATUS_FILE)


def read(run_folder: Path) -> Status:
    """The status of a run. Raises ValueError naming the file where there is none or it is no
    status."""
    path = run_folder / STATUS_FILE
    try:
        return Status(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing: {run_folder} is no run folder, or its training never started."
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a run's status: {error}.") from error


def before(run_folder: Path) -> Status | None:
    """What the start before this one left; None where there is none that can be read."""
    try:
        return read(run_folder)
    except ValueError:
        return None


def note_failure(run_folder: Path, steps: int, error: BaseException) -> None:
    """A start of the run ends with `error`; where all was done before, that stays its status.

    A disk that does not take it is passed over: the error itself is the news.
    """
    known = before(run_folder) or Status(state="", step=0, steps=steps)
    if known.state not in ("finished", "stopped"):
        with contextlib.suppress(OSError):
            write(run_folder, replace(known, state="failed", reason=in_words(error)))


def in_words(error: BaseException) -> str:
    """Why a run failed, for a reader of its status."""
    return told(f"{type(error).__name__}: {error}")


def state_of(run_folder: Path, *, steps: int = 0, now: float | None = None) -> str | None:
    """The state of a run, `lost` where it says running and its file is old; None: never started.

    steps: of the run as it is now wanted; one that finished fewer is only `stopped`.
    """
    status = before(run_folder)
    if status is None:
        return None
    if status.state == "running" and is_silent(status, time.time() if now is None else now):
        return "lost"
    return "stopped" if status.state == "finished" and status.step < steps else status.state


def is_silent(status: Status, now: float) -> bool:
    """Whether a running run's heart has stopped."""
    return now - status.written_at > STALE_AFTER_S


def describe(run_folder: Path, status: Status, now: float) -> str:
    """The status in a few lines: what the run does and when it will end."""
    age_s = now - status.written_at
    state = status.state
    still_s = now - (status.progressed_at or now)
    if state == "running" and is_silent(status, now):
        state = f"lost: killed or cut off {duration(age_s)} ago, start it again with --resume auto"
    elif state == "running" and still_s > max(STALE_AFTER_S, 10 * (status.step_seconds or 0.0)):
        state = f"running, but no step for {duration(still_s)}: in an evaluation or save, or hung"
    lines = [f"{run_folder}: {state}" + (f" ({status.reason})" if status.reason else "")]
    share = 100 * status.step / status.steps
    lines.append(f"  step        {status.step} of {status.steps} ({share:.0f} %)")
    if status.loss_nats is not None:
        lines.append(f"  loss        {status.loss_nats:.4f} nats a target")
    if status.tokens_per_second is not None:
        lines.append(f"  speed       {status.tokens_per_second / 1000:.1f}k tokens/s")
    if status.held_out_nats is not None:
        lines.append(f"  held out    {status.held_out_nats:.4f} nats")
    lines.append(f"  checkpoint  {_checkpoint(status, now)}")
    if status.tokens:
        lines.append(f"  read        {status.tokens:,.0f} tokens, padding left out")
    if status.device_seconds:
        hours, device = status.device_seconds / 3600, status.device or "device"
        lines.append(f"  cost        {hours:.2f} hours of {device}, all starts together")
    if status.host:
        lines.append(f"  on          {status.host}, process {status.pid}, {status.ranks} ranks")
    lines.append(f"  written     {duration(age_s)} ago")
    if state.startswith("running") and status.step_seconds:
        left_s = (status.steps - status.step) * status.step_seconds
        lines.append(f"  ends in     about {duration(left_s)}, at the speed of the last step")
    elif status.state == "preempted":
        lines.append("  go on with  the same command and --resume auto")
    elif status.state == "stopped":
        lines.append("  go on with  the same command, a later --stop_at_step or none")
    return "\n".join(lines)


def _checkpoint(status: Status, now: float) -> str:
    if status.checkpoint_step is None:
        return "none yet"
    age = f", {duration(now - status.checkpoint_at)} ago" if status.checkpoint_at else ""
    return f"step {status.checkpoint_step}{age}"


def main(argv: Sequence[str]) -> str:
    """`python -m pretrain status RUN...`: the text to print."""
    usage = "usage: python -m pretrain status RUN...   (RUN: a run folder, as runs/demo)"
    if not argv:
        raise ValueError(usage)
    if argv[0] in ("-h", "--help"):
        return f"{usage}\n\n{__doc__}".rstrip()
    folders = [Path(name) for name in argv]
    return "\n".join(describe(folder, read(folder), time.time()) for folder in folders)


def duration(seconds: float) -> str:
    """`seconds` as 45s, 12m, 3h05m or 4d2h."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f}s"
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24}h"

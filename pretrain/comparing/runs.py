"""What run folders say of their runs, also while they are written and where parts are missing.

Nothing here is an error of one run: what a folder lacks or holds half is counted under its name in
`gaps`, and the other columns stand.
"""

import json
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

import yaml

from pretrain.recording.status import STATUS_FILE, Status, read, state_of
from pretrain.settings.dotted import flat, shown

LOSS = "loss/total_nats"
HELD_OUT = "validation/total_nats"
SPEED = "speed/tokens_per_second"
MEAN_OVER = 20  # last steps of the training loss
SPEED_OVER = 100
OF_A_RUN = ("config.yaml", STATUS_FILE, "metrics.jsonl")


Curve = list[tuple[int, float]]  # step, value


@dataclass
class Run:
    """One run as its folder tells it."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)  # by dotted key
    status: Status | None = None
    state: str = "unknown"
    curves: dict[str, Curve] = field(default_factory=dict)  # of the tags that were asked for
    gaps: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The run folder's name."""
        return self.folder.name

    @property
    def reason(self) -> str | None:
        """Why it failed or stopped."""
        return self.status.reason if self.status else None

    def last(self, tag: str) -> float | None:
        """The newest value of a tag."""
        curve = self.curves.get(tag)
        return curve[-1][1] if curve else None

    def best(self, tag: str = HELD_OUT) -> tuple[int, float] | None:
        """Step and value of the lowest value of a tag."""
        return min(self.curves.get(tag, ()), key=lambda point: point[1], default=None)

    def final_loss(self) -> float | None:
        """The mean training loss of the last steps, in nats."""
        values = [value for _, value in self.curves.get(LOSS, ())[-MEAN_OVER:]]
        return statistics.fmean(values) if values else None

    def tokens_per_second(self) -> float | None:
        """The median over the last steps."""
        values = [value for _, value in self.curves.get(SPEED, ())[-SPEED_OVER:]]
        return statistics.median(values) if values else None

    def device_hours(self) -> float | None:
        """Ranks x wall time over all starts of the run, in hours."""
        return self.status.device_seconds / 3600 if self.status else None


def find_runs(patterns: Sequence[str]) -> list[Path]:
    """The run folders that paths and patterns name: a run's own folder, or a folder of runs.

    In the order of the patterns, each once, numbers in names counted as numbers. Raises ValueError
    where a pattern names none.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        folders = [Path(path) for path in glob(pattern)] or [Path(pattern)]
        runs: list[Path] = []
        for folder in folders:
            if _is_run(folder):
                runs.append(folder)
            elif folder.is_dir():
                runs += [path for path in folder.iterdir() if _is_run(path)]
        if not runs:
            raise ValueError(
                f"{pattern}: no run there. Name run folders, as runs/demo or 'runs/sweep/*', or a "
                "folder that holds some."
            )
        found |= dict.fromkeys(sorted(runs, key=_natural))
    return list(found)


def read_run(folder: Path, tags: Sequence[str] = ()) -> Run:
    """A run with the curves that a comparison needs, and those of `tags`."""
    run = Run(folder)
    _read_settings(run)
    try:
        run.status = read(folder)
        run.state = state_of(folder) or run.state
    except ValueError as problem:
        run.gaps.append(" ".join(str(problem).split()))
    _read_curves(run, {LOSS, HELD_OUT, SPEED, *tags})
    return run


def differing(runs: Sequence[Run]) -> list[str]:
    """The settings that are not the same in all runs, by dotted key; names and folders left out."""
    known = [run.settings for run in runs if run.settings]
    keys = dict.fromkeys(key for settings in known for key in settings)
    return [
        key
        for key in keys
        if key not in ("name", "runs") and any(s.get(key) != known[0].get(key) for s in known)
    ]


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in OF_A_RUN)


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part or -1), "") if part.isdecimal() else (-1, part)
            for part in re.split(r"(\d+)", str(path))]  # fmt: skip


def _read_settings(run: Run) -> None:
    path = run.folder / "config.yaml"
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        run.gaps.append("config.yaml is missing: set-up did not end")
        return
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        run.gaps.append(f"config.yaml cannot be read: {' '.join(str(problem).split())}")
        return
    if not isinstance(said, dict):
        run.gaps.append("config.yaml holds no settings")
        return
    run.settings = shown(flat(said))


def _read_curves(run: Run, tags: set[str]) -> None:
    left_out: Counter[str] = Counter()
    try:
        lines = open(run.folder / "metrics.jsonl", encoding="utf-8", errors="replace")  # noqa: SIM115
    except OSError:
        run.gaps.append("metrics.jsonl is missing: no step has been recorded")
        return
    with lines:
        for line in lines:
            try:
                row = json.loads(line)
                step = int(row["step"])
            except (ValueError, KeyError, TypeError):
                whole = line.endswith("\n")
                left_out["not a step's record" if whole else "still being written, or cut off"] += 1
                continue
            for tag in tags & row.keys():
                value = row[tag]
                if isinstance(value, int | float):
                    run.curves.setdefault(tag, []).append((step, float(value)))
    run.gaps += [f"metrics.jsonl: lines left out, {why}: {n}" for why, n in left_out.items()]

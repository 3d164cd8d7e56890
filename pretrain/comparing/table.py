"""A comparison of runs as one table: for a reader, as CSV, as JSON."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pretrain.comparing.runs import HELD_OUT, Run, differing
from pretrain.settings.dotted import short

REASON_CHARACTERS = 60  # in the text; CSV and JSON have all of it


def rows(runs: Sequence[Run], tags: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A row for each run: what differs, how far it is, how well it does, what it costs.

    tags: further metrics, of which the newest value is told.
    """
    keys = differing(runs)
    return [_row(run, keys, tags) for run in runs]


def _row(run: Run, keys: Sequence[str], tags: Sequence[str]) -> dict[str, Any]:
    status, best = run.status, run.best()
    return {
        "run": str(run.folder),
        "settings": {key: run.settings.get(key) for key in keys} if run.settings else {},
        "state": run.state,
        "reason": run.reason,
        "step": status.step if status else None,
        "steps": status.steps if status else None,
        "loss_nats": run.final_loss(),
        "held_out_nats": run.last(HELD_OUT),
        "best_held_out_nats": best[1] if best else None,
        "best_step": best[0] if best else None,
        "tokens": status.tokens if status else None,
        "tokens_per_second": run.tokens_per_second(),
        "device": status.device if status else None,
        "ranks": status.ranks if status else None,
        "device_hours": run.device_hours(),
        **{tag: run.last(tag) for tag in tags},
        "gaps": run.gaps,
    }


def as_json(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a JSON list."""
    return json.dumps(list(found), indent=1, allow_nan=True)


def as_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV with a header, a column for each setting that differs."""
    plain = [
        {k: v for k, v in row.items() if k not in ("settings", "gaps")}
        | {key: _word(value) for key, value in row["settings"].items()}
        | {"gaps": "; ".join(row["gaps"])}
        for row in found
    ]
    written = io.StringIO()
    columns = list(dict.fromkeys(key for row in plain for key in row))
    writer = csv.DictWriter(written, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    return written.getvalue().rstrip("\n")


def as_text(found: Sequence[Mapping[str, Any]], tags: Sequence[str] = ()) -> str:
    """The rows in columns, and below them what the folders lack."""
    labels = short(key for row in found for key in row["settings"])
    numbers = ("step", "loss", "held out", "best", "at step", "tok/s", "hours")
    lines = [["run", *labels.values(), *numbers, *_columns_of(tags), "state"]]
    for row in found:
        named = [_word(row["settings"][key]) if row["settings"] else "?" for key in labels]
        lines.append([_name(row), *named, *_numbers(row), *(_number(row[t]) for t in tags),
                      _state(row)])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    said = [
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    gaps = [f"{row['run']}: {gap}" for row in found for gap in row["gaps"]]
    costs = _costs(found)
    return "\n".join([*said, *([""] if gaps or costs else []), *costs, *gaps])


def _columns_of(tags: Sequence[str]) -> list[str]:
    """The tags without their rooms, where they stay different."""
    plain = [tag.rpartition("/")[2] for tag in tags]
    return plain if len(set(plain)) == len(plain) else list(tags)


def _name(row: Mapping[str, Any]) -> str:
    return row["run"].rstrip("/").rpartition("/")[2]


def _numbers(row: Mapping[str, Any]) -> list[str]:
    at = "-" if row["step"] is None else f"{row['step']}/{row['steps']}"
    speed, hours = row["tokens_per_second"], row["device_hours"]
    return [
        at,
        _number(row["loss_nats"]),
        _number(row["held_out_nats"]),
        _number(row["best_held_out_nats"]),
        "-" if row["best_step"] is None else str(row["best_step"]),
        "-" if speed is None else f"{speed:.0f}",
        f"{hours:.3f}" if hours else "-",
    ]


def _costs(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """What all runs took, for each sort of device."""
    hours: dict[str, float] = {}
    for row in found:
        if row["device_hours"]:
            device = row["device"] or "unknown device"
            hours[device] = hours.get(device, 0.0) + row["device_hours"]
    return [
        f"hours: {total:.3f} of {device}, ranks x wall time over all starts"
        for device, total in hours.items()
    ]


def _state(row: Mapping[str, Any]) -> str:
    reason = " ".join((row["reason"] or "").split())
    if len(reason) > REASON_CHARACTERS:
        reason = f"{reason[: REASON_CHARACTERS - 3]}..."
    return f"{row['state']} ({reason})" if reason else row["state"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

"""metrics.jsonl, a line a step: cut back to a checkpoint."""

import json
import logging
import os
from pathlib import Path
from typing import Any

TOKENS = "data/tokens_per_step"

logger = logging.getLogger(__name__)


def rewind(path: Path, first_step: int, *, evaluates_again: bool = False) -> float:
    """Keep only the whole lines of steps before `first_step`; a line that a kill cut off goes
    too. Returns the tokens that the steps which are left have read.

    evaluates_again: remove also the lines of an evaluation after the last step that is kept.
    """
    if not path.is_file():
        return 0.0
    tokens, removed, partial = 0.0, 0, path.with_suffix(".partial")
    with open(path, encoding="utf-8") as lines, open(partial, "w", encoding="utf-8") as kept:
        for line in lines:
            row = _row(line) if line.endswith("\n") else None
            if row is not None and _stays(row, first_step, evaluates_again):
                kept.write(line)
                tokens += row.get(TOKENS) or 0.0
            else:
                removed += 1
        kept.flush()
        os.fsync(kept.fileno())
    if not removed:
        partial.unlink()
        return tokens
    os.replace(partial, path)
    logger.info(
        "metrics: removed %d lines from step %d on, written after the checkpoint",
        removed,
        first_step,
    )
    return tokens


def _stays(row: dict[str, Any], first_step: int, evaluates_again: bool) -> bool:
    if evaluates_again and row["step"] == first_step - 1:
        return TOKENS in row
    return row["step"] < first_step


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int | float) else None

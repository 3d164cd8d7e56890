"""`python -m pretrain compare RUNS...`: runs side by side in one table and one picture.

    python -m pretrain compare runs/optimus_lambda --picture lambda.png
    python -m pretrain compare 'runs/*' --csv > runs.csv

Reads what run folders hold, also while they are trained: what is half written or missing is told
below the table and spoils nothing else.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pretrain.comparing.runs import find_runs, read_run
from pretrain.comparing.table import as_csv, as_json, as_text, rows


class _Parser(argparse.ArgumentParser):
    """Errors are ValueErrors, which `python -m pretrain` turns into one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"compare: {message}")


def parser() -> argparse.ArgumentParser:
    """The arguments of `python -m pretrain compare`."""
    made = _Parser(
        prog="pretrain compare",
        description="Settings that differ, losses, speed, cost and state of runs in one table. "
        "loss: mean training loss of the last 20 steps; held out: the newest, and the best with "
        "its step; tok/s: median of the last 100 steps; hours: ranks x wall time of all starts.",
    )
    made.add_argument(
        "runs", nargs="+", metavar="RUNS", help="run folders, patterns, or folders that hold runs"
    )
    how = made.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="the table as JSON")
    how.add_argument("--csv", action="store_true", help="the table as CSV")
    made.add_argument("--picture", type=Path, metavar="FILE.png", help="draw the curves, too")
    made.add_argument(
        "--show", action="append", default=[], metavar="TAG",
        help="one more column: the newest value of a metric, as validation/optimus_mi_nats; may "
        "be given several times",
    )  # fmt: skip
    return made


def main(argv: Sequence[str]) -> str:
    """The comparison that the command line asks for, as the text to print."""
    chosen = parser().parse_args(argv)
    if chosen.picture and chosen.picture.suffix != ".png":
        raise ValueError(f"--picture: the file must end in .png, got {chosen.picture}.")
    runs = [read_run(folder, chosen.show) for folder in find_runs(chosen.runs)]
    known = {tag for run in runs for tag in run.curves}
    for tag in chosen.show:
        if tag not in known:
            raise ValueError(
                f"--show {tag}: no run has recorded it. See the names in metrics.jsonl."
            )
    if chosen.picture:
        from pretrain.comparing.picture import draw  # brings matplotlib

        draw(runs, chosen.picture)
    found = rows(runs, chosen.show)
    if chosen.json:
        return as_json(found)
    return as_csv(found) if chosen.csv else as_text(found, chosen.show)

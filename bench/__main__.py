"""python -m bench: ours beside its peers, in one table; `make bench` calls it.

Tests first: where they are red nothing is measured. Then every group in a process of its own (the
ranks of two_ranks in two), one thread each; its rows are printed and written to
bench/results/GROUP.json.
"""

import argparse
import json
import logging
import os
import sys
from pathlib import Path

from bench.groups import GROUPS, red_tests, report, run_group


def main() -> None:
    """Read the command line, test, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and peers: 3 minutes")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), help="by default all groups")
    parser.add_argument(
        "--results", type=Path, help="folder of the JSON files, by default bench/results; quick "
        "rows are only written where it is given",
    )  # fmt: skip
    parser.add_argument("--measure", choices=list(GROUPS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        logging.disable(logging.WARNING)
        rows = GROUPS[arguments.measure].rows(arguments.quick)
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps([vars(row) for row in rows]))
        return
    sys.exit(_bench(arguments))


def _bench(arguments: argparse.Namespace) -> int:
    red = red_tests()
    if red:
        print(red)
        print("bench: tests are red, so nothing is measured. Mend them first: make test")
        return 1
    folder = arguments.results or (None if arguments.quick else Path(__file__).parent / "results")
    for name in arguments.only or GROUPS:
        print(report(name, run_group(name, quick=arguments.quick), folder), flush=True)
    return 0


if __name__ == "__main__":
    main()

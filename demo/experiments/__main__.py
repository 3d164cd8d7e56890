"""python -m demo.experiments NAME: small comparisons of latent models, one command each."""

import argparse
import logging
import sys

from demo.experiments.plans import EXPERIMENTS
from demo.experiments.runs import run_experiment


def main() -> None:
    """Read the command line, run the experiment and print its table."""
    listed = "; ".join(f"{name}: {e.question}" for name, e in EXPERIMENTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m demo.experiments", description=__doc__, epilog=listed
    )
    parser.add_argument("name", choices=list(EXPERIMENTS), help="the experiment")
    parser.add_argument("--steps", type=int, help="updates of each run, by default 200, or 60")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
        print(run_experiment(arguments.name, arguments.steps))
    except ValueError as error:
        sys.stderr.write(f"experiments: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()

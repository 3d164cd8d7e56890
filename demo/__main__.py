"""python -m demo: real text to a trained model in a few minutes; `make demo` calls it.

python -m demo vae: a small VAE whose sentences are points; `make demo-vae` calls it.
"""

import argparse
import logging
import sys

from demo.corpus import SOURCES
from demo.run import run_demo
from demo.vae import run_vae_demo


def main() -> None:
    """Read the command line, run the demo and print its page."""
    parser = argparse.ArgumentParser(
        prog="python -m demo", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "model", nargs="?", choices=("glm", "vae"), default="glm", help="what is trained"
    )
    parser.add_argument("--corpus", choices=sorted(SOURCES), default="sotu", help="the text")
    parser.add_argument("--steps", type=int, help="updates; by default those of the recipe")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
        if arguments.model == "glm":
            print(run_demo(arguments.corpus, arguments.steps))
            return
        shown = run_vae_demo(arguments.corpus, arguments.steps)
    except ValueError as error:
        sys.stderr.write(f"demo: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("demo: stopped; the next start goes on from what is done.\n")
        sys.exit(130)
    print(shown.page)
    if shown.missed:
        sys.stderr.write(f"demo: goals missed: {'; '.join(shown.missed)}.\n")
        sys.exit(1)


if __name__ == "__main__":
    main()

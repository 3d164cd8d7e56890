"""Runs several trainings in one process group: a rank of tests/pretrain/test_ranks.py, not a test.

`python train_cases.py CASES.json`, in the environment of a rank; CASES: a list of argument lists.
"""

import json
import sys
from pathlib import Path

from pretrain.cli import parse_train
from pretrain.train import run_in
from pretrain.world import join_world, leave_world


def main() -> None:
    world = join_world(timeout_s=120)
    for argv in json.loads(Path(sys.argv[1]).read_text()):
        run_in(world, *parse_train(argv))
    leave_world()


if __name__ == "__main__":
    main()

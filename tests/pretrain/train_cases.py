"""Runs several trainings in one process group: a rank of tests/pretrain/test_ranks.py, not a test.

`python train_cases.py CASES.json`, in the environment of a rank; CASES: a list of argument lists.
"""

import json
import sys
from pathlib import Path

from data_pipeline.shards import open_shards
from pretrain.cli import parse_train
from pretrain.run_folder import RunFolder
from pretrain.setup import set_up
from pretrain.train import train
from pretrain.world import join_world, leave_world


def main() -> None:
    world = join_world(timeout_s=120)
    for argv in json.loads(Path(sys.argv[1]).read_text()):
        config, start = parse_train(argv)
        folder = RunFolder(Path(config.runs) / config.name)
        train(set_up(config, open_shards(Path(config.data.shards)), folder, start, world))
        folder.unlock()
    leave_world()


if __name__ == "__main__":
    main()

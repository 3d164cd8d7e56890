"""A flipped byte in a shard is found at start where the recipe asks for it."""

import shutil
from pathlib import Path

import pytest
import torch

from pretrain.cli import parse_train
from pretrain.train import checked_corpora
from pretrain.world import World

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")


@pytest.mark.parametrize(("local_rank", "found"), [(0, True), (1, False)])
def test_hashes_are_compared_once_a_host(
    local_rank: int, found: bool, shards: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "shards"
    shutil.copytree(shards, damaged)
    path = next((damaged / "train").glob("*.tokens"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    flags = ["--config", DEBUG, f"--data.shards={damaged}"]
    world = World(local_rank, 2, local_rank, torch.device("cpu"), 60)
    checked_corpora(parse_train(flags)[0], world)  # sizes alone are right
    config, _ = parse_train([*flags, "--data.verify=hashes"])
    if found:
        with pytest.raises(ValueError, match=path.name):
            checked_corpora(config, world)
    else:
        checked_corpora(config, world)

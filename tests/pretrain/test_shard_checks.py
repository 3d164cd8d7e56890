"""A flipped byte in a shard is found at start where the recipe asks for it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.distributed.world import World
from pretrain.settings.data_config import CorpusConfig
from pretrain.settings.mistakes import AgreedError
from pretrain.training import corpora
from pretrain.training.corpora import check_every_byte, open_corpora


class OneOfThree(World):
    """A rank beside two others: ranks 0 and 1 on this host, rank 2 on another one."""

    def gather(self, value: Any) -> list[Any]:
        return [value, value, "elsewhere" if isinstance(value, str) else 0]


def test_the_ranks_of_a_host_share_its_files(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "shards"
    shutil.copytree(shards, damaged)
    path = next((damaged / "train").glob("*.tokens"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    opened = open_corpora((CorpusConfig(shards=str(damaged), weight=1.0),))  # sizes alone are right

    read: list[list[str]] = [[], []]
    met: list[int] = []
    compare = corpora.file_problem
    for rank in (0, 1):
        world = OneOfThree(rank, 3, rank, torch.device("cpu"), 60)

        def noted(folder: Path, file: Any, rank: int = rank) -> str | None:
            read[rank].append(file.path)
            return compare(folder, file)

        monkeypatch.setattr(corpora, "file_problem", noted)
        try:
            check_every_byte(opened, world)
        except AgreedError as error:
            assert f"{path} has the checksum" in str(error)
            met.append(rank)
    assert len(met) == 1  # one of them reads the damaged file
    files = [file.path for file in opened.shards.manifest.files()]
    assert set(read[0]).isdisjoint(read[1]) and set(read[0] + read[1]) <= set(files)
    whole = 1 - met[0]
    assert read[whole] == files[whole::2]

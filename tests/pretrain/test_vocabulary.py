"""The token table has a row for every id that can come, and the tokenizer is the shards' own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.storage.shards import open_shards
from pretrain.models.shape import VOCABULARY_MULTIPLE, padded_vocabulary
from pretrain.objectives.select import objectives_of
from pretrain.settings.cli import parse_train

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "launch" / "recipes" / "debug.yaml")


@pytest.mark.parametrize("vocab_size", [1, 127, 128, 129, 30522, 50266, 65536, 65537])
def test_the_token_table_holds_every_id(vocab_size: int) -> None:
    rows = padded_vocabulary(vocab_size)
    assert vocab_size <= rows < vocab_size + VOCABULARY_MULTIPLE and rows % VOCABULARY_MULTIPLE == 0


def test_no_id_of_shards_or_rows_lies_outside_the_table(shards: Path) -> None:
    """Specials included; an id that damage puts into a shard is an error where it is read."""
    opened, config = open_shards(shards), parse_train(["--config", DEBUG])[0]
    transforms = [
        objective.transform(opened.special, source_tokens=64, vocab_size=opened.vocab_size)
        for objective in objectives_of(config.objectives, steps=1)
    ]
    rows = padded_vocabulary(max(t.vocab_size for t in transforms))
    assert max(opened.special.by_name().values()) < opened.vocab_size <= rows
    split = opened.splits["train"]
    all_N = np.arange(split.num_documents)
    ids = split.tokens(all_N, np.zeros_like(all_N), split.lengths(all_N))
    assert ids.min() >= 0 and ids.max() < rows
    split._vocab_size = int(ids.max())  # as if a file held an id above the vocabulary
    with pytest.raises(ValueError, match=r"holds the id \d+, outside the vocabulary"):
        split.tokens(all_N, np.zeros_like(all_N), split.lengths(all_N))


@pytest.mark.slow
def test_a_changed_tokenizer_ends_the_run_before_its_first_step(
    shards: Path, tmp_path: Path
) -> None:
    """One process on a CPU; about 15 seconds."""
    changed = tmp_path / "shards"
    shutil.copytree(shards, changed)
    path = changed / "tokenizer" / "tokenizer.model"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    flags = ["--data.shards", str(changed), "--runs", str(tmp_path / "runs"), "--name", "x"]
    ran = subprocess.run(
        [sys.executable, "-m", "pretrain", "train", "--config", DEBUG, *flags],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 2, said
    assert f"{path} has the checksum" in said and "Traceback" not in said
    assert "step 1/" not in said and not list((tmp_path / "runs").rglob("step-*"))

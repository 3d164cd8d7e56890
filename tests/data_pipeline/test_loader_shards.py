"""Batches out of shards on disk are those of the same documents in memory, workers included."""

from itertools import islice

import numpy as np
import pytest
import torch

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.loader import Position, training_batches
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.storage.manifest import SplitEntry
from data_pipeline.storage.shard_writer import ShardWriter
from data_pipeline.storage.shards import Split
from data_pipeline.storage.stored import StoredDocuments
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
PACKING = PackingConfig(source_tokens=64, row_tokens=100, window_tokens=20_000)
SENTENCES = BlankConfig(token_prob=0.5, sentence_prob=0.5)


@pytest.fixture
def both_splits(tmp_path) -> tuple[MemorySplit, Split]:
    """700 documents with prompts and sentence ends, in memory and in shards of 5,000 tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 200, 700)
    documents = [rng.integers(len(SPECIALS), 500, n).astype(np.int32) for n in lengths]
    prompts = (lengths // 5) * (rng.random(700) < 0.5)
    ends = [np.flatnonzero(np.append(rng.random(n - 1) < 0.1, True)) + 1 for n in lengths]
    writer = ShardWriter(tmp_path, "train", "uint16", shard_tokens=5000)
    stored = StoredDocuments(
        tokens=np.concatenate(documents),
        lengths_N=lengths,
        prompt_lengths_N=prompts,
        sentence_ends=np.concatenate(ends),
        num_ends_N=np.array([len(e) for e in ends]),
        text_hash_N=np.zeros(700, np.uint64),
    )
    writer.add(stored)
    shards = writer.close()
    assert len(shards) > 10
    entry = SplitEntry(documents=700, tokens=int(lengths.sum()), fingerprint="0", shards=shards)
    memory = MemorySplit.from_documents(documents, prompt_lengths=prompts, sentence_ends=ends)
    return memory, Split(tmp_path, "train", entry, "uint16", 500)


@pytest.mark.ranks
@pytest.mark.parametrize("num_workers", [0, 2])
def test_shards_give_the_batches_of_the_documents_in_them(both_splits, num_workers):
    transform = BlankTransform(SENTENCES, SPECIAL, source_tokens=64, vocab_size=500)
    streams = [
        training_batches(
            split, transform, PACKING, seed=1, rank=0, world_size=1, micro_rows=16,
            accumulation=1, start=Position(), num_workers=workers,
        )
        for split, workers in zip(both_splits, (0, num_workers))
    ]  # fmt: skip
    for from_memory, from_disk in islice(zip(*streams), 60):
        assert torch.equal(from_memory.block, from_disk.block)
        assert from_memory.position == from_disk.position


@pytest.mark.ranks
@pytest.mark.parametrize("num_workers", [0, 2])
def test_damage_that_a_worker_meets_is_one_line(both_splits, num_workers, tmp_path):
    _, split = both_splits
    path = tmp_path / "train/00000.tokens"
    path.write_bytes(b"\xff" * path.stat().st_size)
    stream = training_batches(
        split, BlankTransform(SENTENCES, SPECIAL, source_tokens=64, vocab_size=500), PACKING,
        seed=1, rank=0, world_size=1, micro_rows=16, accumulation=1, start=Position(),
        num_workers=num_workers,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"^\S*00000\.tokens is damaged: [^\n]*$"):
        list(islice(stream, 200))

"""Rows that carry the texts before they were blanked: the same documents, untouched, keyed."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from data_pipeline.hashing import key, normal
from data_pipeline.memory import MemorySplit
from data_pipeline.packing.loader import Mix, first_place, training_batches
from data_pipeline.packing.pack import ARRAYS, concatenate, padding_rows, take_rows
from data_pipeline.packing.plan import PackingConfig, plan_window
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
PACKING = PackingConfig(source_tokens=32, row_tokens=48, window_tokens=100_000)
MIX = BlankConfig(token_prob=0.4, sentence_prob=0.3, document_prob=0.3)


def transform(keeps_sources: bool) -> BlankTransform:
    return BlankTransform(
        MIX, SPECIAL, source_tokens=32, vocab_size=9000, keeps_sources=keeps_sources
    )


def split_of(num_documents: int = 200) -> MemorySplit:
    lengths = np.random.default_rng(0).integers(1, 28, num_documents)
    documents = np.split(np.arange(lengths.sum()) + len(SPECIALS), np.cumsum(lengths)[:-1])
    return MemorySplit.from_documents(documents)


def plan(keeps_sources: bool = True):
    return plan_window(split_of(), transform(keeps_sources), PACKING, seed=3, epoch=2, window=0)


def test_sources_are_the_documents_of_the_row_as_they_were():
    window = plan()
    packed = window.build(np.arange(window.num_rows))
    sources = packed.sources
    for row in range(window.num_rows):
        for document in range(packed.document[row].max() + 1):
            ids = sources.ids[row][sources.document[row] == document]
            text = ids[1:-1] if ids[-1] == SPECIAL.eos else ids[1:]
            assert ids[0] == SPECIAL.cls
            assert (np.diff(text) == 1).all()  # stored documents are runs of numbers
            # What stands unblanked in part A or is a target in part B is the same text.
            of_row = packed.document[row] == document
            kept = packed.ids[row][of_row & (packed.weights[row] == 0)]
            written = packed.targets[row][of_row & (packed.weights[row] > 0)]
            words = np.concatenate((kept, written))
            assert sorted(words[words >= len(SPECIALS)]) == text.tolist()


def test_each_document_has_the_key_of_its_piece():
    window = plan()
    packed = window.build(np.arange(window.num_rows))
    pieces = window.stretches.take(window.order).pieces()
    expected = key(3, 2, pieces.document_N, pieces.start_N)
    counts = np.diff(window.row_offsets_R1)
    held = packed.sources.keys[np.arange(counts.max()) < counts[:, None]]
    assert np.array_equal(held, expected) and len(set(held.tolist())) == len(held)


def test_without_sources_the_rows_are_the_same():
    rows = np.arange(5)
    with_sources, without = plan().build(rows), plan(keeps_sources=False).build(rows)
    assert without.sources is None
    assert all(np.array_equal(getattr(with_sources, n), getattr(without, n)) for n in ARRAYS)


def test_blocks_are_joined_and_taken_apart():
    window = plan()
    one, two = window.build(np.arange(3)), window.build(np.arange(3, 5))
    joined = concatenate([one, two, padding_rows(1, PACKING.row_tokens)])
    whole = window.build(np.arange(5))
    assert np.array_equal(joined.sources.ids[:5], whole.sources.ids)
    assert (joined.sources.document[5] == -1).all()
    back = take_rows(joined, np.array([4, 0]))
    assert np.array_equal(back.sources.ids, whole.sources.ids[[4, 0]])
    width = whole.sources.keys.shape[1]
    assert np.array_equal(back.sources.keys[:, :width], whole.sources.keys[[4, 0]])


def batches(source, world_size: int, rank: int):
    return training_batches(
        source,
        transform(True),
        PACKING,
        seed=3,
        rank=rank,
        world_size=world_size,
        micro_rows=4 // world_size,
        accumulation=1,
        start=first_place(source),
        num_workers=0,
    )


@pytest.mark.parametrize(
    "source", [split_of(), Mix((split_of(), split_of(90)), (2.0, 1.0))], ids=["one", "mix"]
)
def test_a_batch_brings_sources_and_keys_at_any_world_size(source):
    alone = next(batches(source, 1, 0))
    assert alone.sources.shape == (2, 4, 48) and alone.sources.dtype == torch.int32
    for rank in range(2):
        batch = next(batches(source, 2, rank))
        assert torch.equal(batch.sources, alone.sources[:, rank::2])
        width = batch.keys.shape[1]
        assert torch.equal(batch.keys, alone.keys[rank::2, :width])
        assert not alone.keys[rank::2, width:].any()
    moved = alone.to("cpu")
    assert moved.keys is not None and torch.equal(moved.keys, alone.keys)
    assert len(list(islice(batches(source, 1, 0), 2))) == 2


def test_an_empty_batch_of_a_transform_without_sources_has_none():
    batch = next(batches(split_of(), 1, 0))
    assert replace(batch, sources=None, keys=None).to("cpu").sources is None


def test_normal_draws_are_standard_normal_and_a_function_of_the_key():
    keys = np.arange(40_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    drawn = normal(keys, 5)
    assert np.array_equal(drawn, normal(keys, 5)) and not np.array_equal(drawn, normal(keys, 6))
    # 4 standard errors of mean, variance and fourth moment of N(0, 1).
    assert abs(drawn.mean()) < 4 / 200 and abs(drawn.var() - 1) < 4 * 2**0.5 / 200
    assert abs((drawn**4).mean() - 3) < 4 * 96**0.5 / 200
    assert abs(np.corrcoef(drawn, normal(keys, 6))[0, 1]) < 4 / 200

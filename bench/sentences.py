"""Sentences of some 10 to 30 tokens, for a latent model and its peers: packed for us, padded for
them.

Lengths are lognormal about 18 tokens (two thirds lie within 11 and 30), 62 at most: below the 64 to
which Optimus' corpus was cut.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.texts import invented_split, special_ids
from data_pipeline.packing.loader import Batch, Position, training_batches
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.protocols import Transform

MEDIAN_TOKENS, SIGMA = 18, 0.5
LENGTHS = (3, 62)
SOURCE_TOKENS = 64  # with the beginning and the end of a sentence
NUM_SENTENCES = 8192


def sentence_lengths() -> NDArray[np.int64]:
    """Tokens of each sentence without its beginning and end: (N,), always the same."""
    drawn = np.random.default_rng(29).lognormal(np.log(MEDIAN_TOKENS), SIGMA, NUM_SENTENCES)
    return np.clip(drawn, *LENGTHS).astype(np.int64)


def packed_batches(
    transform: Transform, vocab_size: int, *, rows: int, row_tokens: int, count: int
) -> list[Batch]:
    """`count` micro-batches of `rows` rows as training takes them."""
    stream = training_batches(
        invented_split(sentence_lengths(), vocab_size),
        transform,
        PackingConfig(source_tokens=SOURCE_TOKENS, row_tokens=row_tokens, cut="long"),
        seed=3,
        rank=0,
        world_size=1,
        micro_rows=rows,
        accumulation=1,
        start=Position(),
        num_workers=0,
    )
    return list(itertools.islice(stream, count))


def padded_batches(
    vocab_size: int, *, sentences: int, by_length: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of so many sentences, each padded to its longest: ids (B, T) and mask.

    by_length: sentences of like length share a batch; otherwise they come as they were drawn, as in
    Optimus' pretraining.
    """
    lengths_N = sentence_lengths() + 2
    order = np.argsort(lengths_N, kind="stable") if by_length else np.arange(len(lengths_N))
    batches = np.random.default_rng(31).permutation(order.reshape(-1, sentences))
    special, rng = special_ids(vocab_size), np.random.default_rng(37)
    for numbers in itertools.cycle(batches):
        lengths_B1 = torch.from_numpy(lengths_N[numbers])[:, None]
        place_T = torch.arange(int(lengths_B1.max()))
        mask_BT = (place_T < lengths_B1).long()
        drawn = rng.integers(0, vocab_size - 100, mask_BT.shape)
        ids_BT = torch.from_numpy(drawn).masked_fill(place_T == 0, special.cls)
        ids_BT = ids_BT.masked_fill(place_T == lengths_B1 - 1, special.eos)
        yield ids_BT.masked_fill(mask_BT == 0, special.pad), mask_BT

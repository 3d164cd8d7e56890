"""Invented documents, and what our planner makes of them: the batches that are timed.

Lengths follow a lognormal, ids are drawn by 1 / rank as words are, sentences are 5 tokens long.
Nothing here depends on a file or the network.
"""

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.memory import MemorySplit
from data_pipeline.packing.loader import Batch, Position, training_batches
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SENTENCE_TOKENS = 5  # so short that a cut can come where a row ends


class InventedTokenizer:
    """The calls of data_pipeline.tokenizing.tokenizer.Tokenizer that writing a blank makes."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.special = special_ids(vocab_size)


def special_ids(vocab_size: int) -> SpecialIds:
    """Special ids at the end of a vocabulary."""
    first = vocab_size - len(SPECIALS)
    return SpecialIds(**{name: first + number for number, name in enumerate(SPECIALS)})


def lognormal_lengths(num_tokens: int, median: float, sigma: float) -> NDArray[np.int64]:
    """Lengths of documents that together hold about `num_tokens` tokens, always the same."""
    rng = np.random.default_rng(17)
    count = math.ceil(num_tokens / (median * math.exp(sigma**2 / 2)))
    return np.maximum(1, rng.lognormal(math.log(median), sigma, count)).astype(np.int64)


def invented_split(lengths_N: NDArray[np.int64], vocab_size: int) -> MemorySplit:
    """Documents of the given lengths in memory."""
    rng = np.random.default_rng(23)
    usable = vocab_size - len(SPECIALS)
    drawn = np.exp(rng.random(int(lengths_N.sum())) * math.log(usable)).astype(np.int32) - 1
    counts_N = -(-lengths_N // SENTENCE_TOKENS)
    ends = (ragged.within(counts_N) + 1) * SENTENCE_TOKENS
    return MemorySplit(
        flat_tokens=drawn,
        token_offsets=ragged.offsets(lengths_N),
        prompts=np.zeros(len(lengths_N), np.int64),
        flat_sentence_ends=np.minimum(ends, np.repeat(lengths_N, counts_N)),
        sentence_offsets=ragged.offsets(counts_N),
    )


def planned_batches(
    *, vocab_size: int, rows: int, row_tokens: int, count: int, rank: int = 0, world_size: int = 1
) -> list[Batch]:
    """`count` micro-batches of `rows` rows as training takes them: 15 % token-level blanks.

    A row holds one piece of a long document with its blanks and now and then a second one: 97 %
    (T = 256) and 99 % (512) of the positions are no padding, 18 % of all carry loss.
    """
    source_tokens = round(0.9 * row_tokens)
    split = invented_split(lognormal_lengths(400_000, 1200, 0.5), vocab_size)
    transform = BlankTransform(
        BlankConfig(), special_ids(vocab_size), source_tokens=source_tokens, vocab_size=vocab_size
    )
    stream = training_batches(
        split,
        transform,
        PackingConfig(source_tokens=source_tokens, row_tokens=row_tokens),
        seed=3,
        rank=rank,
        world_size=world_size,
        micro_rows=rows,
        accumulation=1,
        start=Position(),
        num_workers=0,
    )
    return list(itertools.islice(stream, count))

"""Documents of 30 tokens in rows of 1152 beside the same documents in rows of 128, one thread.

A row of 1152 holds some thirty such documents. Who computes every pair of a row pays for thirty
times the pairs that are seen; kernels/attention/packed.py takes such rows apart.
"""

import itertools
from collections.abc import Callable
from unittest import mock

import numpy as np

from bench.sizes import SIZES, Size, engine_of
from bench.table import Row, rate_row
from bench.texts import invented_split, special_ids
from bench.timing import take_turns
from data_pipeline.packing.loader import Batch, Position, training_batches
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.transforms.blank import BlankConfig, BlankTransform
from kernels.attention import packed
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World, join_world, leave_world
from pretrain.objectives.glm import GlmObjective
from pretrain.training.update import apply_update

DOCUMENT_TOKENS, SOURCE_TOKENS = 30, 64
LONG_ROW, SHORT_ROW = 1152, 128
LONG_ROWS = 2
NUM_BATCHES = 4
GOAL = 0.75


def packed_rows(quick: bool) -> list[Row]:
    """The rows of size S and, unless quick, of size B."""
    world = join_world(timeout_s=600)
    try:
        names = ("S",) if quick else ("S", "B")
        return [row for name in names for row in _rows(SIZES[name], world, 3 if quick else 7)]
    finally:
        leave_world()


def _rows(size: Size, world: World, rounds: int) -> list[Row]:
    short_rows = LONG_ROWS * LONG_ROW // SHORT_ROW
    long = batches_of(size, LONG_ROWS, LONG_ROW)
    short = batches_of(size, short_rows, SHORT_ROW)
    step_long = _step(engine_of(size, LONG_ROWS, world), long)

    def step_whole() -> None:
        with mock.patch.object(packed, "WORTH_IT", 0.0):  # no row is ever taken apart
            step_long()

    contestants = {
        "long": step_long,
        "short": _step(engine_of(size, short_rows, world), short),
        "whole": step_whole,
    }
    times = take_turns(contestants, rounds=rounds)
    long_tokens, short_tokens = (sum(b.tokens for b in of) / NUM_BATCHES for of in (long, short))
    bench = f"packed_{size.name}_{DOCUMENT_TOKENS}_tokens_T_{LONG_ROW}"
    return [
        rate_row(
            bench,
            f"ours, rows of {SHORT_ROW}",
            (times["long"], times["short"]),
            (long_tokens, short_tokens),
            "tokens/s",
            GOAL,
        ),
        rate_row(
            bench,
            "ours, the mask over whole rows",
            (times["long"], times["whole"]),
            (long_tokens, long_tokens),
            "tokens/s",
        ),
    ]


def batches_of(size: Size, rows: int, row_tokens: int) -> list[Batch]:
    """Micro-batches of `rows` rows full of documents of DOCUMENT_TOKENS tokens and their blanks."""
    lengths_N = np.full(20_000, DOCUMENT_TOKENS)
    transform = BlankTransform(
        BlankConfig(),
        special_ids(size.vocab_size),
        source_tokens=SOURCE_TOKENS,
        vocab_size=size.vocab_size,
    )
    stream = training_batches(
        invented_split(lengths_N, size.vocab_size),
        transform,
        PackingConfig(source_tokens=SOURCE_TOKENS, row_tokens=row_tokens),
        seed=3,
        rank=0,
        world_size=1,
        micro_rows=rows,
        accumulation=1,
        start=Position(),
        num_workers=0,
    )
    return list(itertools.islice(stream, NUM_BATCHES))


def _step(engine: Engine, batches: list[Batch]) -> Callable[[], None]:
    stream, updates = itertools.cycle(batches), itertools.count()
    objective = GlmObjective(BlankConfig())

    def run() -> None:
        apply_update(engine, [objective], {"glm": stream}, lr=1e-4, seed=1, step=next(updates))

    return run

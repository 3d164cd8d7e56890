"""A run in pieces, each on other ranks with other loader workers, is the run in one piece."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.loader import Position, TrainingRows
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.packing.sequence import RowSequence
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
PACKING = PackingConfig(source_tokens=32, row_tokens=48, window_tokens=3000)
TRANSFORM = BlankTransform(BlankConfig(), SPECIAL, source_tokens=32, vocab_size=9000)
GLOBAL_ROWS = 12
# Ranks, rows of a micro batch, accumulation: always 12 rows a step.
SHAPES = [
    (r, m, GLOBAL_ROWS // (r * m)) for r in (1, 2, 3, 4, 6) for m in (1, 2) if 12 % (r * m) == 0
]


def _split(num_documents: int) -> MemorySplit:
    lengths = np.random.default_rng(1).integers(1, 28, num_documents)
    documents = np.split(np.arange(lengths.sum()) + len(SPECIALS), np.cumsum(lengths)[:-1])
    return MemorySplit.from_documents(documents)


SPLIT = _split(500)  # two windows of about a hundred rows


def _piece(
    start: Position, num_steps: int, shape: tuple[int, int, int], num_workers: int
) -> tuple[torch.Tensor, Position]:
    """The blocks of all ranks in global order, (9, rows, T), and where the next piece starts."""
    world_size, micro_rows, accumulation = shape
    rows = torch.zeros(9, num_steps * GLOBAL_ROWS, PACKING.row_tokens, dtype=torch.int32)
    position = start
    for rank in range(world_size):
        sequence = RowSequence(SPLIT, TRANSFORM, PACKING, seed=3)
        mine = TrainingRows(sequence, rank, world_size, micro_rows, accumulation, start)
        built = [mine.share(worker, num_workers) for worker in range(num_workers)]
        for number in range(num_steps * accumulation):
            batch = next(built[number % num_workers])
            first = number * micro_rows * world_size + rank
            rows[:, first : first + micro_rows * world_size : world_size] = batch.block
            position = batch.position
    return rows, position


pieces = st.tuples(st.integers(1, 20), st.sampled_from(SHAPES), st.integers(1, 3))


@settings(max_examples=25, deadline=None)
@given(st.lists(pieces, min_size=2, max_size=4))
def test_any_pieces_give_the_rows_of_one_run(plan: list[tuple]) -> None:
    position, built = Position(), []
    for num_steps, shape, num_workers in plan:
        rows, position = _piece(position, num_steps, shape, num_workers)
        built.append(rows)
    num_rows = GLOBAL_ROWS * sum(num_steps for num_steps, _, _ in plan)
    run = RowSequence(SPLIT, TRANSFORM, PACKING, seed=3).take(Position(), num_rows)
    whole, expected = torch.cat(built, dim=1), run.build(np.arange(num_rows))
    assert np.array_equal(whole[0], expected.ids)
    assert np.array_equal(whole[3], expected.targets)
    assert np.array_equal(whole[4].view(torch.float32), expected.weights)
    assert np.array_equal(whole[6], expected.document)
    assert position == run.next


@settings(max_examples=5, deadline=None)
@given(st.lists(st.sampled_from(SHAPES), min_size=30, max_size=30), st.integers(1, 9))
def test_every_epoch_holds_every_token_once_after_many_resumes(
    shapes: list[tuple[int, int, int]], steps_each: int
) -> None:
    sequence = RowSequence(SPLIT, TRANSFORM, PACKING, seed=3)
    sizes = [sum(sequence.plan(epoch, w).num_rows for w in (0, 1)) for epoch in (0, 1)]
    position, built = Position(), []
    for shape in shapes:
        rows, position = _piece(position, steps_each, shape, 1)
        built.append(rows)
    whole, first = torch.cat(built, dim=1), 0
    stored = torch.arange(SPLIT.num_tokens) + len(SPECIALS)
    for size in sizes:
        if first + size > whole.shape[1]:
            break
        ids, targets, weights, document = (whole[i, first : first + size] for i in (0, 3, 4, 6))
        seen = torch.cat([ids[(weights == 0) & (document >= 0)], targets[weights != 0]])
        assert torch.equal(seen[seen >= len(SPECIALS)].sort().values, stored)
        first += size
    assert first > 0, "not one whole epoch"


def test_fewer_rows_than_a_step_takes_are_read_again_in_the_next_epochs() -> None:
    sequence = RowSequence(_split(3), TRANSFORM, PACKING, seed=3)
    in_epoch = sequence.plan(0, 0).num_rows
    assert in_epoch < 4
    for rank in range(4):
        batch = next(iter(TrainingRows(sequence, rank, 4, 3, 1, Position())))
        assert (batch.document.amax(dim=1) >= 0).all()  # no rank is left without text
        assert batch.position.epoch >= 12 // in_epoch

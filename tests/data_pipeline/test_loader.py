"""Batches are the same rows for every world size, number of workers and place of resuming."""

import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.loader import (
    Batch,
    Position,
    TrainingRows,
    training_batches,
    validation_batches,
)
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.packing.sequence import RowSequence
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
PACKING = PackingConfig(source_tokens=32, row_tokens=48, window_tokens=4000)
TRANSFORM = BlankTransform(BlankConfig(), SPECIAL, source_tokens=32, vocab_size=9000)


def make_split(num_documents: int) -> MemorySplit:
    lengths = np.random.default_rng(0).integers(1, 28, num_documents)
    documents = np.split(np.arange(lengths.sum()) + len(SPECIALS), np.cumsum(lengths)[:-1])
    return MemorySplit.from_documents(documents)


SPLIT = make_split(600)  # two windows


def train(world_size: int, rank: int = 0, micro_rows: int = 2, accumulation: int = 1, **settings):
    settings = {"start": Position(), "num_workers": 0, "split": SPLIT, "seed": 3, **settings}
    return training_batches(
        transform=TRANSFORM,
        packing=PACKING,
        rank=rank,
        world_size=world_size,
        micro_rows=micro_rows,
        accumulation=accumulation,
        **settings,
    )


def global_rows(num_steps: int, world_size: int, micro_rows: int, accumulation: int, **settings):
    """The blocks of all ranks in global order, (9, rows, T), and the positions of rank 0."""
    rows_in_step = world_size * micro_rows * accumulation
    rows = torch.zeros(9, num_steps * rows_in_step, PACKING.row_tokens, dtype=torch.int32)
    positions = []
    for rank in range(world_size):
        batches = train(world_size, rank, micro_rows, accumulation, **settings)
        for number, batch in enumerate(islice(batches, num_steps * accumulation)):
            first = number * micro_rows * world_size + rank
            rows[:, first : first + micro_rows * world_size : world_size] = batch.block
            if rank == 0:
                positions.append(batch.position)
    return rows, positions


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([(1, 6, 1), (1, 1, 6), (1, 3, 2), (2, 3, 1), (2, 1, 3), (3, 2, 1), (3, 1, 2)]),
    st.integers(1, 60),
)
def test_a_step_holds_the_same_rows_at_any_world_size(shape, num_steps):
    world_size, micro_rows, accumulation = shape
    rows, positions = global_rows(num_steps, world_size, micro_rows, accumulation)
    run = RowSequence(SPLIT, TRANSFORM, PACKING, seed=3).take(Position(), 6 * num_steps)
    expected = run.build(np.arange(6 * num_steps))
    assert np.array_equal(rows[0], expected.ids)
    assert np.array_equal(rows[4].view(torch.float32), expected.weights)
    assert np.array_equal(rows[8], expected.hi)
    assert positions[-1] == run.next


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 70), st.sampled_from([(1, 2, 2), (2, 1, 2), (2, 2, 1)]), st.integers(0, 9))
def test_a_resume_at_any_step_continues_the_sequence_at_another_world_size(step, shape, seed):
    rows, positions = global_rows(step + 10, 1, 4, 1, seed=seed)
    resumed, _ = global_rows(10, *shape, seed=seed, start=positions[step - 1])
    assert torch.equal(resumed, rows[:, 4 * step :])


def test_inside_a_step_the_position_is_its_beginning():
    positions = [b.position for b in islice(train(1, micro_rows=3, accumulation=2), 5)]
    assert positions == [Position(), *[Position(row=6)] * 2, *[Position(row=12)] * 2]


def test_an_epoch_holds_every_stored_token_once_whatever_the_world_size():
    epoch_rows = sum(
        RowSequence(SPLIT, TRANSFORM, PACKING, seed=3).plan(0, w).num_rows for w in (0, 1)
    )
    rows, _ = global_rows(-(-epoch_rows // 6), 3, 2, 1)
    ids, targets, weights, document = (rows[i, :epoch_rows] for i in (0, 3, 4, 6))
    stored = torch.cat([ids[(weights == 0) & (document >= 0)], targets[weights != 0]])
    stored = stored[stored >= len(SPECIALS)]
    assert torch.equal(stored.sort().values, torch.arange(SPLIT.num_tokens) + len(SPECIALS))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 1), st.integers(0, 40))
def test_worker_w_builds_every_nth_batch_of_the_same_sequence(
    num_workers, accumulation, rank, first_row
):
    def batches(worker_id: int, num_workers: int) -> list[Batch]:
        rows = TrainingRows(
            RowSequence(SPLIT, TRANSFORM, PACKING, seed=3), rank, world_size=2, micro_rows=2,
            accumulation=accumulation, start=Position(row=first_row),
        )  # fmt: skip
        return list(islice(rows.share(worker_id, num_workers), 60 // num_workers))

    whole = batches(0, 1)
    for worker_id in range(num_workers):
        for one, other in zip(whole[worker_id::num_workers], batches(worker_id, num_workers)):
            assert torch.equal(one.block, other.block) and one.position == other.position


@pytest.mark.ranks
@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_build_the_same_batches_in_the_same_order(num_workers):
    start = Position(epoch=1, window=0, row=5)
    expected = list(islice(train(2, rank=1, accumulation=3, start=start), 120))
    random_state = torch.get_rng_state()
    batches = train(2, rank=1, accumulation=3, start=start, num_workers=num_workers)
    for one, other in zip(expected, islice(batches, 120), strict=True):
        assert torch.equal(one.block, other.block)
        assert (one.position, one.tokens, one.source_tokens) == (
            other.position,
            other.tokens,
            other.source_tokens,
        )
    assert torch.equal(torch.get_rng_state(), random_state)


TRAINER = """
import multiprocessing, signal, sys, time
import numpy as np
from data_pipeline.packing.loader import Position, training_batches
from data_pipeline.memory import MemorySplit
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

if __name__ == "__main__":
    special = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
    batches = training_batches(
        MemorySplit.from_documents([np.full(9, 50)] * 50),
        BlankTransform(BlankConfig(), special, source_tokens=32, vocab_size=60),
        PackingConfig(source_tokens=32, row_tokens=48),
        seed=0, rank=0, world_size=1, micro_rows=1, accumulation=1, start=Position(), num_workers=2,
    )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    next(batches)
    workers = multiprocessing.active_children()
    print(*[worker.pid for worker in workers], flush=True)
"""
SLEEPS = (
    TRAINER
    + """
    time.sleep(60)
"""
)
GOES_ON_AFTER_EACH_LINE = (
    TRAINER
    + """
    for line in sys.stdin:
        taken = [next(batches).tokens for _ in range(40)]
        print(len(taken), flush=True)
    workers[0].terminate()  # as multiprocessing itself does at exit
    workers[0].join(20)
    print(workers[0].is_alive(), workers[1].is_alive(), flush=True)
"""
)


@contextmanager
def trainer_process(tmp_path, repository, code):
    """A trainer with two workers in a process group of its own; gives it and the worker pids."""
    script = tmp_path / "trainer.py"
    script.write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(repository)},
        start_new_session=True,
    )
    with process:
        try:
            workers = [int(pid) for pid in process.stdout.readline().split()]
            assert len(workers) == 2 and all(is_running(pid) for pid in workers)
            yield process, workers
        finally:
            process.kill()


def process_status(pid: int) -> tuple[str, int]:
    """State letter ("gone" without a process) and parent of a process."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return state, int(parent)
    except FileNotFoundError:
        return "gone", 0


def is_running(pid: int) -> bool:
    return process_status(pid)[0] not in ("Z", "gone")


@pytest.mark.ranks
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_workers_die_with_a_trainer_that_was_killed(tmp_path, repository):
    with trainer_process(tmp_path, repository, SLEEPS) as (trainer, workers):
        started = {*workers, *(process_status(pid)[1] for pid in workers)}  # the fork server too
        trainer.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(started) == 3 and not any(is_running(pid) for pid in started)


@pytest.mark.ranks
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_batches_go_on_when_the_whole_process_group_is_signalled(tmp_path, repository):
    with trainer_process(tmp_path, repository, GOES_ON_AFTER_EACH_LINE) as (trainer, workers):
        group = {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if
                 is_running(pid) and os.getpgid(pid) == trainer.pid}  # fmt: skip
        assert len(group) == 5 and set(workers) < group  # trainer, tracker, fork server, workers
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.killpg(trainer.pid, number)
            trainer.stdin.write("go on\n")
            trainer.stdin.flush()
            assert trainer.stdout.readline() == "40\n", number
        assert all(is_running(pid) for pid in group)
        trainer.stdin.close()
        assert trainer.stdout.readline() == "False True\n"


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("max_rows", [None, 1, 7, 60])
def test_validation_is_one_pass_with_equally_many_batches_on_every_rank(world_size, max_rows):
    sequence = RowSequence(SPLIT, TRANSFORM, PACKING, seed=5)
    num_rows = sequence.plan(0, 0).num_rows + sequence.plan(0, 1).num_rows
    num_rows = min(num_rows, max_rows or num_rows)
    ranks = [
        list(
            validation_batches(
                SPLIT, TRANSFORM, PACKING, seed=5, rank=rank, world_size=world_size, micro_rows=4,
                max_rows=max_rows,
            )
        )
        for rank in range(world_size)
    ]  # fmt: skip
    num_batches = -(-num_rows // (4 * world_size))
    assert [len(batches) for batches in ranks] == [num_batches] * world_size
    blocks = torch.stack([torch.cat([b.block for b in batches], dim=1) for batches in ranks], 2)
    rows = blocks.flatten(1, 2)  # (9, all rows, T) in global order
    expected = sequence.take(Position(), num_rows).build(np.arange(num_rows))
    assert np.array_equal(rows[0, :num_rows], expected.ids)
    assert (rows[6, num_rows:] == -1).all() and not rows[8, num_rows:].any()


def test_a_batch_shows_its_arrays_and_its_counts():
    batch = next(train(1, micro_rows=3))
    rows = RowSequence(SPLIT, TRANSFORM, PACKING, seed=3).take(Position(), 3).build(np.arange(3))
    assert isinstance(batch, Batch)
    for name in ("ids", "targets", "weights", "kind", "document", "lo", "hi"):
        assert np.array_equal(getattr(batch, name), getattr(rows, name)), name
    assert batch.weights.dtype == torch.float32
    assert batch.positions.shape == (3, 2, 48)
    assert np.array_equal(batch.positions[:, 0], rows.position)
    assert np.array_equal(batch.positions[:, 1], rows.block_position)
    assert batch.tokens == (rows.document >= 0).sum() == 3 * 48 - batch.padding
    assert 0 < batch.source_tokens < batch.tokens
    assert torch.equal(batch.to("cpu").block, batch.block)


def test_a_sequence_travels_without_the_plans_it_has_made():
    sequence = RowSequence(SPLIT, TRANSFORM, PACKING, seed=3)
    size_bytes = len(pickle.dumps(sequence))
    sequence.plan(0, 0)
    assert len(pickle.dumps(sequence)) == size_bytes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"world_size": 2, "rank": 2}, r"rank must lie in \[0, world_size = 2\), got 2"),
        ({"world_size": 1, "micro_rows": 0}, "micro_rows must be at least 1, got 0"),
        ({"world_size": 1, "accumulation": 0}, "accumulation must be at least 1, got 0"),
        ({"world_size": 1, "num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"world_size": 1, "start": Position(window=9)}, "an epoch has 2 windows"),
        ({"world_size": 1, "split": MemorySplit.from_documents([])}, "holds 0 documents"),
    ],
)
def test_what_cannot_be_is_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        train(**settings)

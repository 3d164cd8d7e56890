"""ZeRO-3 on two ranks beside plain DDP with the same model, both on gloo, one thread a rank.

Both live in the same two processes and take turns. DDP: torch's DistributedDataParallel around our
model, the gradient norm clipped, fused AdamW. Ours is `apply_update`, as a run calls it.
"""

import itertools
from collections.abc import Callable

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.peers import adamw, torch_linear
from bench.sizes import SIZES, Size, engine_of
from bench.table import Row, rate_row
from bench.texts import planned_batches
from bench.timing import take_turns
from data_pipeline.packing.loader import Batch
from data_pipeline.transforms.blank import BlankConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import join_world, leave_world
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.loss import Objective, ObjectiveModel
from pretrain.training.update import apply_update

NUM_BATCHES = 4
GOALS = {8: 0.9, 1: 0.75}  # by rows of a micro-batch
ROUNDS = {8: 9, 1: 25}


def two_rank_rows(quick: bool) -> list[Row]:
    """The rows that rank 0 reports, at size S; every rank of two calls this."""
    world = join_world(timeout_s=600)
    size = SIZES["S"]
    objective: Objective = GlmObjective(BlankConfig())
    rows = []
    try:
        model = DistributedDataParallel(ObjectiveModel(size.backbone()))
        for micro_rows, goal in GOALS.items():
            batches = _batches(size, micro_rows, world.rank)
            contestants = {
                "ours": _ours(engine_of(size, micro_rows, world), objective, batches),
                "DDP": _ddp(model, objective, batches),
            }
            rounds = 3 if quick else ROUNDS[micro_rows]
            times = take_turns(contestants, rounds=rounds, before_each=world.barrier)
            tokens = 2.0 * sum(batch.tokens for batch in batches) / NUM_BATCHES
            row = rate_row(
                f"step_S_2ranks_micro_batch_{micro_rows}",
                "torch DDP, fused AdamW",
                (times["ours"], times["DDP"]),
                (tokens, tokens),
                "tokens/s",
                goal,
            )
            rows.append(row)
    finally:
        leave_world()
    return rows


def _batches(size: Size, micro_rows: int, rank: int) -> list[Batch]:
    return planned_batches(
        vocab_size=size.vocab_size,
        rows=micro_rows,
        row_tokens=size.row_tokens,
        count=NUM_BATCHES,
        rank=rank,
        world_size=2,
    )


def _ours(engine: Engine, objective: Objective, batches: list[Batch]) -> Callable[[], object]:
    stream, updates = itertools.cycle(batches), itertools.count()
    return lambda: apply_update(
        engine, [objective], {"glm": stream}, lr=1e-4, seed=1, step=next(updates)
    )


def _ddp(model: nn.Module, objective: Objective, batches: list[Batch]) -> Callable[[], None]:
    optimizer, stream = adamw(model, fused=True), itertools.cycle(batches)

    def run() -> None:
        with torch_linear():
            optimizer.zero_grad()
            total = model(objective, objective.inputs(next(stream)))["total"]
            (total.sum / total.count).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return run

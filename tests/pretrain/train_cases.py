"""Runs several trainings in one process group: a rank of tests/pretrain/test_ranks.py, not a test.

`python train_cases.py CASES.json`, in the environment of a rank; CASES: a list of argument lists,
or of {"arguments": [...], "faults": {"4": "nan"}}: what goes wrong at step 4. "fails": true of the
last case: it ends with an error.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from pretrain.__main__ import leave_at_once
from pretrain.distributed.world import World, join_world, leave_world
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.loss import LossTerm, ObjectiveModel
from pretrain.recording.run_log import log_to_stderr
from pretrain.settings.cli import parse_train
from pretrain.training import update
from pretrain.training.train import run_in


def main() -> None:
    log_to_stderr()
    world = join_world(timeout_s=120)
    for case in json.loads(Path(sys.argv[1]).read_text()):
        arguments, wrong = (case["arguments"], case["faults"]) if "faults" in case else (case, {})
        fails = isinstance(case, dict) and case.get("fails", False)
        with faults(world, wrong), suppress(ValueError) if fails else nullcontext():
            run_in(world, *parse_train(arguments))
    os.kill(os.getpid(), signal.SIGTERM)  # nothing that comes after the last save may spoil it
    leave_world()


@contextmanager
def faults(world: World, wrong: Mapping[str, str]) -> Iterator[None]:
    """What the first micro-batch of the last rank brings at the steps named: `nan` or `spike`, a
    loss; `gradient`, an infinite one of a finite loss; `stop`, a signal to save and stop."""
    seed_dropout, loss_terms = update.seed_dropout, GlmObjective.loss_terms
    place: dict[str, int] = {}

    def noted(seed: int, step: int, micro_batch: int, rank: int) -> None:
        place.update(step=step + 1, micro_batch=micro_batch)
        seed_dropout(seed, step, micro_batch, rank)
        is_last = rank == world.world_size - 1 and micro_batch == 0
        if is_last and wrong.get(str(step + 1)) == "stop":
            os.kill(os.getpid(), signal.SIGUSR1)

    def spoiled(
        objective: GlmObjective, model: ObjectiveModel, inputs: Mapping[str, Tensor]
    ) -> dict[str, LossTerm]:
        terms = loss_terms(objective, model, inputs)
        is_there = world.rank == world.world_size - 1 and place.get("micro_batch") == 0
        kind = wrong.get(str(place.get("step"))) if is_there and model.training else None
        if kind in _SPOIL:
            terms["total"] = LossTerm(_SPOIL[kind](terms["total"].sum), terms["total"].count)
        return terms

    setattr(update, "seed_dropout", noted)  # noqa: B010
    setattr(GlmObjective, "loss_terms", spoiled)  # noqa: B010
    try:
        yield
    finally:
        setattr(update, "seed_dropout", seed_dropout)  # noqa: B010
        setattr(GlmObjective, "loss_terms", loss_terms)  # noqa: B010


def _infinite_gradient(loss: Tensor) -> Tensor:
    spoiled = loss * 1.0
    spoiled.register_hook(lambda gradient: gradient * float("inf"))
    return spoiled


_SPOIL: dict[str, Any] = {
    "nan": lambda loss: loss * float("nan"),
    "spike": lambda loss: loss * 100.0,
    "gradient": _infinite_gradient,
}


if __name__ == "__main__":
    main()
    leave_at_once(0)

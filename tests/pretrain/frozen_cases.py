"""A rank that saves and loads a model of which a part is not trained, or not yet: a rank of
test_unfreezing.py.

`python frozen_cases.py FOLDER`, in the environment of a rank.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pretrain.__main__ import leave_at_once
from pretrain.checkpoints.checkpoint import load, save
from pretrain.checkpoints.retention import Retention
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World, join_world, leave_world
from pretrain.settings.deepspeed_settings import complete
from pretrain.settings.optimizer_config import OptimizerConfig

# Which groups each update moves: the second layer begins late, and the first pauses once.
MOVES = [["layer 0"], ["layer 0"], ["layer 0", "layer 1"], ["layer 1"], ["layer 0", "layer 1"]]
SAVED_AFTER, LR = 2, 0.05  # before the second layer has begun
UNFREEZING = {
    **{f"stage{stage}": (stage, "fp32") for stage in range(4)},
    **{f"stage{stage}_bf16": (stage, "bf16") for stage in (1, 3)},
}


def _engine(
    world: World, folder: Path, stage: int, seed: int, precision: str = "fp32", begins: bool = False
) -> Engine:
    settings = folder / f"stage{stage}.{world.rank}.json"
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    settings.write_text(json.dumps({"zero_optimization": zero}))

    def make_model() -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
        if not begins:
            model[0].weight.requires_grad_(False)
        return model

    return Engine(
        make_model,
        decays=lambda name, _: name.endswith("weight"),
        optimizer=OptimizerConfig(),
        settings=complete(
            settings,
            micro_rows=1,
            accumulation=1,
            world_size=world.world_size,
            gradient_clipping=1.0,
            precision=precision,
        ),
        world=world,
        group_of=lambda name: f"layer {name[0]}" if begins else "all",
    )


def _weights(engine: Engine) -> dict[str, list]:
    return {name: tensor.tolist() for name, tensor in engine.weights()}


def _unfrozen(world: World, folder: Path, stage: int, precision: str) -> dict[str, Any]:
    """Weights after every update of a run, and of one that goes on from its third update."""
    engine = _engine(world, folder, stage, 1, precision, begins=True)
    root, weights, norms = folder / f"{stage}{precision}", [_weights(engine)], []
    for update in range(len(MOVES)):
        norms.append(_step(engine, update))
        weights.append(_weights(engine))
        if update == SAVED_AFTER - 1:
            at = save(engine, root, update=update + 1, state={}, retention=Retention())
    other = _engine(world, folder, stage, 2, precision, begins=True)
    load(other, at)
    for update in range(SAVED_AFTER, len(MOVES)):
        _step(other, update)
    return {"weights": weights, "norms": norms, "resumed": _weights(other)}


def _step(engine: Engine, update: int) -> float | None:
    engine.learn(frozenset(MOVES[update]))
    inputs = inputs_of(update, engine.world.rank).to(engine.dtype)
    engine.backward(engine.forward(inputs).float().square().sum())
    return engine.end_micro_batch(LR)


def inputs_of(update: int, rank: int) -> torch.Tensor:
    """What a rank's micro-batch holds."""
    return torch.randn(3, 7, generator=torch.Generator().manual_seed(100 * update + rank))


def main(folder: Path) -> None:
    """Writes, by stage, the weights that were saved and those of another model after loading."""
    world = join_world(timeout_s=60)
    found = {}
    for stage in (0, 2, 3):
        saved = _engine(world, folder, stage, seed=1)
        root = folder / f"stage{stage}"
        at = save(saved, root, update=1, state={}, retention=Retention())
        other = _engine(world, folder, stage, seed=2)
        before = _weights(other)
        load(other, at)
        found[stage] = [_weights(saved), before, _weights(other)]
        # Each rank reads the frozen weight for itself too, whatever rank 0 has gathered.
        loss = other.forward(torch.ones(1, 7)).sum()
        found[stage].append(world.gather(float(loss)))
    for name, (stage, precision) in UNFREEZING.items():
        found[name] = _unfrozen(world, folder, stage, precision)
    if world.leads:
        (folder / "found.json").write_text(json.dumps(found))
    leave_world()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave_at_once(0)

"""A rank that saves and loads a model of which a part is not trained: see test_resume_ranks.py.

`python frozen_cases.py FOLDER`, in the environment of a rank.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

from pretrain.checkpoint import load, save
from pretrain.deepspeed_settings import complete
from pretrain.engine import Engine
from pretrain.optimizer_config import OptimizerConfig
from pretrain.retention import Retention
from pretrain.world import World, join_world, leave_world


def _engine(world: World, folder: Path, stage: int, seed: int) -> Engine:
    settings = folder / f"stage{stage}.{world.rank}.json"
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    settings.write_text(json.dumps({"zero_optimization": zero}))

    def make_model() -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
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
            precision="fp32",
        ),
        world=world,
    )


def _weights(engine: Engine) -> dict[str, list]:
    return {name: tensor.tolist() for name, tensor in engine.weights()}


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
    if world.leads:
        (folder / "found.json").write_text(json.dumps(found))
    leave_world()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

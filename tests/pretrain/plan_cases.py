"""One rank of a small engine under DeepSpeed, which writes what it holds and saves as JSON.

python plan_cases.py STAGE PRECISION REDUCTION FOLDER, with the environment of a launcher.
"""

import json
import sys
from pathlib import Path

import torch

from bench.live_memory import storages
from data_pipeline.transforms.blank import BlankConfig
from kernels.visibility import single_documents
from pretrain.__main__ import leave_at_once
from pretrain.checkpoints import checkpoint
from pretrain.checkpoints.retention import Retention
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import join_world, leave_world
from pretrain.models.backbone import Backbone, decays
from pretrain.models.shape import BackboneShape
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.loss import ObjectiveModel
from pretrain.settings.deepspeed_settings import complete
from pretrain.settings.optimizer_config import OptimizerConfig

SHAPE = BackboneShape(num_layers=4, hidden_size=256, num_heads=4, dropout_prob=0.0)
VOCABULARY, ROW_TOKENS, ROWS = 512, 24, 1


def main(stage: int, precision: str, reduction: str, folder: Path) -> None:
    """Two updates, then the bytes held after a third backward pass and those of a checkpoint."""
    world = join_world(60)
    file = folder / f"ds.{world.rank}.json"
    zero = {"stage": stage, "reduce_bucket_size": 1000, "stage3_max_live_parameters": 0}
    zero |= {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}
    file.write_text(json.dumps({"zero_optimization": zero}))
    settings = complete(
        file,
        micro_rows=ROWS,
        accumulation=1,
        world_size=world.world_size,
        gradient_clipping=1.0,
        precision="bf16" if precision == "bf16" else "fp32",
        reduction_dtype="bf16" if reduction == "bf16" else "fp32",
    )
    before = storages()

    def make_model() -> ObjectiveModel:
        return ObjectiveModel(Backbone(SHAPE, vocab_size=VOCABULARY, num_positions=ROW_TOKENS + 1))

    engine = Engine(
        make_model, decays=decays, optimizer=OptimizerConfig(), settings=settings, world=world
    )
    lengths_B = torch.full((ROWS,), ROW_TOKENS)
    visibility = single_documents(lengths_B, lengths_B // 2, ROW_TOKENS)
    inputs = {
        "ids": torch.ones(ROWS, ROW_TOKENS, dtype=torch.int32),
        "positions": torch.zeros(ROWS, 2, ROW_TOKENS, dtype=torch.int32),
        "lo": visibility.lo,
        "hi": visibility.hi,
        "document": visibility.document,
        "target_index": torch.arange(5),
        "targets": torch.arange(5),
        "weights": torch.ones(5),
        "kind": torch.ones(5, dtype=torch.uint8),
    }
    objective = GlmObjective(BlankConfig())
    held = 0
    for _ in range(3):
        loss = engine.forward(objective, inputs)["total"].sum
        engine.backward(loss)
        del loss
        held = sum(size for place, size in storages().items() if place not in before)
        engine.end_micro_batch(1e-3)
    saved = checkpoint.save(
        engine, folder / "saved", update=3, state={}, retention=Retention(keep_last=1)
    )
    result = {
        "parameters": engine.num_parameters[True],
        "held_bytes": held,
        "saved_bytes": sum(path.stat().st_size for path in saved.iterdir()),
    }
    (folder / f"result.{world.rank}.json").write_text(json.dumps(result))
    leave_world()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    leave_at_once(0)

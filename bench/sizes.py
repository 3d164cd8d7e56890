"""The two sizes that steps and decoding are timed at, and our model and engine of that size."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World
from pretrain.models.backbone import Backbone, decays
from pretrain.models.layer import Layer
from pretrain.models.shape import BackboneShape
from pretrain.objectives.loss import ObjectiveModel
from pretrain.settings.deepspeed_settings import REPOSITORY, complete
from pretrain.settings.optimizer_config import OptimizerConfig


@dataclass(frozen=True)
class Size:
    """A model and a micro-batch."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    row_tokens: int
    rows: int

    @property
    def shape(self) -> BackboneShape:
        """Our backbone of this size, without dropout."""
        return BackboneShape(
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            dropout_prob=0.0,
            attention_dropout_prob=0.0,
        )

    def backbone(self) -> Backbone:
        """Our model, as training begins with it."""
        return Backbone(
            self.shape,
            vocab_size=self.vocab_size,
            num_positions=self.row_tokens + 1,
            generator=torch.Generator().manual_seed(1),
        )


SIZES = {
    "S": Size("S", 4, 256, 4, 8192, row_tokens=256, rows=8),
    "B": Size("B", 12, 768, 12, 30592, row_tokens=512, rows=2),
}


def engine_of(
    size: Size,
    rows: int,
    world: World,
    make_model: Callable[[], ObjectiveModel] | None = None,
    *,
    backbone_calls: int = 1,
) -> Engine:
    """Our model under DeepSpeed with the settings of ds_config.json (ZeRO stage 3), in fp32.

    make_model: another model than the backbone alone. backbone_calls: see Objective.
    """
    settings = complete(
        REPOSITORY / "ds_config.json",
        micro_rows=rows,
        accumulation=1,
        world_size=world.world_size,
        gradient_clipping=1.0,
        precision="fp32",
    )
    return Engine(
        make_model or (lambda: ObjectiveModel(size.backbone())),
        decays=decays,
        optimizer=OptimizerConfig(),
        settings=settings,
        world=world,
        gathered_whole=(Layer,) if backbone_calls == 1 else (),
    )

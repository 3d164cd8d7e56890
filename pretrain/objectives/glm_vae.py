"""GLM-VAE: the backbone encodes a whole text to z, and writes its blanks from part A beside z.

    max   E_q(z | x)  log p(blanks | part A, z)  -  beta KL(q(z | x) || N(0, I))

One backbone reads a packed row twice: the texts before they were blanked, each seeing all of itself
(the encoder), and the blanked rows beside the memory slots of their documents (the decoder). With
part A visible, ignoring z can be the optimum; with every text written whole from [gMASK] it is not.

Terms: see elbo.py, and the nats a target by kind of blank. This is ours; docs/objectives.md.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank import BlankTransform
from pretrain.latent_config import ElboConfig, GlmVaeConfig
from pretrain.models.latent import Injector, LatentHead
from pretrain.models.shape import BackboneShape
from pretrain.objectives.alarm import CollapseAlarm
from pretrain.objectives.elbo import (
    OPTIMISED,
    beta,
    decoded_terms,
    elbo_counts,
    elbo_now,
    elbo_scalars,
    sources_visibility,
)
from pretrain.objectives.glm import glm_inputs
from pretrain.objectives.health import Health
from pretrain.objectives.latent_inputs import latent_inputs
from pretrain.objectives.loss import LossTerm, ObjectiveModel


class GlmVaePart(nn.Module):
    """What the objective adds to the backbone."""

    def __init__(
        self, config: GlmVaeConfig, shape: BackboneShape, generator: torch.Generator
    ) -> None:
        super().__init__()
        width, std = shape.hidden_size, shape.init_std
        self.head = LatentHead(config.latent, width, std=std, generator=generator)
        self.injector = Injector(config.latent, shape, generator=generator)


class GlmVaeObjective:
    """Blank infilling beside a latent vector of the whole text."""

    name = "glm_vae"
    optimised: tuple[str, ...] = OPTIMISED
    backbone_calls = 2

    def __init__(self, config: GlmVaeConfig, *, steps: int) -> None:
        """steps: updates of the run, which the schedule of beta follows."""
        self.config, self.weight, self.steps = config, config.weight, steps
        self.health: Health | None = Health(config.elbo.window)
        self.alarm: CollapseAlarm | None = CollapseAlarm(config.elbo.alarm)

    def transform(
        self, special: SpecialIds, *, source_tokens: int, vocab_size: int
    ) -> BlankTransform:
        """Blanked rows that carry their texts; see BlankTransform."""
        return BlankTransform(
            self.config.blanks,
            special,
            source_tokens=source_tokens,
            vocab_size=vocab_size,
            keeps_sources=True,
        )

    def part(
        self,
        shape: BackboneShape,
        generator: torch.Generator,
        *,
        vocab_size: int,
        source_tokens: int,
    ) -> GlmVaePart:
        """Pooling, posterior and projections of z, for a backbone of `shape`."""
        return GlmVaePart(self.config, shape, generator)

    def inputs(self, batch: Any, update: int | None = None) -> dict[str, Tensor]:
        """GLM's, the encoder's row, noise (B, N, Z) and beta (1 where `update` is None)."""
        elbo = self.config.elbo
        factor = 1.0 if update is None else beta(update, steps=self.steps, config=elbo.beta)
        latent = latent_inputs(batch, size=self.config.latent.size, config=elbo, factor=factor)
        return {**glm_inputs(batch), **latent}

    def elbo(self, *, is_training: bool) -> ElboConfig:
        """The loss as it stands now: the alarm may have raised the free bits; an evaluation has
        none."""
        assert self.alarm is not None
        return elbo_now(self.config.elbo, self.alarm, is_training=is_training)

    def counts(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Targets or texts, by the reduction."""
        return elbo_counts(inputs, self.config.elbo)

    def loss_terms(
        self, model: ObjectiveModel, inputs: Mapping[str, Tensor]
    ) -> dict[str, LossTerm]:
        """The ELBO's terms, and one term per kind of blank."""
        part = model.parts[self.name]
        assert isinstance(part, GlmVaePart) and self.health is not None
        read_BTD = model.backbone(
            inputs["source_ids"], inputs["source_positions"], sources_visibility(inputs)
        )
        posterior = part.head(read_BTD, inputs["source_document"], inputs["exists"].shape[1])
        z_BNZ = posterior.sample(inputs["noise"])
        self.health.note(
            posterior, z_BNZ, inputs["exists"], inputs["text_kind"], is_training=model.training
        )
        injected, elbo = part.injector(z_BNZ, read_BTD.dtype), self.elbo(is_training=model.training)
        return decoded_terms(model.backbone, injected, posterior, inputs, elbo)

    def scalars(self, update: int) -> dict[str, float]:
        """See elbo_scalars."""
        return elbo_scalars(update, steps=self.steps, config=self.config.elbo, health=self.health)

"""Optimus: an encoder reads a text to z, a causal decoder writes the text from z (Li et al. 2020).

    max   E_q(z | x)  sum over t of log p(x_t | x_<t, z)  -  beta KL(q(z | x) || N(0, I))

The encoder is a part of its own, of BERT's shape; its pooled first token gives mu and logvar by one
map without bias. The decoder is the run's backbone. z enters as one memory slot in every layer,
whose key is its value too, as what is added to every token's embedding, or both.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.causal import CausalTransform
from pretrain.latent_config import ElboConfig, OptimusConfig
from pretrain.models.backbone import Backbone
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


class OptimusPart(nn.Module):
    """Encoder, pooler and posterior, and the projections of z."""

    def __init__(
        self,
        config: OptimusConfig,
        decoder: BackboneShape,
        generator: torch.Generator,
        *,
        vocab_size: int,
        num_positions: int,
    ) -> None:
        """vocab_size, num_positions: rows of the encoder's tables."""
        super().__init__()
        encoder = config.encoder
        self.encoder = Backbone(
            encoder, vocab_size=vocab_size, num_positions=num_positions, generator=generator
        )
        self.head = LatentHead(
            config.latent,
            encoder.hidden_size,
            std=encoder.init_std,
            generator=generator,
            has_bias=False,
        )
        self.injector = Injector(config.latent, decoder, generator=generator, shares_values=True)


class OptimusObjective:
    """A text written again from its latent vector."""

    name = "optimus"
    optimised: tuple[str, ...] = OPTIMISED
    backbone_calls = 1

    def __init__(self, config: OptimusConfig, *, steps: int) -> None:
        """steps: updates of the run, which the schedule of beta follows."""
        self.config, self.weight, self.steps = config, config.weight, steps
        self.health: Health | None = Health(config.elbo.window)
        self.alarm: CollapseAlarm | None = CollapseAlarm(config.elbo.alarm)

    def transform(
        self, special: SpecialIds, *, source_tokens: int, vocab_size: int
    ) -> CausalTransform:
        """Texts to be written from left to right, with themselves as sources."""
        return CausalTransform(
            special,
            vocab_size=vocab_size,
            first_position=self.config.first_position,
            denoise_ratio=self.config.denoise_ratio,
            keeps_sources=True,
        )

    def part(
        self,
        shape: BackboneShape,
        generator: torch.Generator,
        *,
        vocab_size: int,
        source_tokens: int,
    ) -> OptimusPart:
        """An encoder over the decoder's vocabulary, and what lies between the two."""
        return OptimusPart(
            self.config,
            shape,
            generator,
            vocab_size=vocab_size,
            num_positions=self.config.encoder.table_rows(source_tokens),
        )

    def inputs(self, batch: Any, update: int | None = None) -> dict[str, Tensor]:
        """Both halves' rows, noise (B, N, Z) and beta (1 where `update` is None)."""
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
        """The ELBO's terms."""
        part = model.parts[self.name]
        assert isinstance(part, OptimusPart) and self.health is not None
        read_BTD = part.encoder(
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

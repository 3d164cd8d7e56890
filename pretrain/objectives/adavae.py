"""AdaVAE: one language model is encoder and decoder, and only what is added to it learns.

    max   E_q(z | x)  sum over t of log p(x_t | x_<t, z)  -  beta KL(q(z | x) || N(0, I))

The first layers of the backbone read a text unmasked, with adapters of their own; all of its layers
write it causally with others, beside a slot that z gives them. The backbone itself stays as it was
pretrained, but for its LayerNorms: trains: parts_and_norms. Tu et al. 2022, section 3.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.causal import CausalTransform
from pretrain.latent_config import AdaVaeConfig, ElboConfig
from pretrain.models.adapters import Adapter
from pretrain.models.backbone import Slots
from pretrain.models.latent import Injected, LatentHead, WideLinear
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


class AdaVaePart(nn.Module):
    """Adapters of both halves, pooling and posterior, and the projections of z."""

    def __init__(
        self, config: AdaVaeConfig, shape: BackboneShape, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        width, std = shape.hidden_size, shape.init_std

        def adapters(number: int) -> nn.ModuleList:
            size, placement = config.adapter_size, config.adapter_placement
            return nn.ModuleList(Adapter(width, size, placement, generator) for _ in range(number))

        self.encoder_adapters = adapters(config.encoder_layers)
        has_slots = config.injection != "embedding"
        self.decoder_adapters = adapters(shape.num_layers if has_slots else 0)
        self.head = LatentHead(config.latent, width, std=std, generator=generator)
        projected = shape.num_layers if has_slots and config.projection == "per_layer" else 1
        self.projection = WideLinear(
            config.latent_size, projected * width, std=std, generator=generator, has_bias=False
        )
        is_psa = config.injection == "psa"
        self.slots = nn.ModuleList(
            WideLinear(width, (1 + is_psa) * width, std=std, generator=generator, has_bias=is_psa)
            for _ in range(shape.num_layers if has_slots else 0)
        )

    def injected(self, z_BNZ: Tensor, dtype: torch.dtype) -> Injected:
        """What the decoder reads of z."""
        projected = self.projection(z_BNZ)
        if self.config.injection == "embedding":
            return Injected(None, projected.to(dtype))
        of_layers = projected.unflatten(-1, (-1, self.shape.hidden_size)).unbind(-2)
        if len(of_layers) == 1:
            of_layers = of_layers * self.shape.num_layers
        return Injected(
            [self._slot(m, z, dtype) for m, z in zip(self.slots, of_layers, strict=True)], None
        )

    def _slot(self, slot_map: nn.Module, projected_BND: Tensor, dtype: torch.dtype) -> Slots:
        heads = (1, self.shape.num_heads, -1)
        parts = slot_map(projected_BND).to(dtype).split(self.shape.hidden_size, -1)
        slots = [part.unflatten(-1, heads) for part in parts]
        return slots[0], slots[1] if len(slots) > 1 else None


def adapters_of(modules: nn.ModuleList) -> list[Adapter]:
    """The adapters in a list of modules, in their order."""
    return [module for module in modules if isinstance(module, Adapter)]


class AdaVaeObjective:
    """A text written again by the model that has read it."""

    name = "adavae"
    optimised: tuple[str, ...] = OPTIMISED
    backbone_calls = 2

    def __init__(self, config: AdaVaeConfig, *, steps: int) -> None:
        """steps: updates of the run, which the schedule of beta follows."""
        self.config, self.weight, self.steps = config, config.weight, steps
        self.health: Health | None = Health(config.elbo.window)
        self.alarm: CollapseAlarm | None = CollapseAlarm(config.elbo.alarm)

    def transform(
        self, special: SpecialIds, *, source_tokens: int, vocab_size: int
    ) -> CausalTransform:
        """Texts to be written from left to right, with themselves as sources."""
        return CausalTransform(special, vocab_size=vocab_size, keeps_sources=True)

    def part(
        self,
        shape: BackboneShape,
        generator: torch.Generator,
        *,
        vocab_size: int,
        source_tokens: int,
    ) -> AdaVaePart:
        """What is added to a backbone of `shape`."""
        return AdaVaePart(self.config, shape, generator)

    def inputs(self, batch: Any, update: int | None = None) -> dict[str, Tensor]:
        """Both halves' rows, noise (B, N, Z) and beta (1 where `update` is None)."""
        elbo = self.config.elbo
        factor = 1.0 if update is None else beta(update, steps=self.steps, config=elbo.beta)
        latent = latent_inputs(batch, size=self.config.latent_size, config=elbo, factor=factor)
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
        assert isinstance(part, AdaVaePart) and self.health is not None
        read_BTD = model.backbone(
            inputs["source_ids"],
            inputs["source_positions"],
            sources_visibility(inputs),
            layers=self.config.encoder_layers,
            adapters=adapters_of(part.encoder_adapters),
        )
        posterior = part.head(read_BTD, inputs["source_document"], inputs["exists"].shape[1])
        z_BNZ = posterior.sample(inputs["noise"])
        self.health.note(
            posterior, z_BNZ, inputs["exists"], inputs["text_kind"], is_training=model.training
        )
        return decoded_terms(
            model.backbone,
            part.injected(z_BNZ, read_BTD.dtype),
            posterior,
            inputs,
            self.elbo(is_training=model.training),
            adapters=adapters_of(part.decoder_adapters) or None,
        )

    def scalars(self, update: int) -> dict[str, float]:
        """See elbo_scalars."""
        return elbo_scalars(update, steps=self.steps, config=self.config.elbo, health=self.health)

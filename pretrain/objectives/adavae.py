"""AdaVAE: one language model is encoder and decoder, and only what is added to it learns.

    max   E_q(z | x)  sum over t of log p(x_t | x_<t, z)  -  beta KL(q(z | x) || N(0, I))

The first layers of the backbone read a text unmasked, with adapters of their own; all of its layers
write it causally with others, beside a slot that z gives them. The backbone itself stays as it was
pretrained, but for its LayerNorms: trains: adapters. Tu et al. 2022, section 3.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.causal import CausalTransform
from pretrain.models.adapters import Adapter
from pretrain.models.flop import Work, backbone_flop
from pretrain.models.latent import Injected, LatentHead, Posterior, WideLinear
from pretrain.models.layer import Slots
from pretrain.models.shape import BackboneShape
from pretrain.objectives.decoding import BackboneDecoder
from pretrain.objectives.latent import sources_visibility
from pretrain.objectives.loss import ObjectiveModel
from pretrain.settings.latent_config import AdaVaeConfig


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

    def injected(self, z_BNZ: Tensor | None, dtype: torch.dtype) -> Injected:
        """What the decoder reads of z, nothing where that is None, and its adapters."""
        adapters = adapters_of(self.decoder_adapters) or None
        if z_BNZ is None:
            return Injected(None, None, adapters)
        projected = self.projection(z_BNZ)
        if self.config.injection == "embedding":
            return Injected(None, projected.to(dtype))
        of_layers = projected.unflatten(-1, (-1, self.shape.hidden_size)).unbind(-2)
        if len(of_layers) == 1:
            of_layers = of_layers * self.shape.num_layers
        memory = [self._slot(m, z, dtype) for m, z in zip(self.slots, of_layers, strict=True)]
        return Injected(memory, None, adapters)

    def _slot(self, slot_map: nn.Module, projected_BND: Tensor, dtype: torch.dtype) -> Slots:
        heads = (1, self.shape.num_heads, -1)
        parts = slot_map(projected_BND).to(dtype).split(self.shape.hidden_size, -1)
        slots = [part.unflatten(-1, heads) for part in parts]
        return slots[0], slots[1] if len(slots) > 1 else None


def adapters_of(modules: nn.ModuleList) -> list[Adapter]:
    """The adapters in a list of modules, in their order."""
    return [module for module in modules if isinstance(module, Adapter)]


class AdaVae:
    """A text written again by the model that has read it."""

    name = "adavae"
    backbone_calls = 2

    def __init__(self, config: AdaVaeConfig) -> None:
        self.config = config

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

    def encode(self, model: ObjectiveModel, inputs: Mapping[str, Tensor]) -> Posterior:
        """q(z | x), read by the first layers of the backbone."""
        part = model.part(self.name, AdaVaePart)
        read_BTD = model.backbone(
            inputs["source_ids"],
            inputs["source_positions"],
            sources_visibility(inputs),
            layers=self.config.encoder_layers,
            adapters=adapters_of(part.encoder_adapters),
        )
        return part.head(read_BTD, inputs["source_document"], inputs["exists"].shape[1])

    def decoder(self, model: ObjectiveModel, z_BNZ: Tensor | None) -> BackboneDecoder:
        """All layers of the backbone with the other adapters."""
        injected = model.part(self.name, AdaVaePart).injected(z_BNZ, model.backbone.dtype)
        return BackboneDecoder(model.backbone, injected)

    def flop(self, shape: BackboneShape, work: Work, *, vocab_size: int) -> float:
        """Of the first layers over the texts and all over the rows; adapters left out. Counted as
        if all of it learned, although gradients of frozen matrices are not computed."""
        first = replace(shape, num_layers=self.config.encoder_layers)
        read = backbone_flop(first, work.read, vocab_size=vocab_size)
        return read + backbone_flop(shape, work, vocab_size=vocab_size)

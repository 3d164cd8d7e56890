"""GLM-VAE: the backbone encodes a whole text to z, and writes its blanks from part A beside z.

    max   E_q(z | x)  log p(blanks | part A, z)  -  beta KL(q(z | x) || N(0, I))

One backbone reads a packed row twice: the texts before they were blanked, each seeing all of itself
(the encoder), and the blanked rows beside the memory slots of their documents (the decoder). With
part A visible, ignoring z can be the optimum; with every text written whole from [gMASK] it is not.

Terms: see elbo.py, and the nats a target by kind of blank. This is ours; docs/objectives.md.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank import BlankTransform
from pretrain.models.flop import Work, backbone_flop
from pretrain.models.latent import Injector, LatentHead, Posterior
from pretrain.models.shape import BackboneShape
from pretrain.objectives.decoding import BackboneDecoder
from pretrain.objectives.latent import sources_visibility
from pretrain.objectives.loss import ObjectiveModel
from pretrain.settings.latent_config import GlmVaeConfig


class GlmVaePart(nn.Module):
    """What the objective adds to the backbone."""

    def __init__(
        self, config: GlmVaeConfig, shape: BackboneShape, generator: torch.Generator
    ) -> None:
        super().__init__()
        width, std = shape.hidden_size, shape.init_std
        self.head = LatentHead(config.latent, width, std=std, generator=generator)
        self.injector = Injector(config.latent, shape, generator=generator)


class GlmVae:
    """Blank infilling beside a latent vector of the whole text."""

    name = "glm_vae"
    backbone_calls = 2

    def __init__(self, config: GlmVaeConfig) -> None:
        self.config = config

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

    def encode(self, model: ObjectiveModel, inputs: Mapping[str, Tensor]) -> Posterior:
        """q(z | x), read by the backbone."""
        read_BTD = model.backbone(
            inputs["source_ids"], inputs["source_positions"], sources_visibility(inputs)
        )
        head = model.part(self.name, GlmVaePart).head
        return head(read_BTD, inputs["source_document"], inputs["exists"].shape[1])

    def decoder(self, model: ObjectiveModel, z_BNZ: Tensor | None) -> BackboneDecoder:
        """The backbone, which fills blanks beside the slots of z."""
        injected = model.part(self.name, GlmVaePart).injector(z_BNZ, model.backbone.dtype)
        return BackboneDecoder(model.backbone, injected)

    def flop(self, shape: BackboneShape, work: Work, *, vocab_size: int) -> float:
        """Of the whole text's pass and that of the blanked rows."""
        passes = (work.read, work)
        return sum(backbone_flop(shape, rows, vocab_size=vocab_size) for rows in passes)

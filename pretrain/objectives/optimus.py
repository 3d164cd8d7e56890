"""Optimus: an encoder reads a text to z, a causal decoder writes the text from z (Li et al. 2020).

    max   E_q(z | x)  sum over t of log p(x_t | x_<t, z)  -  beta KL(q(z | x) || N(0, I))

The encoder is a part of its own, of BERT's shape; its pooled first token gives mu and logvar by one
map without bias. The decoder is the run's backbone. z enters as one memory slot in every layer,
whose key is its value too, as what is added to every token's embedding, or both.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from data_pipeline.tokenizing.special import SpecialIds, Vocabulary
from data_pipeline.transforms.causal import CausalTransform
from data_pipeline.transforms.two_streams import TwoStreamTransform
from pretrain.models.backbone import Backbone
from pretrain.models.flop import Work, backbone_flop
from pretrain.models.latent import Injector, LatentHead, Posterior
from pretrain.models.shape import BackboneShape, padded_vocabulary
from pretrain.objectives.decoding import BackboneDecoder
from pretrain.objectives.latent import sources_visibility
from pretrain.objectives.loss import ObjectiveModel
from pretrain.settings.latent_config import OptimusConfig


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


class Optimus:
    """A text written again from its latent vector."""

    name = "optimus"
    backbone_calls = 1

    def __init__(self, config: OptimusConfig, encoder: Vocabulary | None = None) -> None:
        """encoder: what it reads, where that is another tokenizer's ids than are written."""
        self.config, self.encoder = config, encoder

    def transform(
        self, special: SpecialIds, *, source_tokens: int, vocab_size: int
    ) -> CausalTransform | TwoStreamTransform:
        """Texts to be written from left to right, with themselves as sources."""
        hidden = self.config.denoise_ratio
        written = CausalTransform(
            special,
            vocab_size=vocab_size,
            first_position=self.config.first_position,
            denoise_ratio=0.0 if self.encoder else hidden,
            keeps_sources=self.encoder is None,
        )
        if self.encoder is None:
            return written
        return TwoStreamTransform(written, self.encoder, denoise_ratio=hidden)

    def part(
        self,
        shape: BackboneShape,
        generator: torch.Generator,
        *,
        vocab_size: int,
        source_tokens: int,
    ) -> OptimusPart:
        """An encoder over its vocabulary, or the decoder's, and what lies between the two."""
        if self.encoder is not None:
            vocab_size = padded_vocabulary(self.encoder.size)
        return OptimusPart(
            self.config,
            shape,
            generator,
            vocab_size=vocab_size,
            num_positions=self.config.encoder_positions(source_tokens),
        )

    def encode(self, model: ObjectiveModel, inputs: Mapping[str, Tensor]) -> Posterior:
        """q(z | x), read by the encoder."""
        part = model.part(self.name, OptimusPart)
        read_BTD = part.encoder(
            inputs["source_ids"], inputs["source_positions"], sources_visibility(inputs)
        )
        return part.head(read_BTD, inputs["source_document"], inputs["exists"].shape[1])

    def decoder(self, model: ObjectiveModel, z_BNZ: Tensor | None) -> BackboneDecoder:
        """The backbone, beside the slots of z, what it adds, or both."""
        injected = model.part(self.name, OptimusPart).injector(z_BNZ, model.backbone.dtype)
        return BackboneDecoder(model.backbone, injected)

    def flop(self, shape: BackboneShape, work: Work, *, vocab_size: int) -> float:
        """Of the encoder's pass and the decoder's."""
        read = backbone_flop(self.config.encoder, work.read, vocab_size=vocab_size)
        return read + backbone_flop(shape, work, vocab_size=vocab_size)

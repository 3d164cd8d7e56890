"""The LSTM VAE: the small baseline of latent language models (Bowman et al. 2016).

    max   E_q(z | x)  sum over t of log p(x_t | x_<t, z)  -  beta KL(q(z | x) || N(0, I))

An LSTM reads the text; mu and logvar are a linear map of its last state. Another one begins with a
state from z, reads z beside every token and writes the text. There is no backbone in such a run.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.causal import CausalTransform
from pretrain.models.flop import Work
from pretrain.models.latent import LOGVAR_LIMIT, Posterior, WideLinear
from pretrain.models.lstm import LstmReader, LstmWriter, State, packed, unpacked
from pretrain.models.shape import BackboneShape
from pretrain.objectives.loss import ObjectiveModel
from pretrain.settings.latent_config import LstmVaeConfig


class LstmVaePart(nn.Module):
    """Reader, posterior and writer."""

    def __init__(
        self,
        config: LstmVaeConfig,
        generator: torch.Generator,
        *,
        vocab_size: int,
        max_tokens: int,
    ) -> None:
        """max_tokens: of the longest text."""
        super().__init__()
        self.max_tokens = max_tokens
        width, hidden = config.embedding_size, config.hidden_size
        self.encoder = LstmReader(vocab_size, width, hidden, generator=generator)
        self.head = WideLinear(hidden, 2 * config.latent_size, std=0.1, generator=generator)
        self.decoder = LstmWriter(
            vocab_size,
            width,
            hidden,
            config.latent_size,
            dropout_prob=config.dropout_prob,
            generator=generator,
        )


class LstmDecoder:
    """The writer beside z, and the state that it has reached."""

    def __init__(self, writer: LstmWriter, z_BNZ: Tensor, max_tokens: int) -> None:
        """max_tokens: of the longest text."""
        self.writer, self.z_BNZ, self.max_tokens = writer, z_BNZ, max_tokens
        self._state: State | None = None

    def target_nats(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """See Decoder."""
        texts = unpacked(
            inputs["ids"],
            inputs["document"],
            inputs["positions"][:, 0],
            num_documents=self.z_BNZ.shape[1],
            max_tokens=self.max_tokens,
        )
        hidden_DLE, _ = self.writer(texts.ids, self.z_BNZ.flatten(0, 1))
        hidden_BTE = packed(hidden_DLE, texts)
        hidden_NE = hidden_BTE.flatten(0, 1).index_select(0, inputs["target_index"])
        logits_NV = self.writer.logits(hidden_NE).float()
        return F.cross_entropy(logits_NV, inputs["targets"], reduction="none")

    def next_scores(self, columns: Mapping[str, Tensor]) -> Tensor:
        """See Decoder."""
        z_RZ = self.z_BNZ[:, 0]
        hidden_RTE, self._state = self.writer(columns["ids"].long(), z_RZ, self._state)
        return self.writer.logits(hidden_RTE[:, -1]).float()

    def keep(self, rows_R: Tensor) -> None:
        """See Decoder."""
        assert self._state is not None, "nothing has been read"
        self.z_BNZ = self.z_BNZ[rows_R]
        hidden_1RH, cell_1RH = self._state
        self._state = (hidden_1RH[:, rows_R], cell_1RH[:, rows_R])


class LstmVae:
    """A text written again by an LSTM from its latent vector."""

    name = "lstm_vae"
    backbone_calls = 0

    def __init__(self, config: LstmVaeConfig) -> None:
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
    ) -> LstmVaePart:
        """The whole model."""
        return LstmVaePart(self.config, generator, vocab_size=vocab_size, max_tokens=source_tokens)

    def encode(self, model: ObjectiveModel, inputs: Mapping[str, Tensor]) -> Posterior:
        """q(z | x), read by the first LSTM."""
        part = model.part(self.name, LstmVaePart)
        texts = unpacked(
            inputs["source_ids"],
            inputs["source_document"],
            inputs["source_positions"][:, 0],
            num_documents=inputs["exists"].shape[1],
            max_tokens=part.max_tokens,
        )
        mu, logvar = part.head(part.encoder(texts)).chunk(2, -1)
        return Posterior(mu, logvar.clamp(-LOGVAR_LIMIT, LOGVAR_LIMIT))

    def decoder(self, model: ObjectiveModel, z_BNZ: Tensor | None) -> "LstmDecoder":
        """The second LSTM, which cannot do without z."""
        assert z_BNZ is not None, "an LSTM begins with z and reads it beside every token"
        part = model.part(self.name, LstmVaePart)
        return LstmDecoder(part.decoder, z_BNZ, part.max_tokens)

    def flop(self, shape: BackboneShape, work: Work, *, vocab_size: int) -> float:
        """Of both LSTMs' gates and the output layer."""
        config = self.config
        width, hidden = config.embedding_size, config.hidden_size
        read = 4 * hidden * (width + hidden)
        written = 4 * hidden * (width + config.latent_size + hidden) + hidden * width
        forward = work.source_tokens * read + work.tokens * written
        return 6 * (forward + work.targets * width * vocab_size)

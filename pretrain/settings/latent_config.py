"""What a run that learns a latent space is told besides its backbone; no torch, as config.py."""

import math
from dataclasses import dataclass, field
from typing import Literal

from data_pipeline.transforms.blank import BlankConfig
from pretrain.models.latent_shape import LatentShape, Placement, Pooling
from pretrain.models.shape import BackboneShape
from pretrain.settings.elbo_config import BetaConfig, ElboConfig, FreeBitsConfig

# BERT-base, cased or not (Devlin et al. 2019).
BERT_BASE = BackboneShape(
    norm_order="post",
    gelu="erf",
    norm_eps=1e-12,
    token_types=2,
    embedding_norm=True,
    block_positions=False,
)


@dataclass(frozen=True, kw_only=True)
class OptimusConfig:
    """Optimus (Li et al. 2020): an encoder of its own, BERT's shape, and the run's backbone as
    decoder, which is to have GPT-2's shape (launch/recipes/optimus_pretrain.yaml)."""

    weight: float = 0.0
    """Factor of this objective's loss in the sum over objectives; 0 leaves the objective out."""
    encoder: BackboneShape = BERT_BASE
    """Shape of the encoder."""
    tokenizers: Literal["one", "two"] = "one"
    """one: both halves read the same ids; two: the encoder reads those of a tokenizer of its own,
    which the shards hold beside the decoder's (prepare --encoder-tokenizer), as published."""
    latent: LatentShape = field(
        default_factory=lambda: LatentShape(pooling="cls", injection="both")
    )
    """The latent space. A memory slot's key is its value too; token positions then begin at 1."""
    elbo: ElboConfig = field(
        default_factory=lambda: ElboConfig(free_bits=FreeBitsConfig(mode="hinge", nats=1.0))
    )
    """The loss."""
    encoder_from: str | None = None
    """Transformers folder of a BERT whose weights the encoder begins with, pooler included; its
    vocabulary must be the encoder's. A relative path counts from the caller's folder."""
    decoder_from: str | None = None
    """Transformers folder of a GPT-2 whose weights the backbone begins with, likewise."""
    denoise_ratio: float = 0.0
    """Share of the encoder's tokens that are hidden from it (of these 80 % are [MASK], 10 % another
    token, 10 % as they were); what is written stays the clean text."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise ValueError(
                f"objectives.optimus.weight must be finite, 0 or more, got {self.weight}."
            )
        if not 0 <= self.denoise_ratio < 1:
            raise ValueError(
                f"objectives.optimus.denoise_ratio must lie in [0, 1), got {self.denoise_ratio}."
            )

    @property
    def first_position(self) -> int:
        """Position of the first token: behind the memory slot where there is one."""
        return int(self.latent.injection != "embedding")

    def encoder_positions(self, source_tokens: int) -> int:
        """Rows of the encoder's position table, for texts of up to `source_tokens` of the decoder's
        tokens. With two tokenizers the encoder's own texts decide (two_tokenizers.py)."""
        if self.tokenizers == "two" and self.encoder.max_positions is not None:
            return self.encoder.max_positions
        return self.encoder.table_rows(source_tokens)


@dataclass(frozen=True, kw_only=True)
class GlmVaeConfig:
    """GLM with a latent vector: the backbone encodes the whole text to z and writes its blanks
    beside z (docs/objectives.md)."""

    weight: float = 0.0
    """Factor of this objective's loss in the sum over objectives; 0 leaves the objective out."""
    blanks: BlankConfig = field(default_factory=lambda: BlankConfig(token_prob=0, document_prob=1))
    """How text is blanked out. Its rows are drawn for this objective alone."""
    latent: LatentShape = field(default_factory=LatentShape)
    """The latent space."""
    elbo: ElboConfig = field(default_factory=lambda: ElboConfig(reduction="token"))
    """The loss."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise ValueError(
                f"objectives.glm_vae.weight must be finite, 0 or more, got {self.weight}."
            )


@dataclass(frozen=True, kw_only=True)
class AdaVaeConfig:
    """AdaVAE (Tu et al. 2022): the first layers of the run's backbone, unmasked and with adapters
    of their own, are the encoder; all of them, causal and with others, the decoder."""

    weight: float = 0.0
    """Factor of this objective's loss in the sum over objectives; 0 leaves the objective out."""
    encoder_layers: int = 8
    """Layers of the backbone that encode."""
    adapter_size: int = 128
    """Width inside the adapters."""
    adapter_placement: Placement = "parallel_ffn"
    """Where an adapter stands in a layer (pretrain/models/adapters.py); reference_double is what
    the published code computes."""
    latent_size: int = 32
    """Z, dimensions of the latent vector."""
    pooling: Pooling = "latent_attention"
    """How hidden states become one vector; see LatentShape."""
    injection: Literal["psa", "memory", "embedding"] = "psa"
    """psa: a slot in every layer, its key and value from W z by a map of the layer's own; memory:
    key and value are one; embedding: W z is added to every token, and the decoder has no
    adapters."""
    projection: Literal["shared", "per_layer"] = "shared"
    """W: one for all layers, or one for each (psa and memory)."""
    elbo: ElboConfig = field(
        default_factory=lambda: ElboConfig(
            reduction="separate",
            beta=BetaConfig(cycles=4, zero_ratio=0.25, increase_ratio=0.25),
            free_bits=FreeBitsConfig(mode="total", nats=16.0),
        )
    )
    """The loss."""
    backbone_from: str | None = None
    """Transformers folder of a GPT-2 whose weights the backbone begins with; its vocabulary must be
    the shards'. A relative path counts from the caller's folder."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise ValueError(
                f"objectives.adavae.weight must be finite, 0 or more, got {self.weight}."
            )
        for name in ("encoder_layers", "adapter_size", "latent_size"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"objectives.adavae.{name} must be at least 1, got {getattr(self, name)}."
                )

    @property
    def latent(self) -> LatentShape:
        """The latent space."""
        injection = "embedding" if self.injection == "embedding" else "memory"
        return LatentShape(size=self.latent_size, pooling=self.pooling, injection=injection)


@dataclass(frozen=True, kw_only=True)
class LstmVaeConfig:
    """The LSTM VAE (Bowman et al. 2016): a small baseline that has no backbone. Sizes are those of
    the sentence models of He et al. 2019."""

    weight: float = 0.0
    """Factor of this objective's loss in the sum over objectives; 0 leaves the objective out."""
    embedding_size: int = 512
    """Width of the token tables; the writer's is its output layer too."""
    hidden_size: int = 1024
    """Width of both LSTMs' states."""
    latent_size: int = 32
    """Z, dimensions of the latent vector."""
    dropout_prob: float = 0.5
    """Dropout on what the writer reads of a token and on what it gives."""
    elbo: ElboConfig = field(
        default_factory=lambda: ElboConfig(
            beta=BetaConfig(schedule="linear", increase_ratio=0.25),
        )
    )
    """The loss."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise ValueError(
                f"objectives.lstm_vae.weight must be finite, 0 or more, got {self.weight}."
            )
        for name in ("embedding_size", "hidden_size", "latent_size"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"objectives.lstm_vae.{name} must be at least 1, got {getattr(self, name)}."
                )
        if not 0 <= self.dropout_prob < 1:
            raise ValueError(
                f"objectives.lstm_vae.dropout_prob must lie in [0, 1), got {self.dropout_prob}."
            )

    @property
    def latent(self) -> LatentShape:
        """The latent space; how an LSTM reads and writes is its own."""
        return LatentShape(size=self.latent_size)

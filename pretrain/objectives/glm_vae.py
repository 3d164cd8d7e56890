"""GLM-VAE: the backbone encodes a whole text to z, and writes its blanks from part A beside z.

    max   E_q(z | x)  log p(blanks | part A, z)  -  beta KL(q(z | x) || N(0, I))

One backbone reads a packed row twice: the texts before they were blanked, each seeing all of itself
(the encoder), and the blanked rows beside the memory slots of their documents (the decoder). With
part A visible, ignoring z can be the optimum; with every text written whole from [gMASK] it is not.

Terms: see elbo.py, and the nats a target by kind of blank. This is ours; docs/objectives.md.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline import hashing
from data_pipeline.special import SpecialIds
from data_pipeline.transforms.blank import BlankTransform
from kernels.visibility import Visibility
from pretrain.latent_config import GlmVaeConfig
from pretrain.models.latent import Injector, LatentHead
from pretrain.models.shape import BackboneShape
from pretrain.objectives.elbo import (
    OPTIMISED,
    TextLosses,
    beta,
    by_text,
    elbo_counts,
    elbo_scalars,
    elbo_terms,
)
from pretrain.objectives.glm import glm_inputs, kind_terms
from pretrain.objectives.health import Health
from pretrain.objectives.loss import LossTerm, ObjectiveModel, target_losses

NOISE_DRAWS = 8 << 32  # draw number of the first dimension; blanks take those below


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

    def part(self, shape: BackboneShape, generator: torch.Generator) -> GlmVaePart:
        """Pooling, posterior and projections of z, for a backbone of `shape`."""
        return GlmVaePart(self.config, shape, generator)

    def inputs(self, batch: Any, update: int | None = None) -> dict[str, Tensor]:
        """GLM's, the encoder's row, noise (B, N, Z) and beta.

        update: applied updates, for beta; None is evaluation, with beta 1.
        """
        config = self.config
        factor = 1.0
        if update is not None:
            factor = beta(update, steps=self.steps, config=config.elbo.beta)
        return {
            **glm_inputs(batch),
            **encoder_inputs(batch),
            "noise": noise_of(batch, config.latent.size, sampled=config.elbo.noise == "sampled"),
            "beta": torch.tensor(factor),
        }

    def counts(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Targets or texts, by the reduction."""
        num_texts = inputs["exists"].sum().float()
        return elbo_counts(inputs["weights"].sum(), num_texts, self.config.elbo)

    def loss_terms(
        self, model: ObjectiveModel, inputs: Mapping[str, Tensor]
    ) -> dict[str, LossTerm]:
        """The ELBO's terms, and one term per kind of blank."""
        backbone, part = model.backbone, model.parts[self.name]
        assert isinstance(part, GlmVaePart)
        num_documents = inputs["exists"].shape[1]
        of_sources = Visibility(inputs["source_lo"], inputs["source_hi"], inputs["source_document"])
        read_BTD = backbone(inputs["source_ids"], inputs["source_positions"], of_sources)
        posterior = part.head(read_BTD, inputs["source_document"], num_documents)
        z_BNZ = posterior.sample(inputs["noise"])
        injected = part.injector(z_BNZ, read_BTD.dtype)
        hidden_BTD = backbone(
            inputs["ids"],
            inputs["positions"],
            Visibility(inputs["lo"], inputs["hi"], inputs["document"]),
            memory=injected.memory,
            latent_embedding=injected.latent_embedding,
        )
        losses_N = target_losses(backbone, hidden_BTD, inputs["target_index"], inputs["targets"])
        weighted_N, weights_N = losses_N * inputs["weights"], inputs["weights"]

        def of_texts(values_N: Tensor) -> Tensor:
            return by_text(values_N, inputs["target_index"], inputs["document"], num_documents)

        texts = TextLosses(of_texts(weighted_N), of_texts(weights_N), inputs["exists"])
        assert self.health is not None
        self.health.note(
            posterior, z_BNZ, inputs["exists"], inputs["text_kind"], is_training=model.training
        )
        terms = elbo_terms(posterior, texts, inputs["beta"], self.config.elbo)
        return terms | kind_terms(weighted_N, weights_N, inputs["kind"])

    def scalars(self, update: int) -> dict[str, float]:
        """See elbo_scalars."""
        return elbo_scalars(update, steps=self.steps, config=self.config.elbo, health=self.health)


def encoder_inputs(batch: Any) -> dict[str, Tensor]:
    """What the encoder reads: source_ids, _document, _lo, _hi (B, T), source_positions (B, 2, T);
    and of the documents: exists and text_kind (B, N), N at least 1.

    A batch of padding alone has no sources; it gets a document that does not exist.
    """
    if batch.sources is None:
        source_ids, document_BT = torch.zeros_like(batch.ids), torch.full_like(batch.ids, -1)
        num_documents = 1
    else:
        source_ids, document_BT = batch.sources
        num_documents = max(batch.keys.shape[1], 1)
    exists_BN, lo_BT, hi_BT, place_BT = document_places(document_BT, num_documents)
    return {
        "source_ids": source_ids,
        "source_document": document_BT,
        "source_lo": lo_BT,
        "source_hi": hi_BT,
        "source_positions": torch.stack((place_BT, torch.zeros_like(place_BT)), 1),
        "exists": exists_BN,
        "text_kind": kinds_of_texts(batch, num_documents),
    }


def document_places(
    document_BT: Tensor, num_documents: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of documents laid end to end: which exist (B, N); first token, one past the last and the
    place inside the document of every token, int32 (B, T), 0 on padding."""
    inside_BT = document_BT >= 0
    owner_BT = document_BT.long().clamp(min=0)
    lengths_BN = torch.zeros(len(document_BT), num_documents, dtype=torch.int64)
    lengths_BN.scatter_add_(1, owner_BT, inside_BT.long())
    stop_BN = lengths_BN.cumsum(1)
    start_BT = (stop_BN - lengths_BN).gather(1, owner_BT)
    place_BT = torch.arange(document_BT.shape[1]) - start_BT
    placed = (start_BT, stop_BN.gather(1, owner_BT), place_BT)
    lo_BT, hi_BT, place_BT = (t.masked_fill(~inside_BT, 0).int() for t in placed)
    return lengths_BN > 0, lo_BT, hi_BT, place_BT


def kinds_of_texts(batch: Any, num_documents: int) -> Tensor:
    """The kind of blank of each document, an index into KINDS: (B, N) int64, 0 without targets."""
    kinds_BN = torch.zeros(len(batch.ids), num_documents, dtype=torch.int64)
    owner_BT = batch.document.long().clamp(min=0)
    return kinds_BN.scatter_reduce_(1, owner_BT, batch.kind.long(), "amax")


def noise_of(batch: Any, size: int, *, sampled: bool = True) -> Tensor:
    """N(0, 1) for each dimension of each document's z: fp32 (B, N, Z), a function of its key alone.

    A key is a hash of (seed, epoch, document, its first token), so that noise is the same whatever
    the rank, the world size and the neighbours, and a resume draws it again.
    """
    if batch.sources is None:
        return torch.zeros(len(batch.ids), 1, size)
    keys_BN = batch.keys.numpy().view(np.uint64)
    if not sampled or not keys_BN.shape[1]:
        return torch.zeros(len(keys_BN), max(keys_BN.shape[1], 1), size)
    draws = NOISE_DRAWS + np.arange(size)
    keys = np.repeat(keys_BN.reshape(-1), size)
    noise = hashing.normal(keys, np.tile(draws, keys_BN.size))
    return torch.from_numpy(noise.astype(np.float32).reshape(*keys_BN.shape, size))

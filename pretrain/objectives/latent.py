"""What every objective with a latent vector does: read a text to q(z | x), write it beside z.

    objective = LatentObjective(Optimus(config), steps=1000)
    inputs = objective.inputs(batch)                       # on the CPU; beta 1
    posterior = objective.encode(model, inputs)            # mu, logvar: (B, N, Z)
    texts = objective.text_nats(model, inputs, posterior.mu)    # -log p(x | z) of each: (B, N)

A model says how a text is read and how it is written (LatentModel: optimus.py, adavae.py,
glm_vae.py, lstm_vae.py); the loss, its schedule, noise and what is reported are here, once.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from data_pipeline.protocols import Transform
from data_pipeline.rows import KINDS
from data_pipeline.tokenizing.special import SpecialIds
from kernels.visibility import Visibility
from pretrain.models.flop import Work
from pretrain.models.latent import Posterior
from pretrain.models.latent_shape import LatentShape
from pretrain.models.shape import BackboneShape
from pretrain.objectives.alarm import CollapseAlarm
from pretrain.objectives.decoding import Decoder
from pretrain.objectives.elbo import (
    OPTIMISED,
    TextLosses,
    beta,
    by_text,
    elbo_counts,
    elbo_now,
    elbo_terms,
)
from pretrain.objectives.glm import count_words, glm_inputs, kind_terms
from pretrain.objectives.health import Health
from pretrain.objectives.latent_inputs import latent_inputs
from pretrain.objectives.loss import LossTerm, ObjectiveModel
from pretrain.objectives.turns import Turns
from pretrain.settings.elbo_config import ElboConfig


class LatentSettings(Protocol):
    """What the config of every latent model holds."""

    @property
    def weight(self) -> float: ...
    @property
    def latent(self) -> LatentShape: ...
    @property
    def elbo(self) -> ElboConfig: ...


class LatentModel(Protocol):
    """What tells one latent model from another."""

    name: str
    backbone_calls: int  # passes through the backbone: reading, if it reads, and writing

    @property
    def config(self) -> LatentSettings: ...

    def transform(self, special: SpecialIds, *, source_tokens: int, vocab_size: int) -> Transform:
        """How a document becomes the row that is written, with the text itself as source."""
        ...

    def part(
        self,
        shape: BackboneShape,
        generator: torch.Generator,
        *,
        vocab_size: int,
        source_tokens: int,
    ) -> nn.Module:
        """What it adds to a backbone of `shape`."""
        ...

    def encode(self, model: ObjectiveModel, inputs: Mapping[str, Tensor]) -> Posterior:
        """q(z | x) of each document."""
        ...

    def decoder(self, model: ObjectiveModel, z_BNZ: Tensor | None) -> Decoder:
        """What writes texts beside z; None: beside none, a backbone then reads tokens alone."""
        ...

    def flop(self, shape: BackboneShape, work: Work, *, vocab_size: int) -> float:
        """Of forward and backward: reading and writing."""
        ...


class LatentObjective:
    """A text written beside its latent vector: the negative ELBO of a latent model."""

    optimised: tuple[str, ...] = OPTIMISED
    judged: tuple[str, ...] = OPTIMISED[:1]  # the other one rises and falls with beta

    def __init__(self, of: LatentModel, *, steps: int, word_table_V: Tensor | None = None) -> None:
        """steps: updates of the run, which the schedule of beta follows. word_table_V: see
        count_words; None reports nothing by words."""
        self.word_table_V = word_table_V
        self.of, self.config, self.steps = of, of.config, steps
        self.name, self.weight, self.backbone_calls = of.name, of.config.weight, of.backbone_calls
        self.health: Health | None = Health(of.config.elbo.window)
        self.alarm: CollapseAlarm | None = CollapseAlarm(of.config.elbo.alarm)
        aggressive = of.config.elbo.aggressive
        self.turns = Turns(aggressive) if aggressive.max_encoder_updates else None

    def transform(self, special: SpecialIds, *, source_tokens: int, vocab_size: int) -> Transform:
        """See LatentModel."""
        return self.of.transform(special, source_tokens=source_tokens, vocab_size=vocab_size)

    def part(
        self,
        shape: BackboneShape,
        generator: torch.Generator,
        *,
        vocab_size: int,
        source_tokens: int,
    ) -> nn.Module:
        """See LatentModel."""
        return self.of.part(shape, generator, vocab_size=vocab_size, source_tokens=source_tokens)

    def inputs(self, batch: Any, update: int | None = None) -> dict[str, Tensor]:
        """The rows that are written, those that are read, noise (B, N, Z) and beta (1 where
        `update` is None)."""
        config = self.config.elbo
        factor = 1.0 if update is None else beta(update, steps=self.steps, config=config.beta)
        latent = latent_inputs(batch, size=self.config.latent.size, config=config, factor=factor)
        inputs = {**glm_inputs(batch), **latent}
        if self.word_table_V is not None:
            inputs["num_words"] = count_words(batch, self.word_table_V)
        return inputs

    def counts(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Targets or texts, by the reduction."""
        return elbo_counts(inputs["weights"], inputs["exists"], self.config.elbo)

    def encode(self, model: ObjectiveModel, inputs: Mapping[str, Tensor]) -> Posterior:
        """q(z | x) of the N documents of each row, (B, N, Z); inputs["exists"] says which are
        there."""
        return self.of.encode(model, inputs)

    def decoder(self, model: ObjectiveModel, z_BNZ: Tensor | None) -> Decoder:
        """See LatentModel."""
        return self.of.decoder(model, z_BNZ)

    def text_nats(
        self, model: ObjectiveModel, inputs: Mapping[str, Tensor], z_BNZ: Tensor | None
    ) -> TextLosses:
        """- log p(x | z) of each document: (B, N), 0 for those not there. z_BNZ: see `decoder`."""
        nats_N = self.decoder(model, z_BNZ).target_nats(inputs)
        return texts_of(nats_N * inputs["weights"], inputs)

    def loss_terms(
        self, model: ObjectiveModel, inputs: Mapping[str, Tensor]
    ) -> dict[str, LossTerm]:
        """The ELBO's terms, and one per kind of target."""
        assert self.health is not None
        posterior, exists_BN = self.encode(model, inputs), inputs["exists"]
        z_BNZ = posterior.sample(inputs["noise"])
        self.health.note(
            posterior, z_BNZ, exists_BN, inputs["text_kind"], is_training=model.training
        )
        weights_N = inputs["weights"]
        weighted_N = self.decoder(model, z_BNZ).target_nats(inputs) * weights_N
        texts, config = texts_of(weighted_N, inputs), self.elbo(is_training=model.training)
        terms = elbo_terms(posterior, texts, inputs["beta"], config)
        if "num_words" in inputs:
            nats = terms["reconstruction"].sum
            terms["reconstruction_word"] = LossTerm(nats, inputs["num_words"])
        return terms | kind_terms(weighted_N, weights_N, inputs["kind"])

    def flop(self, shape: BackboneShape, work: Work, *, vocab_size: int) -> float:
        """See LatentModel."""
        return self.of.flop(shape, work, vocab_size=vocab_size)

    def elbo(self, *, is_training: bool) -> ElboConfig:
        """The loss as it stands now; see elbo_now."""
        assert self.alarm is not None
        return elbo_now(self.config.elbo, self.alarm, is_training=is_training)

    def scalars(self, update: int) -> dict[str, float]:
        """beta of an update; and every report_every updates active units, mutual information with
        its ceiling and marginal KL over the last texts of this rank (health.py)."""
        config = self.config.elbo
        scalars = {"beta": beta(update, steps=self.steps, config=config.beta)}
        if self.health is not None and update % config.report_every == 0:
            scalars |= self.health.training.scalars(KINDS)
        return scalars | (self.turns.scalars() if self.turns else {})


def texts_of(weighted_N: Tensor, inputs: Mapping[str, Tensor]) -> TextLosses:
    """Weighted losses of the targets, and their weights, summed by document."""
    index_N, document_BT = inputs["target_index"], inputs["document"]
    nats_BN, weights_BN = (
        by_text(values_N, index_N, document_BT, inputs["exists"].shape[1])
        for values_N in (weighted_N, inputs["weights"])
    )
    return TextLosses(nats_BN, weights_BN, inputs["exists"])


def sources_visibility(inputs: Mapping[str, Tensor]) -> Visibility:
    """Each source sees all of itself."""
    return Visibility(inputs["source_lo"], inputs["source_hi"], inputs["source_document"])

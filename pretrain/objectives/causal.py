"""A plain causal language model: every token from those before it (Radford et al. 2019).

The baseline of the objectives with a latent vector: the rows that Optimus' decoder writes, without
z. Terms: `total`, which is optimised, in nats a target (eos is one, the beginning is not), `text`
and `word`, the same sum by texts and by words.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.causal import CausalTransform
from pretrain.models.flop import Work, backbone_flop
from pretrain.models.shape import BackboneShape
from pretrain.objectives.alarm import CollapseAlarm
from pretrain.objectives.decoding import BackboneDecoder
from pretrain.objectives.glm import PackedBatch, count_words, glm_inputs
from pretrain.objectives.health import Health
from pretrain.objectives.loss import LossTerm, ObjectiveModel
from pretrain.objectives.turns import Turns


class CausalObjective:
    """Texts written from left to right."""

    name = "causal"
    optimised: tuple[str, ...] = ("total",)
    judged: tuple[str, ...] = optimised
    backbone_calls = 1
    health: Health | None = None
    alarm: CollapseAlarm | None = None
    turns: Turns | None = None

    def __init__(self, *, weight: float = 1.0, word_table_V: Tensor | None = None) -> None:
        """word_table_V: see count_words; None reports nothing by words."""
        self.weight, self.word_table_V = weight, word_table_V

    def transform(
        self, special: SpecialIds, *, source_tokens: int, vocab_size: int
    ) -> CausalTransform:
        """How a document becomes a training row; see CausalTransform."""
        return CausalTransform(special, vocab_size=vocab_size)

    def part(
        self,
        shape: BackboneShape,
        generator: torch.Generator,
        *,
        vocab_size: int,
        source_tokens: int,
    ) -> None:
        """Nothing: a language model is the backbone."""
        return

    def inputs(self, batch: PackedBatch, update: int | None = None) -> dict[str, Tensor]:
        """See glm_inputs; and num_texts and num_words of these rows."""
        begins = (batch.document >= 0) & (batch.positions[:, 0] == 0)
        inputs = {**glm_inputs(batch), "num_texts": begins.sum().float()}
        if self.word_table_V is not None:
            inputs["num_words"] = count_words(batch, self.word_table_V)
        return inputs

    def counts(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum of the weights of all targets, under `total`."""
        return {"total": inputs["weights"].sum()}

    def loss_terms(
        self, model: ObjectiveModel, inputs: Mapping[str, Tensor]
    ) -> dict[str, LossTerm]:
        """`total`, with its graph, and the others, without."""
        nats_N = BackboneDecoder(model.backbone).target_nats(inputs)
        total = (nats_N * inputs["weights"]).sum()
        terms = {
            "total": LossTerm(total, inputs["weights"].sum()),
            "text": LossTerm(total.detach(), inputs["num_texts"]),
        }
        if "num_words" in inputs:
            terms["word"] = LossTerm(total.detach(), inputs["num_words"])
        return terms

    def flop(self, shape: BackboneShape, work: Work, *, vocab_size: int) -> float:
        """Of one pass through the backbone and its backward."""
        return backbone_flop(shape, work, vocab_size=vocab_size)

    def scalars(self, update: int) -> dict[str, float]:
        """None beside the terms."""
        return {}

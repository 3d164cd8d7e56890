"""GLM: blanks are written again, token by token, from the text around them (Du et al. 2022, 2).

Terms: `total`, which is optimised, and one per kind of blank (token, sentence, document, single,
whole) for reporting; each is the sum of weighted cross entropies in nats and the sum of the
weights.

    objective = GlmObjective(BlankConfig(), weight=1.0)
    transform = objective.transform(special, source_tokens=512, vocab_size=50000)
    inputs = objective.inputs(batch)                            # on the CPU
    terms = ObjectiveModel(backbone)(objective, inputs)         # terms["total"].sum, .count
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from data_pipeline.rows import KINDS
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform
from pretrain.models.flop import Work, backbone_flop
from pretrain.models.shape import BackboneShape
from pretrain.objectives.alarm import CollapseAlarm
from pretrain.objectives.decoding import BackboneDecoder
from pretrain.objectives.health import Health
from pretrain.objectives.loss import LossTerm, ObjectiveModel
from pretrain.objectives.turns import Turns


class PackedBatch(Protocol):
    """Tensors (B, T) of packed rows, as data_pipeline.packing.loader delivers them."""

    ids: Tensor
    positions: Tensor  # (B, 2, T): position and block position
    targets: Tensor
    weights: Tensor
    kind: Tensor
    document: Tensor
    lo: Tensor
    hi: Tensor


class GlmObjective:
    """Autoregressive blank infilling with 2D positions."""

    name = "glm"
    optimised: tuple[str, ...] = ("total",)
    judged: tuple[str, ...] = optimised
    backbone_calls = 1
    health: Health | None = None
    alarm: CollapseAlarm | None = None
    turns: Turns | None = None

    def __init__(self, blanks: BlankConfig, *, weight: float = 1.0) -> None:
        self.blanks = blanks
        self.weight = weight

    def transform(
        self, special: SpecialIds, *, source_tokens: int, vocab_size: int
    ) -> BlankTransform:
        """How a document becomes a training row; see BlankTransform."""
        return BlankTransform(
            self.blanks, special, source_tokens=source_tokens, vocab_size=vocab_size
        )

    def part(
        self,
        shape: BackboneShape,
        generator: torch.Generator,
        *,
        vocab_size: int,
        source_tokens: int,
    ) -> None:
        """Nothing: GLM is the backbone."""
        return

    def inputs(self, batch: PackedBatch, update: int | None = None) -> dict[str, Tensor]:
        """See glm_inputs; no schedule of GLM's follows the updates."""
        return glm_inputs(batch)

    def counts(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum of the weights of all targets, under `total`."""
        return {"total": inputs["weights"].sum()}

    def loss_terms(
        self, model: ObjectiveModel, inputs: Mapping[str, Tensor]
    ) -> dict[str, LossTerm]:
        """`total`, with its graph, and one term per kind of blank, without."""
        weights_N = inputs["weights"]
        weighted_N = BackboneDecoder(model.backbone).target_nats(inputs) * weights_N
        total = LossTerm(weighted_N.sum(), weights_N.sum())
        return {"total": total, **kind_terms(weighted_N, weights_N, inputs["kind"])}

    def flop(self, shape: BackboneShape, work: Work, *, vocab_size: int) -> float:
        """Of one pass through the backbone and its backward."""
        return backbone_flop(shape, work, vocab_size=vocab_size)

    def scalars(self, update: int) -> dict[str, float]:
        """None beside the terms."""
        return {}


def glm_inputs(batch: PackedBatch) -> dict[str, Tensor]:
    """What a pass over blanked rows reads, from a batch on the CPU, where finding targets is free.

    ids, lo, hi, document (B, T); positions (B, 2, T); target_index, targets, weights, kind (N,) of
    the N positions whose weight is above 0.
    """
    target_index_N = batch.weights.flatten().nonzero().flatten()
    return {
        "ids": batch.ids,
        "positions": batch.positions,
        "lo": batch.lo,
        "hi": batch.hi,
        "document": batch.document,
        "target_index": target_index_N,
        "targets": batch.targets.flatten()[target_index_N].long(),
        "weights": batch.weights.flatten()[target_index_N].float(),
        "kind": batch.kind.flatten()[target_index_N],
    }


def count_words(batch: PackedBatch, word_table_V: Tensor) -> Tensor:
    """Words and ends of texts among the targets, by the vocabulary's word boundaries: a scalar.

    word_table_V: ids that begin a word or end a text. The first token of a text counts, marked or
    not: what is written behind CLS, or first in a blank that stands there.
    """
    before_BT = torch.nn.functional.pad(batch.document[:, :-1], (1, 0), value=-1)
    position_BT, block_BT = batch.positions.unbind(1)
    is_first_BT = (batch.document != before_BT) | ((position_BT == 1) & (block_BT == 1))
    is_counted_BT = word_table_V[batch.targets.long()] | is_first_BT
    return ((batch.weights > 0) & is_counted_BT).sum().float()


def kind_terms(weighted_N: Tensor, weights_N: Tensor, kind_N: Tensor) -> dict[str, LossTerm]:
    """One term per kind of blank from weighted losses and weights of N targets; no graph."""
    terms = {}
    for number, kind in enumerate(KINDS):
        if number > 0:
            is_kind = kind_N == number
            terms[kind] = LossTerm(
                (weighted_N.detach() * is_kind).sum(), (weights_N * is_kind).sum()
            )
    return terms

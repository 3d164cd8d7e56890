"""What all objectives share: named loss terms, and the module that the engine wraps.

A trainer knows no objective by name. For every objective of a run and every micro-batch it does

    inputs = objective.inputs(batch, update)  # CPU tensors; the number of targets is known here
    counts = objective.counts(inputs)         # before any forward: what the step divides by
    inputs = {name: t.to(device, non_blocking=True) for name, t in inputs.items()}
    terms = model(objective, inputs)          # one forward of ObjectiveModel, so that hooks fire
    loss = objective.weight * sum(terms[t].sum / global_counts[t] for t in objective.optimised)

and sums `terms` over micro-batches and ranks for reporting: a mean is sum / count of the whole,
never a mean of means.

A run's model is one backbone, which every objective reads, and what single objectives add to it: an
encoder of another shape, the head of a latent space, adapters. Such a part is a module that its
objective makes and alone uses; all of them are there from the start, on every rank, so that ZeRO-3
shards and checkpoints hold them like any weight ("parts.NAME...."). A run of plain GLM has none.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from data_pipeline.protocols import Transform
from data_pipeline.tokenizing.special import SpecialIds
from pretrain.models.backbone import Backbone
from pretrain.models.flop import Work
from pretrain.models.shape import BackboneShape
from pretrain.objectives.alarm import CollapseAlarm
from pretrain.objectives.health import Health
from pretrain.objectives.turns import Turns

Part = TypeVar("Part", bound=nn.Module)


class LossTerm(NamedTuple):
    """A sum of weighted losses in nats and the sum of their weights: fp32 scalar tensors.

    Only the terms that are optimised carry a graph.
    """

    sum: Tensor
    count: Tensor


class Objective(Protocol):
    """One way to learn from a batch. It never sees ranks, steps or devices."""

    name: str
    weight: float  # factor of its loss in the run's sum
    optimised: tuple[str, ...]  # the terms whose sum / count are minimised; the others are reports
    judged: tuple[str, ...]  # those of them by which a spike is told: no schedule scales them
    backbone_calls: int  # passes through the backbone in one forward pass
    health: Health | None  # of its latent space, where it has one
    alarm: CollapseAlarm | None  # of the same
    turns: Turns | None  # where its encoder and decoder take turns

    def transform(self, special: SpecialIds, *, source_tokens: int, vocab_size: int) -> Transform:
        """How a document becomes a training row."""
        ...

    def part(
        self,
        shape: BackboneShape,
        generator: torch.Generator,
        *,
        vocab_size: int,
        source_tokens: int,
    ) -> nn.Module | None:
        """What it adds to a backbone of `shape`, drawn from `generator`; None adds nothing.

        vocab_size: rows of the token table; source_tokens: of the longest text.
        """
        ...

    def inputs(self, batch: Any, update: int | None = None) -> dict[str, Tensor]:
        """The tensors that the forward pass needs, from a loader's batch on the CPU.

        update: updates applied so far, which schedules follow; None in evaluation.
        """
        ...

    def counts(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The count of every optimised term, without a forward pass: what the step divides by."""
        ...

    def loss_terms(
        self, model: "ObjectiveModel", inputs: Mapping[str, Tensor]
    ) -> dict[str, LossTerm]:
        """All terms of one micro-batch."""
        ...

    def flop(self, shape: BackboneShape, work: Work, *, vocab_size: int) -> float:
        """Of forward and backward over rows that hold `work`, with a backbone of `shape`."""
        ...

    def scalars(self, update: int) -> dict[str, float]:
        """What it reports beside its terms of update number `update`, by name with its unit."""
        ...


class ObjectiveModel(nn.Module):
    """Owns the backbone and the parts of objectives, by their names; its forward is an objective's
    loss terms. The engine wraps this."""

    backbone: Backbone  # where there is one

    def __init__(
        self, backbone: Backbone | None, parts: Mapping[str, nn.Module] | None = None
    ) -> None:
        """backbone: None where no objective of the run calls it."""
        super().__init__()
        if backbone is not None:
            self.backbone = backbone
        self.parts = nn.ModuleDict(parts or {})

    def part(self, name: str, kind: type[Part]) -> Part:
        """What the objective of that name has added, which is a module of `kind`."""
        part = self.parts[name]
        assert isinstance(part, kind)
        return part

    def forward(self, objective: Objective, inputs: Mapping[str, Tensor]) -> dict[str, LossTerm]:
        return objective.loss_terms(self, inputs)


def target_losses(
    backbone: Backbone,
    hidden_BTD: Tensor,
    target_index_N: Tensor,
    targets_N: Tensor,
    tied_VD: Tensor | None = None,
) -> Tensor:
    """Cross entropy of the targets alone, in nats and fp32: (N,). No other logits are computed.

    target_index_N: int64, b x T + t of each target. N = 0 gives an empty tensor that still hangs on
    the graph, so that a rank without targets runs the same backward pass as the others. tied_VD:
    see Backbone.logits.
    """
    hidden_ND = hidden_BTD.flatten(0, 1).index_select(0, target_index_N)
    logits_NV = backbone.logits(hidden_ND, tied_VD)
    return F.cross_entropy(logits_NV.float(), targets_N, reduction="none")

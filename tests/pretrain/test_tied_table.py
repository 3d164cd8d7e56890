"""Training writes the gradient of the token table once, and it is the one that two reads give."""

import pytest
import torch
from torch.nn import functional as F

from bench.live_memory import most_added_bytes
from data_pipeline.transforms.blank import BlankConfig
from kernels.visibility import single_documents
from pretrain.models.backbone import Backbone
from pretrain.models.shape import BackboneShape
from pretrain.objectives.causal import CausalObjective
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.loss import ObjectiveModel

TOKENS = 7
IDS = torch.tensor([[3, 1, 3, 9, 0, 3, 2], [5, 5, 1, 4, 8, 0, 0]], dtype=torch.int32)
POSITIONS = torch.arange(TOKENS).expand(2, 2, TOKENS)


def backbone_of(vocab_size: int, layers_per_checkpoint: int = 0, **shape) -> Backbone:
    size = BackboneShape(
        num_layers=2,
        hidden_size=16,
        num_heads=2,
        dropout_prob=0.0,
        attention_dropout_prob=0.0,
        **shape,
    )
    return Backbone(
        size,
        vocab_size=vocab_size,
        num_positions=TOKENS,
        generator=torch.Generator().manual_seed(0),
        layers_per_checkpoint=layers_per_checkpoint,
    )


def visibility():
    return single_documents(torch.tensor([7, 5]), torch.tensor([3, 2]), TOKENS)


def gradients(backbone: Backbone, *, with_tied: bool) -> dict[str, torch.Tensor | None]:
    read = backbone(IDS, POSITIONS, visibility(), with_tied=with_tied)
    logits_BTV = backbone.logits(*read) if with_tied else backbone.logits(read)
    F.cross_entropy(logits_BTV.flatten(0, 1), IDS.flatten().long()).backward()
    found = {name: p.grad for name, p in backbone.named_parameters()}
    backbone.zero_grad()
    return found


@pytest.mark.parametrize("layers_per_checkpoint", [0, 1])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_all_gradients_are_those_of_two_reads(norm, layers_per_checkpoint):
    backbone = backbone_of(
        10, layers_per_checkpoint, norm_order=norm, embedding_norm=norm == "post"
    ).double()
    once, twice = (gradients(backbone, with_tied=with_tied) for with_tied in (True, False))
    for name, expected in twice.items():
        assert torch.allclose(once[name], expected, rtol=1e-12, atol=1e-14), name


def test_a_frozen_table_costs_no_gradient():
    backbone = backbone_of(4000)
    table = backbone.embedding.token_table.requires_grad_(False)
    hidden_BTD, tied_VD = backbone(IDS, POSITIONS, visibility(), with_tied=True)
    loss = backbone.logits(hidden_BTD[:, 0], tied_VD).square().sum()
    assert most_added_bytes(loss.backward) < 0.9 * table.numel() * table.element_size()
    assert table.grad is None and backbone.embedding.position_table.grad is not None


@pytest.mark.parametrize("objective", [GlmObjective(BlankConfig()), CausalObjective()])
def test_a_training_step_makes_one_gradient_of_the_table(objective):
    model = ObjectiveModel(backbone_of(40_000))
    seen = visibility()
    inputs = {
        "ids": IDS,
        "positions": POSITIONS,
        "lo": seen.lo,
        "hi": seen.hi,
        "document": seen.document,
        "target_index": torch.tensor([1]),
        "targets": torch.tensor([3]),
        "weights": torch.ones(1),
        "kind": torch.ones(1, dtype=torch.uint8),
        "num_texts": torch.tensor(2.0),
    }
    loss = objective.loss_terms(model, inputs)["total"].sum
    table = model.backbone.embedding.token_table
    added = most_added_bytes(loss.backward) / (table.numel() * table.element_size())
    assert 1 <= added < 1.5  # the logits of one target are a sixteenth; a second gradient, 2

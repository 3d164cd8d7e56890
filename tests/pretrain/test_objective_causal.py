"""The plain language model: cross entropy of every token but the first, each text for itself."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.loader import first_place, training_batches
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from kernels.visibility import Visibility
from pretrain.models.backbone import Backbone
from pretrain.models.shape import BackboneShape
from pretrain.objectives.causal import CausalObjective
from pretrain.objectives.loss import ObjectiveModel

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
SHAPE = BackboneShape(
    num_layers=2, hidden_size=24, num_heads=2, block_positions=False, dropout_prob=0.0,
    attention_dropout_prob=0.0,
)  # fmt: skip


def test_the_loss_is_that_of_each_text_alone() -> None:
    lengths = np.random.default_rng(0).integers(1, 19, 60)
    ids = np.random.default_rng(1).integers(len(SPECIALS), 64, lengths.sum())
    split = MemorySplit.from_documents(np.split(ids, np.cumsum(lengths)[:-1]))
    objective = CausalObjective()
    batch = next(
        training_batches(
            split, objective.transform(SPECIAL, source_tokens=20, vocab_size=64),
            PackingConfig(source_tokens=20, row_tokens=44, window_tokens=10_000),
            seed=3, rank=0, world_size=1, micro_rows=4, accumulation=1,
            start=first_place(split), num_workers=0,
        )
    )  # fmt: skip
    backbone = Backbone(SHAPE, vocab_size=64, num_positions=24)
    inputs = objective.inputs(batch)
    terms = ObjectiveModel(backbone)(objective, inputs)
    expected, texts, tokens = 0.0, 0, 0
    for row in range(4):
        for number in range(int(batch.document[row].max()) + 1):
            text = batch.ids[row][batch.document[row] == number][None]
            place = torch.arange(text.shape[1])[None]
            causal = Visibility(place * 0, place + 1, place * 0)
            hidden = backbone(text, torch.stack((place, place * 0), 1), causal)
            logits = backbone.logits(hidden)[0, :-1]
            expected += F.cross_entropy(logits, text[0, 1:].long(), reduction="sum").item()
            texts, tokens = texts + 1, tokens + text.shape[1] - 1
    assert terms["total"].sum.item() == pytest.approx(expected, rel=1e-5)
    assert terms["total"].count == tokens == objective.counts(inputs)["total"]
    assert terms["text"].count == texts and not terms["text"].sum.requires_grad

"""Held-out figures: model and baselines get the same targets, with the neighbour they may see."""

import math

import numpy as np
import pytest
import torch

from data_pipeline.packing.loader import FIELDS, Batch, Position
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig
from demo.heldout import Targets, compared, held_out_targets, left_neighbours, token_level
from demo.ngram import count_bigram, count_unigram
from pretrain.models.backbone import Backbone
from pretrain.models.shape import BackboneShape
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.loss import ObjectiveModel

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
CLS, EOS, MASK, SOP, EOP = SPECIAL.cls, SPECIAL.eos, SPECIAL.mask, SPECIAL.sop, SPECIAL.eop
A, B, C, D, E, F, G, H = range(20, 28)

# Two documents in one row of 24, as GLM writes them; | is where part B starts.
#   CLS A B M D M EOS | SOP E F SOP C          blanks "E F" and "C"
#   CLS M H EOS | SOP G                        the blank is the first token of the text
IDS = [CLS, A, B, MASK, D, MASK, EOS, SOP, E, F, SOP, C, CLS, MASK, H, EOS, SOP, G]
TARGETS = [0] * 7 + [E, F, EOP, C, EOP] + [0] * 4 + [G, EOP]
POSITION = [0, 1, 2, 3, 4, 5, 6, 5, 5, 5, 3, 3, 0, 1, 2, 3, 1, 1]
BLOCK = [0] * 7 + [1, 2, 3, 1, 2] + [0] * 4 + [1, 2]
LEFT = [D, E, F, B, C, -1, G]  # the neighbour in the text of every target
ROW_TOKENS = 24


def batch() -> Batch:
    columns = np.arange(len(IDS))
    second = columns >= 12
    lo = np.where(second, 12, 0)
    sep = np.where(second, 16, 7)
    arrays = {
        "ids": IDS,
        "position": POSITION,
        "block_position": BLOCK,
        "targets": TARGETS,
        "weights": np.array([t > 0 for t in TARGETS], np.float32).view(np.int32),
        "kind": [int(t > 0) for t in TARGETS],
        "document": second,
        "lo": lo,
        "hi": np.maximum(columns + 1, sep),
    }
    block = np.zeros((len(FIELDS), 1, ROW_TOKENS), np.int32)
    block[FIELDS.index("document")] = -1
    for number, name in enumerate(FIELDS):
        block[number, 0, : len(IDS)] = arrays[name]
    return Batch(torch.from_numpy(block), Position(), len(IDS), 11)


def backbone() -> Backbone:
    shape = BackboneShape(
        num_layers=1, hidden_size=16, num_heads=2, dropout_prob=0.0, attention_dropout_prob=0.0
    )
    generator = torch.Generator().manual_seed(3)
    return Backbone(shape, vocab_size=32, num_positions=16, generator=generator)


def test_the_left_neighbour_is_the_one_in_the_text() -> None:
    index_N = np.flatnonzero(np.array(TARGETS))
    assert left_neighbours(batch(), index_N, SPECIAL).tolist() == LEFT


def test_the_neighbour_of_an_adjacent_blank_is_unknown() -> None:
    rows = batch()
    rows.ids[0, 4] = MASK  # what stands left of the blank "E F"
    index_N = np.flatnonzero(np.array(TARGETS))
    assert left_neighbours(rows, index_N, SPECIAL).tolist() == [-1, *LEFT[1:]]


def test_targets_and_their_nats_are_those_of_the_objective() -> None:
    model, objective = backbone(), GlmObjective(BlankConfig())
    targets = held_out_targets(model, objective, [batch(), batch()], SPECIAL)
    once = [t for t in TARGETS if t]
    assert targets.token_N.tolist() == once * 2
    assert targets.is_end_N.tolist() == [t == EOP for t in once] * 2
    terms = ObjectiveModel(model)(objective, objective.inputs(batch()))
    total = terms["total"].sum.item()
    assert targets.model_nats_N.sum() == pytest.approx(2 * total, rel=1e-6)
    ends = targets.is_end_N
    assert targets.model_end_prob_N[ends] == pytest.approx(np.exp(-targets.model_nats_N[ends]))


def test_baselines_see_the_same_targets_and_know_the_rate_of_ends() -> None:
    corpus = np.array([A, B, A, B, C], np.int32)
    targets = Targets(
        token_N=np.array([B, EOP]),
        left_N=np.array([A, B]),
        is_end_N=np.array([False, True]),
        model_nats_N=np.array([1.0, 3.0]),
        model_end_prob_N=np.array([0.5, 0.9]),
    )
    result = compared(targets, count_unigram(corpus, 32), count_bigram(corpus, np.array([0]), 32))
    unigram_nats = -math.log((2 + 1) / (5 + 32))
    assert result.without_end["model"] == pytest.approx(1 - math.log(2))
    assert result.with_end["model"] == 2
    assert result.without_end["unigram"] == pytest.approx(unigram_nats)
    assert result.with_end["unigram"] == pytest.approx((unigram_nats + 2 * math.log(2)) / 2)
    assert result.end_rate == 0.5


def test_the_measured_blanks_are_token_level_whatever_was_trained() -> None:
    trained = BlankConfig(token_prob=0.4, document_prob=0.6, block_mask_prob=0.1, mask_ratio=0.2)
    assert token_level(trained) == BlankConfig(mask_ratio=0.2)

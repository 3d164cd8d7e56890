"""The LSTM VAE: what torch.nn.LSTM gives each text alone, whatever it is packed with."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.loader import Batch, first_place, training_batches
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from pretrain.models.backbone import decays
from pretrain.models.shape import BackboneShape
from pretrain.objectives.latent import LatentObjective
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.lstm_vae import LstmVae, LstmVaePart
from pretrain.objectives.select import parts_of
from pretrain.settings.latent_config import LstmVaeConfig

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
CONFIG = LstmVaeConfig(
    weight=1.0, embedding_size=7, hidden_size=11, latent_size=5, dropout_prob=0.0
)


@pytest.fixture
def objective() -> LatentObjective:
    return LatentObjective(LstmVae(CONFIG), steps=100)


@pytest.fixture
def model(objective: LatentObjective) -> ObjectiveModel:
    parts = parts_of([objective], BackboneShape(), vocab_size=64, source_tokens=20, seed=1)
    return ObjectiveModel(None, parts)


@pytest.fixture
def batch(objective: LatentObjective) -> Batch:
    lengths = np.random.default_rng(0).integers(1, 19, 60)
    ids = np.random.default_rng(1).integers(len(SPECIALS), 64, lengths.sum())
    split = MemorySplit.from_documents(np.split(ids, np.cumsum(lengths)[:-1]))
    transform = objective.transform(SPECIAL, source_tokens=20, vocab_size=64)
    packing = PackingConfig(source_tokens=20, row_tokens=44, window_tokens=10_000)
    return next(
        training_batches(
            split, transform, packing, seed=3, rank=0, world_size=1,
            micro_rows=4, accumulation=1, start=first_place(split), num_workers=0,
        )
    )  # fmt: skip


def test_matrices_and_tables_decay_and_biases_do_not(model):
    named = dict(model.named_parameters())
    assert {name for name, p in named.items() if decays(name, p)} == {
        name for name, p in named.items() if p.dim() == 2
    }
    assert any(name.endswith("lstm.bias_hh_l0") for name in named)


def test_each_packed_text_is_read_and_written_as_torch_does_alone(objective, model, batch):
    inputs = objective.inputs(batch)
    posterior = objective.encode(model, inputs)
    z = posterior.sample(inputs["noise"])
    nats = objective.text_nats(model, inputs, z).nats
    part = model.parts["lstm_vae"]
    assert isinstance(part, LstmVaePart)
    compared = 0
    for b, n in inputs["exists"].nonzero().tolist():
        ids = inputs["ids"][b][inputs["document"][b] == n].long()[None]
        _, (last, _) = part.encoder.lstm(F.embedding(ids, part.encoder.token_table))
        expected = part.head(last[-1])[0]
        found = torch.cat((posterior.mu[b, n], posterior.logvar[b, n]))
        assert torch.allclose(found, expected, atol=1e-6)
        own = z[b, n][None]
        first = part.decoder.begin(own)[None]
        read = torch.cat(
            (F.embedding(ids, part.decoder.token_table), own[:, None].expand(-1, ids.shape[1], -1)),
            -1,
        )
        states, _ = part.decoder.lstm(read, (first.tanh(), first))
        logits = part.decoder.output(states)[0] @ part.decoder.token_table.t()
        expected = F.cross_entropy(logits[:-1], ids[0, 1:], reduction="sum")
        assert nats[b, n].item() == pytest.approx(expected.item(), rel=1e-5)
        compared += 1
    assert compared > 8


def test_a_batch_of_padding_still_gives_every_parameter_a_gradient(objective, model, batch):
    empty = replace(batch, block=torch.zeros(9, 2, 44, dtype=torch.int32), sources=None)
    empty.block[6] = -1
    terms = model(objective, objective.inputs(empty, 0))
    assert all(term.sum == 0 and term.count == 0 for term in terms.values())
    sum(terms[name].sum for name in objective.optimised).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name


def test_every_parameter_learns(objective, model, batch):
    terms = model(objective, objective.inputs(batch, 99))
    sum(terms[name].sum for name in objective.optimised).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_the_weights_follow_from_the_seed(objective):
    shape = BackboneShape()
    sizes = {"vocab_size": 64, "source_tokens": 20}
    first, same, other = (
        dict(parts_of([objective], shape, **sizes, seed=s)["lstm_vae"].named_parameters())
        for s in (1, 1, 2)
    )
    assert all(torch.equal(same[name], value) for name, value in first.items())
    assert not torch.equal(other["encoder.token_table"], first["encoder.token_table"])

"""What an update says of itself: the loss that spikes are told by, the work that FLOP count."""

import math

import numpy as np
import pytest

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.loader import first_place, training_batches
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from pretrain.models.flop import Work, training_flop
from pretrain.models.shape import BackboneShape
from pretrain.objectives.adavae import AdaVae
from pretrain.objectives.glm_vae import GlmVae
from pretrain.objectives.latent import LatentObjective
from pretrain.objectives.lstm_vae import LstmVae
from pretrain.objectives.optimus import Optimus
from pretrain.settings.latent_config import AdaVaeConfig, GlmVaeConfig, LstmVaeConfig, OptimusConfig
from pretrain.training.update import Update, _sizes

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
SHAPE = BackboneShape(num_layers=3, hidden_size=24, num_heads=2)
WORK = Work(tokens=100, visible_pairs=700, targets=60, source_tokens=90, source_pairs=1500)


def update_of(reconstruction: float, kl_loss: float) -> Update:
    sums = {"glm_vae/reconstruction_loss": reconstruction, "glm_vae/kl_loss": kl_loss}
    return Update(
        sums=sums, counts=dict.fromkeys(sums, 2.0), skipped=None, gradient_norm=None,
        cells=1.0, work={}, votes=[], data_wait_s=0.0,
    )  # fmt: skip


def test_a_rising_beta_is_no_spike_and_a_kl_that_is_no_number_is_noticed() -> None:
    objectives = [LatentObjective(GlmVae(GlmVaeConfig(weight=0.5)), steps=10)]
    assert update_of(8.0, 100.0).loss(objectives) == 27.0
    assert update_of(8.0, 100.0).judged_loss(objectives) == 2.0
    assert math.isnan(update_of(8.0, math.nan).judged_loss(objectives))


def test_the_work_of_a_batch_is_counted_text_by_text() -> None:
    objective = LatentObjective(Optimus(OptimusConfig(weight=1.0)), steps=10)
    lengths = np.random.default_rng(0).integers(1, 19, 60)
    ids = np.random.default_rng(1).integers(len(SPECIALS), 64, lengths.sum())
    split = MemorySplit.from_documents(np.split(ids, np.cumsum(lengths)[:-1]))
    transform = objective.transform(SPECIAL, source_tokens=20, vocab_size=64)
    batch = next(
        training_batches(
            split, transform, PackingConfig(source_tokens=20, row_tokens=44, window_tokens=10_000),
            seed=3, rank=0, world_size=1, micro_rows=4, accumulation=1,
            start=first_place(split), num_workers=0,
        )
    )  # fmt: skip
    assert batch.sources is not None
    texts = [
        int((row == number).sum())
        for row in batch.sources[1]
        for number in range(int(row.max()) + 1)
    ]
    assert _sizes(batch) == Work(
        tokens=sum(texts),
        visible_pairs=sum(n * (n + 1) // 2 for n in texts),
        targets=sum(n - 1 for n in texts),
        source_tokens=sum(texts),
        source_pairs=sum(n * n for n in texts),
    )


def read_flop(shape: BackboneShape) -> float:
    """Of an encoder's pass over the texts."""
    return training_flop(shape, vocab_size=50, tokens=90, visible_pairs=1500, targets=0)


def test_reading_counts_beside_writing() -> None:
    written = training_flop(SHAPE, vocab_size=50, tokens=100, visible_pairs=700, targets=60)
    encoder = BackboneShape(num_layers=2, hidden_size=8, num_heads=2)
    models = {
        GlmVae(GlmVaeConfig()): SHAPE,
        Optimus(OptimusConfig(encoder=encoder)): encoder,
        AdaVae(AdaVaeConfig(encoder_layers=2)): BackboneShape(
            num_layers=2, hidden_size=24, num_heads=2
        ),
    }
    for model, reader in models.items():
        expected = written + read_flop(reader)
        assert model.flop(SHAPE, WORK, vocab_size=50) == pytest.approx(expected), model.name


def test_an_lstm_counts_its_gates_and_its_logits() -> None:
    lstm = LstmVae(LstmVaeConfig(embedding_size=3, hidden_size=5, latent_size=2))
    read, written = 4 * 5 * (3 + 5), 4 * 5 * (3 + 2 + 5) + 5 * 3
    forward = 2 * (90 * read + 100 * written + 60 * 3 * 50)
    assert lstm.flop(SHAPE, WORK, vocab_size=50) == 3 * forward

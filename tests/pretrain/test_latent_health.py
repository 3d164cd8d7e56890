"""Active units and mutual information: the published numbers, and what is known exactly."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.rows import KINDS
from pretrain.models.latent import Posterior
from pretrain.objectives import health
from pretrain.objectives.health import (
    Health,
    Window,
    active_units,
    mixture_log_density,
    mutual_information_nats,
    scalars_of,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "vae"


@pytest.mark.golden
def test_the_published_numbers():
    stored = {n: torch.from_numpy(v) for n, v in np.load(GOLDEN / "latent_metrics.npz").items()}
    mu, logvar = stored["mu"], stored["logvar"]
    assert active_units(mu) == int(stored["au"])
    z = mu + stored["mi_eps"] * (0.5 * logvar).exp()
    assert mutual_information_nats(mu, logvar, z) == pytest.approx(stored["mi"].item(), abs=2e-5)


def test_posteriors_far_apart_reach_the_ceiling_and_equal_ones_nothing():
    generator = torch.Generator().manual_seed(0)
    apart = 100.0 * torch.randn(50, 3, generator=generator)
    same, narrow = torch.zeros(50, 3), torch.full((50, 3), -4.0)
    noise = torch.randn(50, 3, generator=generator)
    found = mutual_information_nats(apart, narrow, apart + noise * math.exp(-2))
    # One z a text: the entropy is exact, the log density of its own component is not.
    assert found == pytest.approx(math.log(50), abs=4 * math.sqrt(3 / 2 / 50))
    found = mutual_information_nats(same, narrow, noise * math.exp(-2))
    assert found == pytest.approx(0.0, abs=4 * math.sqrt(3 / 2 / 50))


@pytest.mark.parametrize("at_once", [1, 20, 1 << 20])
def test_the_mixture_is_the_sum_of_its_densities(monkeypatch, at_once):
    """However many of the 7 x 7 densities stand at once: a row of them, 2 and all."""
    monkeypatch.setattr(health, "DENSITIES_AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(1)
    mu, logvar, z = (torch.randn(7, 4, generator=generator).double() for _ in range(3))
    expected = [
        math.log(
            sum(
                math.exp(torch.distributions.Normal(m, torch.exp(0.5 * s)).log_prob(x).sum().item())
                for m, s in zip(mu, logvar)
            )
            / 7
        )
        for x in z
    ]
    assert mixture_log_density(z, mu, logvar).tolist() == pytest.approx(expected, rel=1e-12)


def test_kl_is_mutual_information_and_marginal_kl():
    generator = torch.Generator().manual_seed(2)
    mu, logvar = torch.randn(500, 2, generator=generator), torch.full((500, 2), -1.0)
    z = Posterior(mu, logvar).sample(torch.randn(500, 2, generator=generator))
    found = scalars_of(mu, logvar, z, torch.ones(500, dtype=torch.int64), KINDS)
    kl = Posterior(mu, logvar).kl().sum(-1).mean().item()
    assert found["mutual_information_nats"] + found["marginal_kl_nats"] == pytest.approx(kl)
    # The aggregate of q is N(0, 1 + 1/e) in both dimensions, up to the sampling of 500 means.
    variance = 1 + math.exp(-1)
    exact = 2 * 0.5 * (variance - math.log(variance) - 1)
    assert found["marginal_kl_nats"] == pytest.approx(exact, abs=0.2)
    assert found["mutual_information_ceiling_nats"] == pytest.approx(math.log(500))
    assert found["active_units"] == 2


def test_several_kinds_of_blanks_are_told_apart():
    mu = torch.zeros(6, 2)
    mu[3:] = torch.arange(3.0)[:, None] * 10
    kind = torch.tensor([1, 1, 1, 3, 3, 3])
    found = scalars_of(mu, torch.zeros(6, 2), mu, kind, KINDS)
    assert (found["token_active_units"], found["document_active_units"]) == (0, 2)
    assert found["document_mutual_information_ceiling_nats"] == pytest.approx(math.log(3))
    assert "document_marginal_kl_nats" not in found


def test_a_window_keeps_the_last_texts_that_are_there():
    health = Health(size=4)
    exists = torch.tensor([[True, False, True]])
    for number in range(4):
        mu = torch.full((1, 3, 2), float(number))
        health.note(
            Posterior(mu, mu), mu, exists, torch.ones(1, 3, dtype=torch.int64), is_training=True
        )
    texts = health.training.texts()
    assert texts is not None and texts[0][:, 0].tolist() == [2.0, 2.0, 3.0, 3.0]
    assert health.held_out.texts() is None
    health.training.clear()
    assert health.training.scalars(KINDS) == {}
    window = Window(8)
    window.add(*(torch.zeros(1, 2) for _ in range(3)), torch.ones(1))
    assert window.scalars(KINDS) == {}  # one text has no variance

"""The evidence lower bound: published schedules and losses, free bits, what is divided by what."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from pretrain.models.latent import Posterior
from pretrain.objectives.elbo import TextLosses, beta, by_text, elbo_terms, free_kl
from pretrain.settings.elbo_config import BetaConfig, ElboConfig, FreeBitsConfig

GOLDEN = Path(__file__).parents[1] / "golden" / "vae"
SCHEDULES = dict(np.load(GOLDEN / "beta_schedules.npz"))
METRICS = dict(np.load(GOLDEN / "latent_metrics.npz"))


def _config(name: str) -> tuple[int, BetaConfig]:
    """Settings from the name of a published curve."""
    numbers = [float(n) for n in re.findall(r"(?<=[a-z])[\d.]+", name.partition("/")[2])]
    if name.startswith("zero_linear"):
        steps, _, stop, cycles, increase, zero = numbers
    else:
        (steps, cycles, increase), stop, zero = numbers, 1.0, 0.0
    config = BetaConfig(ceiling=stop, cycles=int(cycles), zero_ratio=zero, increase_ratio=increase)
    return int(steps), config


@pytest.mark.golden
@pytest.mark.parametrize("name", SCHEDULES)
def test_beta_follows_the_published_cycles(name):
    steps, config = _config(name)
    ours = [beta(update, steps=steps, config=config) for update in range(steps)]
    assert ours == pytest.approx(SCHEDULES[name].tolist(), abs=1e-12)


def test_other_schedules_rise_once_or_not_at_all():
    linear = BetaConfig(schedule="linear", ceiling=0.5, increase_ratio=0.5)
    assert [beta(u, steps=8, config=linear) for u in (0, 1, 4, 7)] == [0.0, 0.125, 0.5, 0.5]
    constant = BetaConfig(schedule="constant", ceiling=0.0)
    assert {beta(u, steps=8, config=constant) for u in range(8)} == {0.0}


@pytest.mark.golden
@pytest.mark.parametrize("nats", METRICS["optimus_fb_lambdas"].tolist())
def test_masked_free_bits_are_the_published_ones(nats):
    posterior = Posterior(*(torch.from_numpy(METRICS[name]) for name in ("mu", "logvar")))
    assert torch.allclose(posterior.kl(), torch.from_numpy(METRICS["kl_dim"]), atol=1e-6)
    masked = free_kl(posterior.kl(), FreeBitsConfig(mode="mask", nats=nats))
    expected = torch.from_numpy(METRICS[f"optimus_fb1_lambda{nats}/loss_kl"])
    assert torch.allclose(masked, expected, atol=2e-5)


def test_hinge_and_mask_have_one_gradient_and_differ_by_the_free_nats():
    gradients, values = [], []
    for mode in ("hinge", "mask"):
        mu = torch.from_numpy(METRICS["mu"]).double().requires_grad_()
        kl = Posterior(mu, torch.from_numpy(METRICS["logvar"]).double()).kl()
        value = free_kl(kl, FreeBitsConfig(mode=mode, nats=0.5)).sum()
        gradients.append(torch.autograd.grad(value, mu)[0])
        values.append(value.item())
    assert torch.equal(*gradients)
    num_free = int((kl <= 0.5).sum())
    assert values[0] - values[1] == pytest.approx(0.5 * num_free) and num_free > 3


def test_total_free_bits_stop_the_gradient_of_texts_below_them():
    mu = torch.tensor([[0.1, 0.1], [2.0, 2.0]], dtype=torch.float64, requires_grad=True)
    value = free_kl(Posterior(mu, torch.zeros_like(mu)).kl(), FreeBitsConfig(mode="total", nats=1))
    assert value.tolist() == pytest.approx([1.0, 4.0])
    (gradient,) = torch.autograd.grad(value.sum(), mu)
    assert gradient.tolist() == [[0.0, 0.0], [2.0, 2.0]]


@pytest.mark.golden
def test_length_weighted_loss_is_the_published_one():
    """24 rows of one text each. The published length counts BOS, which is no target: one more."""
    kl = torch.from_numpy(METRICS["optimus_fb1_lambda0.5/loss_kl"])
    nats = torch.from_numpy(METRICS["lw_loss_rec"])
    lengths = torch.from_numpy(METRICS["lw_lengths_incl_bos_eos"]).float()
    posterior = Posterior(*(torch.from_numpy(METRICS[n])[:, None] for n in ("mu", "logvar")))
    config = ElboConfig(
        reduction="length_weighted", free_bits=FreeBitsConfig(mode="mask", nats=0.5)
    )
    texts = TextLosses(nats[:, None], lengths[:, None], torch.ones(24, 1, dtype=torch.bool))
    terms = elbo_terms(posterior, texts, torch.tensor(0.7), config)
    expected = METRICS["lw_loss_beta0.7_lambda0.5"].mean()
    ours = sum(terms[t].sum / terms[t].count for t in ("reconstruction_loss", "kl_loss"))
    assert ours.item() == pytest.approx(expected, rel=1e-6)
    assert terms["kl_free"].sum.item() == pytest.approx(kl.sum().item(), rel=1e-5)


def _terms(reduction: str, exists: list[bool]) -> dict:
    posterior = Posterior(torch.full((1, 3, 2), 1.0), torch.zeros(1, 3, 2))  # KL 1 nat a text
    texts = TextLosses(
        torch.tensor([[6.0, 8.0, 0.0]]), torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([exists])
    )
    return elbo_terms(posterior, texts, torch.tensor(0.5), ElboConfig(reduction=reduction))


@pytest.mark.parametrize(
    ("reduction", "reconstruction", "kl"),
    [
        ("text", 14 / 3, 0.5 * 3 / 3),
        ("token", 14 / 5, 0.5 * 3 / 5),
        ("length_weighted", (6 / 3 + 8 / 2 + 0) / 3, 0.5),
    ],
)
def test_what_is_divided_by_what(reduction, reconstruction, kl):
    terms = _terms(reduction, [True, True, True])
    means = {name: (term.sum / term.count).item() for name, term in terms.items()}
    assert means == pytest.approx(
        {
            "reconstruction_loss": reconstruction,
            "kl_loss": kl,
            "reconstruction": 14 / 5,
            "reconstruction_text": 14 / 3,
            "kl": 1.0,
            "kl_free": 1.0,
        }
    )


def test_a_document_that_is_not_there_costs_nothing():
    terms = _terms("text", [True, True, False])
    assert terms["kl"].count == 2 and terms["kl"].sum == 2


def test_losses_of_targets_are_summed_by_document():
    document = torch.tensor([[0, 0, 1, -1], [0, 1, 1, 1]])
    index = torch.tensor([0, 1, 2, 4, 6, 7])
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    assert by_text(values, index, document, 2).tolist() == [[3.0, 4.0], [8.0, 48.0]]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BetaConfig(ceiling=-1), r"beta.ceiling must be finite, 0 or more, got -1"),
        (lambda: BetaConfig(zero_ratio=0.9), r"must not pass 1, got 0.9 \+ 0.25"),
        (lambda: FreeBitsConfig(nats=math.inf), r"free_bits.nats must be finite"),
        (lambda: ElboConfig(window=1), r"elbo.window must be at least 2, got 1"),
    ],
)
def test_values_out_of_range_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()

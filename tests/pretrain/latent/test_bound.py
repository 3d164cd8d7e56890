"""Importance-weighted bounds: an exact marginal, more draws, any batch, and every count."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_pipeline.memory import MemorySplit
from data_pipeline.rows import KINDS
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.causal import CausalTransform
from pretrain.evaluate.bound import TextBounds, bound_nats, partners, text_bounds
from pretrain.evaluate.latent_report import TextSizes, information, report
from pretrain.latent.opened import open_latent
from pretrain.latent.rows import TextRows
from pretrain.latent.texts import shard_texts
from pretrain.models.latent import Posterior

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
VOCABULARY = 64
WIDTH, SIZE = 3, 2


class LinearGaussian:
    """x = W z + b + noise of deviation 0.5, z ~ N(0, I): log p(x) is known.

    A document stands for the x that its first token names. `wrong` is added to the mean of the
    exact posterior, and its variance is doubled where that is not 0.
    """

    backbone_calls = 0

    def __init__(self, wrong: float) -> None:
        draw = torch.Generator().manual_seed(2)
        self.w_XZ = torch.randn(WIDTH, SIZE, generator=draw, dtype=torch.float64)
        self.b_X = torch.randn(WIDTH, generator=draw, dtype=torch.float64)
        self.x_VX = 1.5 * torch.randn(VOCABULARY, WIDTH, generator=draw, dtype=torch.float64)
        self.wrong, self.variance = wrong, 0.25
        self.config = SimpleNamespace(latent=SimpleNamespace(size=SIZE))

    def inputs(self, batch):
        rows = len(batch.ids)
        return {
            "ids": batch.ids,
            "x": self.x_VX[batch.ids[:, 1].long()],
            "exists": torch.ones(rows, 1, dtype=torch.bool),
            "text_kind": torch.full((rows, 1), KINDS.index("whole")),
            "target_index": torch.zeros(0, dtype=torch.int64),
        }

    def encode(self, model, inputs):
        precision = torch.eye(SIZE).double() + self.w_XZ.t() @ self.w_XZ / self.variance
        covariance = torch.linalg.inv(precision)
        mean = (inputs["x"] - self.b_X) @ self.w_XZ / self.variance @ covariance
        # Diagonal, as our posteriors are: W is made so that it is.
        logvar = covariance.diagonal().log() + (math.log(2) if self.wrong else 0)
        return Posterior(mean[:, None] + self.wrong, logvar.expand_as(mean)[:, None])

    def text_nats(self, model, inputs, z_BNZ):
        gap = inputs["x"] - z_BNZ[:, 0].double() @ self.w_XZ.t() - self.b_X
        nats = 0.5 * (gap.square() / self.variance + math.log(2 * math.pi * self.variance)).sum(-1)
        return SimpleNamespace(nats=nats[:, None])

    def exact_nats(self, rows):
        x = self.x_VX[torch.tensor([int(rows.tokens(n)[0]) for n in range(len(rows))])]
        covariance = self.w_XZ @ self.w_XZ.t() + self.variance * torch.eye(WIDTH)
        return -torch.distributions.MultivariateNormal(self.b_X, covariance).log_prob(x)


def toy(wrong: float, samples: int, *, num_texts: int = 40) -> tuple[TextBounds, torch.Tensor]:
    """Bounds of the toy and its exact marginals; W has orthogonal columns."""
    objective = LinearGaussian(wrong)
    objective.w_XZ = torch.linalg.qr(objective.w_XZ)[0]
    ids = [[len(SPECIALS) + n % 50] for n in range(num_texts)]
    transform = CausalTransform(SPECIAL, vocab_size=VOCABULARY, keeps_sources=True)
    rows = TextRows(MemorySplit.from_documents(ids), transform, seed=5, source_tokens=8)
    found = text_bounds(
        torch.nn.Linear(1, 1),
        objective,
        rows,
        samples=samples,
        vocab_size=VOCABULARY,
    )
    return found, objective.exact_nats(rows)


@pytest.mark.parametrize("samples", [1, 7])
def test_with_the_exact_posterior_every_draw_gives_the_marginal(samples):
    found, exact = toy(0.0, samples)
    assert found.iw_nats.tolist() == pytest.approx(exact.tolist(), abs=1e-5)


def test_more_draws_come_nearer_to_the_exact_marginal():
    of_draws = {k: toy(0.4, k, num_texts=2000) for k in (1, 5, 50, 500)}
    gaps = [float((found.iw_nats - exact).mean()) for found, exact in of_draws.values()]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0.2
    assert abs(gaps[-1]) < 0.01
    for samples, (found, _) in of_draws.items():
        above = float((found.elbo_nats - found.iw_nats).mean())
        # One draw is the ELBO in the mean; its KL is exact in the one and drawn in the other.
        assert above == pytest.approx(0.0, abs=0.1) if samples == 1 else above > 0.2


def test_a_bound_is_the_mean_of_probabilities_not_of_logarithms():
    nats, ratio = torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 0.5]])
    expected = -math.log((math.exp(-1.0) + math.exp(-2.5)) / 2)
    assert float(bound_nats(nats, ratio.double())) == pytest.approx(expected)


def test_every_text_gets_the_z_of_another():
    for number in (2, 3, 50):
        partner = partners(number, seed=1)
        assert sorted(partner.tolist()) == list(range(number))
        assert (partner != torch.arange(number)).all()
    assert partners(1, 0).tolist() == [0]


def draws(mu: torch.Tensor, logvar: torch.Tensor, number: int) -> torch.Tensor:
    noise = torch.randn(len(mu), number, mu.shape[1], generator=torch.Generator().manual_seed(3))
    return mu[:, None] + noise * (0.5 * logvar[:, None]).exp()


def test_kl_is_mutual_information_and_marginal_kl():
    random = torch.Generator().manual_seed(1)
    mu, logvar = torch.randn(400, 5, generator=random), torch.rand(400, 5, generator=random) - 2
    kl = float(Posterior(mu, logvar).kl().sum(-1).mean())
    found = information(mu, logvar, draws(mu, logvar, 8))
    total = found.mutual_information_nats + found.marginal_kl_nats
    assert total == pytest.approx(kl, abs=0.1)  # 5 dimensions x 3200 draws: deviation about 0.03
    assert 0 < found.mutual_information_nats < found.mi_ceiling_nats == math.log(400)


def test_information_of_posteriors_that_are_known():
    """Texts far apart say log N; texts that all have the prior say nothing."""
    apart = 100.0 * torch.arange(16)[:, None].expand(16, 3)
    logvar = torch.zeros(16, 3)
    found = information(apart, logvar, draws(apart, logvar, 300))
    assert found.mutual_information_nats == pytest.approx(math.log(16), abs=0.05)
    assert found.active_units == 3
    same = information(torch.zeros(16, 3), logvar, draws(torch.zeros(16, 3), logvar, 300))
    assert same.mutual_information_nats == pytest.approx(0.0, abs=0.05)
    assert same.marginal_kl_nats == pytest.approx(0.0, abs=1e-9)
    assert same.active_units == 0
    half = torch.cat((apart[:, :1], torch.zeros(16, 2)), 1)
    half[:, 1] = 0.14 * (torch.arange(16) % 2)  # variance 0.0052, below 0.01
    assert information(half, logvar, draws(half, logvar, 1)).active_units == 1
    assert information(half[:1], logvar[:1], draws(half[:1], logvar[:1], 1)) is None


@pytest.mark.golden
def test_information_is_that_of_the_published_functions():
    golden = {
        k: torch.from_numpy(v)
        for k, v in np.load(Path(__file__).parents[2] / "golden/vae/latent_metrics.npz").items()
    }
    mu, logvar = golden["mu"], golden["logvar"]
    z = Posterior(mu, logvar).sample(golden["mi_eps"])
    found = information(mu, logvar, z[:, None])
    assert found.mutual_information_nats == pytest.approx(float(golden["mi"]), abs=2e-5)
    assert found.active_units == int(golden["au"])


def two_texts() -> TextBounds:
    """Bounds of 10 and 20 nats; 4 and 6 targets."""
    nats = torch.tensor([10.0, 20.0], dtype=torch.float64)
    zeros = torch.zeros(2, 3)
    return TextBounds(
        iw_nats=nats,
        reconstruction_nats=nats - 1,
        kl_nats=torch.tensor([2.0, 4.0]),
        own_nats=nats,
        shuffled_nats=nats + torch.tensor([1.0, 5.0]),
        without_nats=nats + torch.tensor([2.0, 6.0]),
        num_targets=torch.tensor([4.0, 6.0]),
        kind=torch.tensor([KINDS.index("whole")] * 2),
        mu=zeros,
        logvar=zeros,
        z=zeros[:, None],
    )


def test_perplexities_and_means_by_hand():
    found = report(two_texts(), TextSizes.of(["a bc", "déf"]))
    assert found["nats_per_sentence_iw"] == 15.0
    assert found["nats_per_sentence_elbo"] == 17.0
    assert found["nats_per_token_iw"] == 3.0
    assert found["perplexity_per_token"] == pytest.approx(math.exp(3.0))
    assert (found["num_words"], found["num_bytes"]) == (3 + 2, 8 + 2)
    assert found["perplexity_per_word"] == pytest.approx(math.exp(30 / 5))
    assert found["perplexity_per_byte"] == pytest.approx(math.exp(30 / 10))
    assert found["shuffled_z_extra_nats"] == 3.0
    assert found["without_z_extra_nats"] == 4.0
    assert "by_kind" not in found


def test_the_published_count_has_the_beginning_of_each_text_too():
    found = report(two_texts(), None, "reference")
    assert found["num_tokens"] == 10 + 2
    assert found["perplexity_per_token"] == pytest.approx(math.exp(30 / 12))
    assert found["nats_per_sentence_iw"] == 15.0


def test_kinds_of_blanks_are_reported_apart():
    texts = two_texts()._replace(kind=torch.tensor([1, 3]))
    by_kind = report(texts, None)["by_kind"]
    assert list(by_kind) == [KINDS[1], KINDS[3]]
    assert by_kind[KINDS[3]]["nats_per_token_iw"] == pytest.approx(20 / 6)


@pytest.mark.parametrize("name", ["optimus", "adavae", "glm_vae", "lstm_vae"])
def test_no_batch_size_changes_anything(name, run_of, shards):
    run = open_latent(run_of(name))
    texts = shard_texts(run, shards, "validation", num_texts=9, seed=4)
    for transform in {run.whole_transform(), run.transform()} if run.blanks else [run.transform()]:
        rows = texts.rows(transform)
        assert len(set(rows.lengths_N.tolist())) > 3
        one, four, seven = (
            text_bounds(
                run.model,
                run.objective,
                rows,
                samples=6,
                vocab_size=run.tokenizer.vocab_size,
                batch_texts=size,
            )
            for size in (1, 4, 7)
        )
        for field in TextBounds._fields:
            for other in (four, seven):
                a, b = getattr(one, field), getattr(other, field)
                if field == "without_nats" and name == "lstm_vae":
                    assert a is None is b  # it reads z beside every token
                    continue
                assert torch.allclose(a, b, rtol=2e-5, atol=2e-5), (field, name)


def test_rows_are_those_of_the_documents_in_their_order(shards, run_of):
    run = open_latent(run_of("optimus"))
    rows = shard_texts(run, shards, "validation", num_texts=12).rows(run.transform())
    split = shard_texts(run, shards, "validation").split
    number = np.arange(12)
    lengths = split.lengths(number)
    assert rows.num_cut == int((lengths + 2 > run.source_tokens).sum()) > 0
    joined = [np.concatenate([rows.tokens(i) for i in np.flatnonzero(rows.document_N == n)])
              for n in number]  # fmt: skip
    for n in number:
        expected = split.tokens(number[n : n + 1], np.zeros(1, int), lengths[n : n + 1])
        assert joined[n].tolist() == expected.tolist()
    batch = rows.batch(np.array([3, 1]))
    assert batch.ids.shape == (2, max(rows.lengths_N[[3, 1]]))
    first = batch.ids[0, 1 : 1 + len(rows.tokens(3))]
    assert first.tolist() == rows.tokens(3).tolist()

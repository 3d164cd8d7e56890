"""Importance-weighted bounds of log p(x), text by text, and what they are made of.

    texts = text_bounds(model, objective, rows, samples=100)
    texts.iw_nats.sum() / texts.num_targets.sum()      # at most -log p(x) a token, from above

    log p(x)  >=  log (1/K) sum_k p(x | z_k) p(z_k) / q(z_k | x),      z_k ~ q(z | x)

K = 1 is the ELBO in the mean; the bound rises with K (Burda et al. 2016). The model runs in the
dtype of its weights, everything over z in float64. The K draws of a text are a hash of (seed,
document, number of the draw), so that nothing depends on the batch a text is in.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_pipeline.hashing import key, uniform
from data_pipeline.packing.loader import Batch
from pretrain.latent.rows import TextRows
from pretrain.models.latent import Posterior
from pretrain.objectives.latent import LatentObjective
from pretrain.objectives.latent_inputs import noise_of
from pretrain.objectives.loss import ObjectiveModel

# Scores over the vocabulary that one pass holds: 32 MB in fp32 on a CPU, where more was not faster;
# 2 GB on a GPU, which needs many rows to be busy.
SCORES_AT_ONCE = {"cpu": 1 << 23, "cuda": 1 << 29}
TEXTS_AT_ONCE = 128
DRAWS_KEPT = 8  # of z for each text, over which mutual information is averaged


class TextBounds(NamedTuple):
    """Of N texts, on the CPU; nats in float64."""

    iw_nats: Tensor  # (N,): minus the importance-weighted bound of log p(x)
    reconstruction_nats: Tensor  # (N,): -log p(x | z), the mean over the draws
    kl_nats: Tensor  # (N,): KL(q(z | x) || N(0, I)), exact
    own_nats: Tensor  # (N,): -log p(x | z) with the first draw
    shuffled_nats: Tensor  # (N,): -log p(x | z) with the first draw of another text
    without_nats: Tensor | None  # (N,): -log p(x) where no z is read; None where that cannot be
    num_targets: Tensor  # (N,): sum of the weights
    kind: Tensor  # (N,): index into rows.KINDS
    mu: Tensor  # (N, Z)
    logvar: Tensor  # (N, Z)
    z: Tensor  # (N, S, Z): the first S draws

    @property
    def elbo_nats(self) -> Tensor:
        """Minus the ELBO of each text: (N,)."""
        return self.reconstruction_nats + self.kl_nats

    def take(self, chosen_N: Tensor) -> "TextBounds":
        """Those of some texts, by a mask or by numbers."""
        known = {name: t for name, t in self._asdict().items() if t is not None}
        return self._replace(**{name: t[chosen_N] for name, t in known.items()})


def log_ratio(posterior: Posterior, noise: Tensor) -> Tensor:
    """log p(z) - log q(z | x) at z = mu + noise exp(logvar / 2): (...), in float64.

    posterior, noise: (..., Z). The constants of the two normals cancel.
    """
    mu, logvar, noise = (t.double() for t in (*posterior, noise))
    z = mu + noise * torch.exp(0.5 * logvar)
    return 0.5 * (noise.square() + logvar - z.square()).sum(-1)


def bound_nats(nats_BK: Tensor, log_ratio_BK: Tensor) -> Tensor:
    """Minus the importance-weighted bound from K draws: (B,). nats: -log p(x | z_k)."""
    num_draws = nats_BK.shape[1]
    return math.log(num_draws) - torch.logsumexp(log_ratio_BK - nats_BK.double(), 1)


@torch.no_grad()
def text_bounds(
    model: ObjectiveModel,
    objective: LatentObjective,
    rows: TextRows,
    *,
    samples: int,
    vocab_size: int,
    batch_texts: int | None = None,
    seed: int = 0,
) -> TextBounds:
    """The bounds of all texts, in the order of `rows`; the model must be in evaluation mode.

    samples: K. vocab_size: scores a target. batch_texts: rows that go through the model together;
    None: what fits well. seed: of the order in which texts get each other's z.
    """
    posterior, noise, kind = _read(model, objective, rows, samples, batch_texts or TEXTS_AT_ONCE)
    partner, device = partners(len(rows), seed), next(model.parameters()).device
    z_NSZ = _each(posterior).sample(noise)
    nats, ratio = (torch.zeros(len(rows), samples, dtype=torch.float64) for _ in range(2))
    shuffled = torch.zeros(len(rows), dtype=torch.float64)
    without = torch.zeros_like(shuffled) if objective.backbone_calls else None
    for index in rows.in_batches(batch_texts or TEXTS_AT_ONCE):
        width = int(rows.lengths_N[index].max())
        fitting = SCORES_AT_ONCE.get(device.type, SCORES_AT_ONCE["cpu"]) // (vocab_size * width)
        most = batch_texts or max(1, fitting)
        for some in np.split(index, range(most, len(index), most)):
            batch = rows.batch(some)
            inputs = objective.inputs(batch)
            own = Posterior(*(t[some] for t in posterior))
            drawn = _noise(batch, samples, z_NSZ.shape[-1])
            ratio[some] = log_ratio(_each(own), drawn)
            nats[some] = draw_nats(model, objective, inputs, _each(own).sample(drawn), most)
            others = z_NSZ[partner[some], :1]
            shuffled[some] = draw_nats(model, objective, inputs, others, most)[:, 0]
            if without is not None:
                on_device = {name: t.to(device) for name, t in inputs.items()}
                nats_B1 = objective.text_nats(model, on_device, None).nats
                without[some] = nats_B1[:, 0].double().cpu()
    return TextBounds(
        iw_nats=bound_nats(nats, ratio),
        reconstruction_nats=nats.mean(1),
        kl_nats=Posterior(posterior.mu.double(), posterior.logvar.double()).kl().sum(-1),
        own_nats=nats[:, 0],
        shuffled_nats=shuffled,
        without_nats=without,
        num_targets=torch.from_numpy(rows.num_targets_N).double(),
        kind=kind,
        mu=posterior.mu,
        logvar=posterior.logvar,
        z=z_NSZ,
    )


def partners(num_texts: int, seed: int) -> Tensor:
    """Whose z each text gets instead of its own: one circle through all texts, drawn by a hash."""
    numbers = np.arange(num_texts)
    drawn = uniform(key(seed, 0, numbers, np.zeros_like(numbers)), 0)
    circle = np.argsort(drawn, kind="stable")
    partner = np.empty(num_texts, np.int64)
    partner[circle] = np.roll(circle, -1)
    return torch.from_numpy(partner)


def draw_nats(
    model: ObjectiveModel,
    objective: LatentObjective,
    inputs: Mapping[str, Tensor],
    z_BKZ: Tensor,
    most_rows: int,
) -> Tensor:
    """-log p(x | z_k) of B texts in rows of their own, for K draws each: float64 (B, K) on the CPU.

    At most `most_rows` rows go through the model at once, or B where that is more.
    """
    device = next(model.parameters()).device
    num_texts = len(z_BKZ)
    step = max(1, most_rows // num_texts)
    parts = []
    for z_BSZ in z_BKZ.split(step, 1):
        times = z_BSZ.shape[1]
        several = {n: t.to(device) for n, t in repeated(inputs, times).items()}
        z_RZ = z_BSZ.transpose(0, 1).flatten(0, 1)
        nats = objective.text_nats(model, several, z_RZ[:, None].to(device)).nats
        parts.append(nats[:, 0].view(times, num_texts).t().cpu())
    return torch.cat(parts, 1).double()


def repeated(inputs: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    """The rows of `inputs` several times over, one copy of them all behind the other."""
    num_rows, num_tokens = inputs["ids"].shape
    more = {}
    for name, values in inputs.items():
        is_scalar = values.dim() == 0
        more[name] = values if is_scalar else values.repeat(times, *[1] * (values.dim() - 1))
    first = torch.arange(times).repeat_interleave(len(inputs["target_index"]))
    more["target_index"] = more["target_index"] + first * (num_rows * num_tokens)
    return more


def _each(posterior: Posterior) -> Posterior:
    """Beside several draws of each text: (N, 1, Z)."""
    return Posterior(*(t[:, None] for t in posterior))


def _noise(batch: Batch, num_draws: int, size: int) -> Tensor:
    """Of the first so many draws of texts in rows of their own: (B, draws, Z)."""
    return noise_of(batch, num_draws * size)[:, 0].unflatten(-1, (num_draws, size))


def _read(
    model: ObjectiveModel,
    objective: LatentObjective,
    rows: TextRows,
    samples: int,
    batch_texts: int,
) -> tuple[Posterior, Tensor, Tensor]:
    """Posterior (N, Z), the noise of each text's first draws, and its kind, on the CPU."""
    device = next(model.parameters()).device
    size, num_draws = objective.config.latent.size, min(samples, DRAWS_KEPT)
    mu, logvar = (torch.zeros(len(rows), size) for _ in range(2))
    noise = torch.zeros(len(rows), num_draws, size)
    kind = torch.zeros(len(rows), dtype=torch.int64)
    for index in rows.in_batches(batch_texts):
        batch = rows.batch(index)
        inputs = objective.inputs(batch)
        found = objective.encode(model, {n: t.to(device) for n, t in inputs.items()})
        mu[index], logvar[index] = (t[:, 0].float().cpu() for t in found)
        noise[index] = _noise(batch, num_draws, size)
        kind[index] = inputs["text_kind"][:, 0]
    return Posterior(mu, logvar), noise, kind

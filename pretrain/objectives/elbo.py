"""The evidence lower bound as a loss: beta over the updates, free bits, what is divided by what.

    beta(30, steps=100, config=BetaConfig())            # a pure function, nothing to save
    terms = elbo_terms(posterior, per_text, beta, config)

With rec_i the nats of text i given z and KL_i = KL(q(z | x_i) || N(0, I)), the loss is the mean
over texts of rec_i + beta KL_i, or what ElboConfig.reduction says; all in fp32 at least.
Bowman et al. 2016; cyclical beta: Fu et al. 2019; free bits: Kingma et al. 2016, Li et al. 2020.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pretrain.models.latent import Posterior
from pretrain.objectives.alarm import CollapseAlarm
from pretrain.objectives.loss import LossTerm
from pretrain.settings.elbo_config import AlarmConfig, BetaConfig, ElboConfig, FreeBitsConfig

OPTIMISED = ("reconstruction_loss", "kl_loss")


def beta(update: int, *, steps: int, config: BetaConfig) -> float:
    """The factor of the KL term in update number `update` (from 0) of a run of `steps` updates.

    Cyclical as Optimus' code has it: cycles of steps / cycles updates (no whole number in general)
    begin at their integer parts; in each, beta is 0 while i < zero_ratio x period for the i-th
    update of the cycle, then 0 once more and up by ceiling / (increase_ratio x period) an update.
    """
    if config.schedule == "constant":
        return config.ceiling
    is_cyclical = config.schedule == "cyclical"
    period = steps / config.cycles if is_cyclical else float(steps)
    zero_updates = math.ceil(period * config.zero_ratio) if is_cyclical else 0
    started = 0
    if is_cyclical:
        cycle = min(int((update + 1) / period), config.cycles - 1)
        while int(cycle * period) > update:
            cycle -= 1
        started = int(cycle * period)
    risen = max(update - started - zero_updates, 0)
    return config.ceiling * min(1.0, risen / (period * config.increase_ratio))


def free_kl(kl: Tensor, config: FreeBitsConfig) -> Tensor:
    """What of the KL (..., Z) costs something, by text (...)."""
    if config.mode == "hinge":
        return kl.clamp(min=config.nats).sum(-1)
    if config.mode == "mask":
        return (kl * (kl > config.nats)).sum(-1)
    if config.mode == "total":
        return kl.sum(-1).clamp(min=config.nats)
    return kl.sum(-1)


class TextLosses(NamedTuple):
    """Losses of N documents a row: nats of their targets (weighted), the sum of the weights, and
    which documents are there; (B, N) each."""

    nats: Tensor
    weights: Tensor
    exists: Tensor


def by_text(
    values_T: Tensor, target_index_T: Tensor, document_BT: Tensor, num_documents: int
) -> Tensor:
    """Values of targets (T,) summed by document: (B, N). target_index_T: b x T + t of each."""
    num_rows, num_tokens = document_BT.shape
    row_T = target_index_T // num_tokens
    place_T = row_T * num_documents + document_BT.flatten()[target_index_T]
    sums = values_T.new_zeros(num_rows * num_documents)
    return sums.index_add(0, place_T, values_T).view(num_rows, num_documents)


def elbo_now(config: ElboConfig, alarm: CollapseAlarm, *, is_training: bool) -> ElboConfig:
    """The loss as it stands: the alarm may have raised the free bits; an evaluation has none."""
    if not is_training:
        return replace(config, free_bits=FreeBitsConfig(), alarm=AlarmConfig())
    return replace(config, free_bits=alarm.raised(config.free_bits))


def elbo_counts(weights_N: Tensor, exists_BN: Tensor, config: ElboConfig) -> dict[str, Tensor]:
    """What each optimised term is divided by, over the whole update: targets or texts."""
    return _counts(weights_N.sum(), exists_BN.sum().float(), config)


def _counts(num_targets: Tensor, num_texts: Tensor, config: ElboConfig) -> dict[str, Tensor]:
    of_reconstruction = num_targets if config.reduction in ("token", "separate") else num_texts
    of_kl = num_targets if config.reduction == "token" else num_texts
    return dict(zip(OPTIMISED, (of_reconstruction, of_kl), strict=True))


def elbo_terms(
    posterior: Posterior, texts: TextLosses, beta: Tensor, config: ElboConfig
) -> dict[str, LossTerm]:
    """The optimised terms with their graph, and those that are reported without one.

    reconstruction: nats a target; reconstruction_text and kl, the true KL: nats a text; kl_free:
    the KL that costs something.
    """
    exists, nats = texts.exists, texts.nats
    kl_BNZ = posterior.kl()
    costs_BN = free_kl(kl_BNZ, config.free_bits) * exists
    num_targets, num_texts = texts.weights.sum(), exists.sum().to(nats.dtype)
    counts = _counts(num_targets, num_texts, config)
    lost = nats
    if config.reduction == "length_weighted":
        lost = nats / texts.weights.clamp(min=torch.finfo(nats.dtype).tiny)
        lost = torch.where(texts.weights > 0, lost, 0.0)
    optimised = (lost.sum(), (beta * costs_BN).sum())
    terms = {name: LossTerm(v, counts[name]) for name, v in zip(OPTIMISED, optimised, strict=True)}
    reported = {
        "reconstruction": (nats.sum(), num_targets),
        "reconstruction_text": (nats.sum(), num_texts),
        "kl": ((kl_BNZ.sum(-1) * exists).sum(), num_texts),
        "kl_free": (costs_BN.sum(), num_texts),
    }
    return terms | {name: LossTerm(s.detach(), n) for name, (s, n) in reported.items()}

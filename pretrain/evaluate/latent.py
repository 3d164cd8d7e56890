"""What the held-out texts of all ranks say about a latent space, the same on every rank.

held_out_nats fills each objective's window as it evaluates; this empties it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from data_pipeline.rows import KINDS
from pretrain.distributed.world import World
from pretrain.models.latent import Posterior
from pretrain.objectives.health import Health, scalars_of

MAX_TEXTS = 2048  # of which a mixture of N densities at N points is taken; its ceiling is log N


class HeldOutLatents(NamedTuple):
    """What is reported after an evaluation."""

    scalars: dict[str, float]  # see health.scalars_of
    kl_by_dimension: list[float]  # mean KL of each dimension in nats


def held_out_latents(health: Health, world: World) -> HeldOutLatents | None:
    """Of the texts that were evaluated since the last call, at most MAX_TEXTS; None without any.

    A collective.
    """
    held = health.held_out.texts()
    health.held_out.clear()
    plain = None if held is None else tuple(t[:MAX_TEXTS] for t in held)
    texts = [texts for texts in world.gather(plain) if texts is not None]
    if not texts:
        return None
    mu, logvar, z, kind = (torch.cat(parts) for parts in zip(*_in_turn(texts), strict=True))
    kl_Z = Posterior(mu, logvar).kl().mean(0)
    return HeldOutLatents(scalars_of(mu, logvar, z, kind, KINDS), kl_Z.tolist())


def _in_turn(texts: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """At most MAX_TEXTS in all, equally many of each rank."""
    share = -(-MAX_TEXTS // len(texts))
    return [tuple(t[:share] for t in of_rank) for of_rank in texts]

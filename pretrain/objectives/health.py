"""Whether a latent space is used: active units and mutual information over recent texts.

    health.note(posterior, z, exists, kinds, is_training=True)      # in every forward pass
    health.training.scalars(KINDS)["mutual_information_nats"]

Active units: dimensions whose posterior mean varies over texts by 0.01 or more (Burda et al. 2016).
Mutual information of x and z under q (Hoffman and Johnson 2016; Dai and Lei 2019), with one z a
text and the mixture of all N posteriors, its own included:

    mean_i log q(z_i | x_i)  -  mean_i log (1/N) sum_j q(z_i | x_j)      at most log N

so that it compares only at equal N: log N stands beside it. KL = MI + KL of the mixture to the
prior (the marginal KL). In float64, since a mixture of N densities in Z dimensions spans orders.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pretrain.models.latent import Posterior

ACTIVE_VARIANCE = 0.01
LOG_2PI = math.log(2 * math.pi)
DENSITIES_AT_ONCE = 1 << 20  # 8 MB in float64: with 40 MB the mixture takes four times as long


def active_units(mu_NZ: Tensor) -> int:
    """Dimensions whose mean varies over N texts (unbiased variance) by ACTIVE_VARIANCE or more."""
    return int((mu_NZ.double().var(0) >= ACTIVE_VARIANCE).sum())


def mutual_information_nats(mu_NZ: Tensor, logvar_NZ: Tensor, z_NZ: Tensor) -> float:
    """I(x; z) under q over N texts, with one z of each text's posterior.

    The negative entropy of each posterior is exact, the mixture is estimated at the given z.
    """
    mu, logvar, z = (t.double() for t in (mu_NZ, logvar_NZ, z_NZ))
    negative_entropy = -0.5 * (LOG_2PI + 1.0 + logvar).sum(-1).mean()
    return float(negative_entropy - mixture_log_density(z, mu, logvar).mean())


def mixture_log_density(z_MZ: Tensor, mu_NZ: Tensor, logvar_NZ: Tensor) -> Tensor:
    """log (1/N) sum_j q(z_i | x_j) for each z: (M,).

    -(z - mu)^2 / 2 e^logvar, multiplied out, is a matrix product of [z^2, z]: (M, N, Z) never
    stands anywhere, and of (M, N) as many rows as DENSITIES_AT_ONCE admits.
    """
    precision_NZ = torch.exp(-logvar_NZ)
    factors_N2Z = torch.cat((-0.5 * precision_NZ, mu_NZ * precision_NZ), 1)
    of_mu_N = (mu_NZ.square() * precision_NZ).sum(-1)
    constant_N = -0.5 * (of_mu_N + logvar_NZ.sum(-1) + mu_NZ.shape[1] * LOG_2PI)
    num_rows = max(1, DENSITIES_AT_ONCE // len(mu_NZ))
    sums = [
        torch.addmm(constant_N, torch.cat((some.square(), some), 1), factors_N2Z.t()).logsumexp(1)
        for some in z_MZ.split(num_rows)
    ]
    return torch.cat(sums) - math.log(len(mu_NZ))


class Window:
    """Posteriors and draws of the last `size` texts, with the kind of blank of each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: list[tuple[Tensor, ...]] = []

    def add(self, mu_NZ: Tensor, logvar_NZ: Tensor, z_NZ: Tensor, kind_N: Tensor) -> None:
        """Remember some texts; the oldest of more than `size` are forgotten."""
        self._held.append((mu_NZ, logvar_NZ, z_NZ, kind_N))
        while sum(len(h[3]) for h in self._held[1:]) >= self.size:
            del self._held[0]

    def clear(self) -> None:
        """Forget all of them."""
        self._held = []

    def texts(self) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """mu, logvar, z (N, Z) and kind (N,) on the CPU; None where there are no texts."""
        if not self._held:
            return None
        mu, logvar, z, kind = (
            torch.cat(parts)[-self.size :].cpu() for parts in zip(*self._held, strict=True)
        )
        return mu, logvar, z, kind

    def scalars(self, kinds: Sequence[str]) -> dict[str, float]:
        """`scalars_of` the texts held."""
        texts = self.texts()
        return {} if texts is None else scalars_of(*texts, kinds)


class Health:
    """What has been seen of the posteriors: in training a rolling window, in evaluation all."""

    def __init__(self, size: int) -> None:
        self.training = Window(size)
        self.held_out = Window(1 << 62)

    @torch.no_grad()
    def note(
        self,
        posterior: Posterior,
        z_BNZ: Tensor,
        exists_BN: Tensor,
        kind_BN: Tensor,
        *,
        is_training: bool,
    ) -> None:
        """Remember the documents that are there. Nothing is copied off the device here."""
        values = (t.detach()[exists_BN] for t in (*posterior, z_BNZ, kind_BN))
        (self.training if is_training else self.held_out).add(*values)


def scalars_of(
    mu_NZ: Tensor, logvar_NZ: Tensor, z_NZ: Tensor, kind_N: Tensor, kinds: Sequence[str]
) -> dict[str, float]:
    """active_units, mutual_information_nats and its ceiling log N, marginal_kl_nats; with several
    kinds of blanks the first three for each too. Nothing where there are fewer than two texts."""
    found = _of_texts(mu_NZ, logvar_NZ, z_NZ)
    present = [number for number in kind_N.unique().tolist() if number]
    if len(present) > 1:
        for number in present:
            chosen = kind_N == number
            of_kind = _of_texts(mu_NZ[chosen], logvar_NZ[chosen], z_NZ[chosen])
            of_kind.pop("marginal_kl_nats", None)
            found |= {f"{kinds[number]}_{name}": value for name, value in of_kind.items()}
    return found


def _of_texts(mu_NZ: Tensor, logvar_NZ: Tensor, z_NZ: Tensor) -> dict[str, float]:
    if len(mu_NZ) < 2:
        return {}
    mi = mutual_information_nats(mu_NZ, logvar_NZ, z_NZ)
    kl = float(Posterior(mu_NZ.double(), logvar_NZ.double()).kl().sum(-1).mean())
    return {
        "active_units": float(active_units(mu_NZ)),
        "mutual_information_nats": mi,
        "mutual_information_ceiling_nats": math.log(len(mu_NZ)),
        "marginal_kl_nats": kl - mi,
    }

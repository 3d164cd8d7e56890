"""One door to every op, and which implementation stands behind it.

    latent_memory_attention   reference (einsum, the oracle) | sdpa (torch's fused attention)
    embedding_2d              reference (plain torch) whatever the choice

The choice is made once per process and logged once: an argument `backend=` wins over the
environment variable KERNELS_BACKEND, which wins over the default.

    >>> out_BTHK = latent_memory_attention(q_BTHK, k_BTHK, v_BTHK, Visibility(lo, hi, document))
"""

import logging
import os
from functools import cache

from torch import Tensor

from kernels.attention import reference, sdpa
from kernels.position2d.reference import embedding_2d
from kernels.visibility import Visibility

__all__ = ["BACKENDS", "choose_backend", "embedding_2d", "latent_memory_attention"]

ENVIRONMENT_VARIABLE = "KERNELS_BACKEND"
BACKENDS = ("reference", "sdpa")
DEFAULT_BACKEND = "sdpa"
_ATTENTION = {
    "reference": reference.latent_memory_attention,
    "sdpa": sdpa.latent_memory_attention,
}
_log = logging.getLogger(__name__)


@cache
def choose_backend(requested: str | None = None) -> str:
    """The backend of this process: `requested`, else KERNELS_BACKEND, else sdpa.

    Raises ValueError when the one asked for does not exist.
    """
    asked_by, name = "backend", requested
    if name is None:
        asked_by, name = ENVIRONMENT_VARIABLE, os.environ.get(ENVIRONMENT_VARIABLE) or None
    if name is None:
        asked_by, name = "default", DEFAULT_BACKEND
    if name not in BACKENDS:
        raise ValueError(
            f"{asked_by} must be one of {', '.join(BACKENDS)}, got {name!r}. "
            f"Leave it out to get {DEFAULT_BACKEND}."
        )
    _log.info("attention runs on the %s backend (%s)", name, asked_by)
    return name


def latent_memory_attention(
    q_BTHK: Tensor,
    k_BSHK: Tensor,
    v_BSHK: Tensor,
    visibility: Visibility,
    *,
    latent_k: Tensor | None = None,
    latent_v: Tensor | None = None,
    dropout_prob: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    """Attention of every query to the keys it sees: (B, T, H, K); 0 for padding.

    q, k, v: (B, T, H, K), any strides; k and v (B, S, H, K) where visibility says num_keys = S (a
    cache). latent_k, latent_v: M slots for each of the N documents of a row, (B, N, M, H, K), that
    all queries of the document (number visibility.document of its row, 0 .. N - 1) see beside their
    keys; without latent_v the keys are the values too. dropout_prob: dropout on the attention
    weights; pass 0 outside of training. backend: one of BACKENDS; None follows choose_backend.
    Raises ValueError for latents of a shape that does not fit q.
    """
    _check_latents(q_BTHK, latent_k, latent_v)
    op = _ATTENTION[choose_backend(backend)]
    return op(
        q_BTHK,
        k_BSHK,
        v_BSHK,
        visibility,
        latent_k=latent_k,
        latent_v=latent_v,
        dropout_prob=dropout_prob,
    )


def _check_latents(q_BTHK: Tensor, latent_k: Tensor | None, latent_v: Tensor | None) -> None:
    if latent_k is None:
        if latent_v is not None:
            raise ValueError("latent_v came without latent_k. Pass both, or latent_k alone.")
        return
    num_rows, _, heads, width = q_BTHK.shape
    for name, latent in (("latent_k", latent_k), ("latent_v", latent_v)):
        if latent is None:
            continue
        fits = latent.dim() == 5 and latent.shape[:3] == latent_k.shape[:3]
        if not fits or (latent.shape[0], *latent.shape[3:]) != (num_rows, heads, width):
            raise ValueError(
                f"{name} must be (rows, documents, slots, heads, width of a head) with {num_rows} "
                f"rows, {heads} heads and width {width}, as q has, got {tuple(latent.shape)}."
            )

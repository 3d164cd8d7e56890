"""One door to every op, and which implementation stands behind it.

    attention      reference (einsum, the oracle) | sdpa (torch's fused attention, the default)
    embedding_2d   reference (plain torch) whatever the choice

The choice is made once per process and logged once: an argument `backend=` wins over the
environment variable KERNELS_BACKEND, which wins over the default.

    >>> out_BTHK = attention(q_BTHK, k_BTHK, v_BTHK, Visibility(lo, hi, document))
"""

import logging
import os
from functools import cache

from torch import Tensor

from kernels.attention import reference, sdpa
from kernels.position2d.reference import embedding_2d
from kernels.visibility import Visibility

__all__ = ["BACKENDS", "attention", "choose_backend", "embedding_2d"]

ENVIRONMENT_VARIABLE = "KERNELS_BACKEND"
BACKENDS = ("reference", "sdpa")
DEFAULT_BACKEND = "sdpa"
_ATTENTION = {"reference": reference.attention, "sdpa": sdpa.attention}
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


def attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHK: Tensor,
    visibility: Visibility,
    *,
    dropout_prob: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    """Attention of every query to the keys it sees: (B, T, H, K); 0 for padding.

    q, k, v: (B, T, H, K), any strides; k and v (B, S, H, K) where visibility says num_keys = S (a
    cache). dropout_prob: dropout on the attention weights; pass 0 outside of training. backend: one
    of BACKENDS; None follows choose_backend.
    """
    op = _ATTENTION[choose_backend(backend)]
    return op(q_BTHK, k_BTHK, v_BTHK, visibility, dropout_prob=dropout_prob)

"""One door to every op, and which implementation stands behind it.

    latent_memory_attention   reference (einsum, the oracle) | sdpa (torch's own) | triton
    embedding_2d              reference (plain torch) | triton

Left to itself the choice is triton for tensors on a CUDA device where triton is installed,
reference for float64 and sdpa for the rest. The argument `backend=` wins over the environment
variable KERNELS_BACKEND, which wins over that. It is made once for each device and dtype, and
logged once; so is every kind of call that the kernels leave to sdpa (`left_to_sdpa`).

    >>> out_BTHK = latent_memory_attention(q_BTHK, k_BTHK, v_BTHK, Visibility(lo, hi, document))
"""

import importlib.util
import logging
import os
from functools import cache

import torch
from torch import Tensor

from kernels.attention import operators, reference, sdpa
from kernels.position2d import operators as embedding_operators
from kernels.position2d import reference as embedding_reference
from kernels.visibility import Visibility

__all__ = ["BACKENDS", "choose_backend", "embedding_2d", "latent_memory_attention"]

ENVIRONMENT_VARIABLE = "KERNELS_BACKEND"
BACKENDS = ("reference", "sdpa", "triton")
MAX_SLOTS = 4  # of the attention kernel
HEAD_WIDTHS = (32, 64, 80, 96, 128)
_ATTENTION = {
    "reference": reference.latent_memory_attention,
    "sdpa": sdpa.latent_memory_attention,
    "triton": operators.latent_memory_attention,
}
_log = logging.getLogger(__name__)


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
    name = choose_backend(backend, q_BTHK.device.type, q_BTHK.dtype)
    if name == "triton":
        num_slots = 0 if latent_k is None else latent_k.shape[2]
        reason = left_to_sdpa(
            num_slots, q_BTHK.shape[-1], dropout_prob > 0, visibility.num_keys is not None
        )
        name = "sdpa" if reason else name
    return _ATTENTION[name](
        q_BTHK,
        k_BSHK,
        v_BSHK,
        visibility,
        latent_k=latent_k,
        latent_v=latent_v,
        dropout_prob=dropout_prob,
    )


def embedding_2d(
    ids_BT: Tensor,
    position_BT: Tensor,
    block_position_BT: Tensor | None,
    token_table_VD: Tensor,
    position_table_PD: Tensor,
    block_table_PD: Tensor | None,
    *,
    token_type: Tensor | None = None,
    type_table: Tensor | None = None,
    latent: Tensor | None = None,
    document: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    norm_eps: float = 1e-12,
    dropout_prob: float = 0.0,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Embedding of every token, (B, T, D): the sum of table rows and what may follow it. And the
    edge of the token table, (V, D), for a head that is tied to it (position2d/tied.py).

    A table that is None, with its indices None, adds nothing. latent: what each of the N documents
    of a row adds to all its tokens, (B, N, D), found by `document`; padding (-1) gets none.
    LayerNorm follows where norm_weight and norm_bias are given, then dropout where dropout_prob is
    above 0 (pass 0 outside of training). On a CPU an index beyond its table is an IndexError; on a
    GPU it is not looked at: callers check first (see Backbone).
    """
    name = choose_backend(backend, token_table_VD.device.type, token_table_VD.dtype)
    op = embedding_operators if name == "triton" else embedding_reference
    return op.embedding_2d(
        ids_BT,
        position_BT,
        block_position_BT,
        token_table_VD,
        position_table_PD,
        block_table_PD,
        token_type=token_type,
        type_table=type_table,
        latent=latent,
        document=document,
        norm_weight=norm_weight,
        norm_bias=norm_bias,
        norm_eps=norm_eps,
        dropout_prob=dropout_prob,
    )


# torch.compile asks these two while it traces and keeps the answer; cached ones it would trace.
@torch.compiler.assume_constant_result
def choose_backend(
    requested: str | None = None, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> str:
    """The backend for tensors of `dtype` on a `device` (its type): see the top of this file.

    Raises ValueError when the one asked for does not exist, or cannot work there.
    """
    return _choice(requested, device, dtype)


@torch.compiler.assume_constant_result
def left_to_sdpa(
    num_slots: int, head_width: int, has_dropout: bool, reads_a_cache: bool
) -> str | None:
    """Why the attention kernel leaves such a call to sdpa, logged; None where it does not."""
    return _left_to_sdpa(num_slots, head_width, has_dropout, reads_a_cache)


@cache
def _choice(requested: str | None, device: str, dtype: torch.dtype) -> str:
    asked_by, name = "backend", requested
    if name is None:
        asked_by, name = ENVIRONMENT_VARIABLE, os.environ.get(ENVIRONMENT_VARIABLE) or None
    if name is None:
        name, asked_by = _default(device, dtype)
    elif name not in BACKENDS:
        raise ValueError(
            f"{asked_by} must be one of {', '.join(BACKENDS)}, got {name!r}. "
            f"Leave it out to get what suits the device."
        )
    elif name == "triton":
        _check_triton(asked_by, device, dtype)
    _say(name, asked_by)
    return name


@cache
def _left_to_sdpa(
    num_slots: int, head_width: int, has_dropout: bool, reads_a_cache: bool
) -> str | None:
    reason = None
    if has_dropout:
        reason = "dropout on attention weights (set it to 0 to get the kernel)"
    elif num_slots > MAX_SLOTS:
        reason = f"{num_slots} latent slots a document (the kernel takes up to {MAX_SLOTS})"
    elif head_width not in HEAD_WIDTHS:
        reason = f"heads {head_width} wide (the kernel takes {', '.join(map(str, HEAD_WIDTHS))})"
    elif reads_a_cache:
        reason = "fewer queries than keys (a cache)"
    if reason is not None:
        _log.info("attention with %s runs on the sdpa backend", reason)
    return reason


@cache
def _say(name: str, asked_by: str) -> None:
    _log.info("attention and embedding run on the %s backend (%s)", name, asked_by)


def _default(device: str, dtype: torch.dtype) -> tuple[str, str]:
    """The backend where nobody asks for one, and why."""
    if dtype == torch.float64:
        return "reference", "float64"
    if device != "cuda":
        return "sdpa", "default"
    if not _has_triton():
        return "sdpa", "triton is not installed, so T x T masks are built: pip install triton"
    if torch.version.cuda is None or torch.cuda.get_device_capability() < (8, 0):
        return "sdpa", "the kernels want an NVIDIA GPU of compute capability 8.0 or above"
    return "triton", "CUDA"


def _check_triton(asked_by: str, device: str, dtype: torch.dtype) -> None:
    if not _has_triton():
        raise ValueError(
            f"{asked_by} is triton, but the package triton is not installed. "
            f"Run: pip install triton. Or leave {asked_by} out."
        )
    if dtype == torch.float64:
        raise ValueError(
            f"{asked_by} is triton, which computes in fp32, but got float64 tensors. "
            f"Use the reference backend for them, or fp32, fp16 or bf16."
        )
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            f"{asked_by} is triton, which needs a CUDA device, but got {device} tensors. Leave "
            f"{asked_by} out, or set TRITON_INTERPRET=1 to run the kernels, slowly, in triton's "
            f"interpreter."
        )


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


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

"""Attention with slots as operators of torch: palimpsest::latent_attention and its gradient.

An operator is what torch.compile keeps whole and opcheck can examine. Its CUDA implementation are
the Triton kernels; on CPU tensors it runs the same kernels in triton's interpreter where
TRITON_INTERPRET=1 is set, and the formulas of plain.py otherwise.
"""

import os

import torch
from torch import Tensor

from kernels.attention import plain
from kernels.visibility import Visibility


def latent_memory_attention(
    q_BTHK: Tensor,
    k_BSHK: Tensor,
    v_BSHK: Tensor,
    visibility: Visibility,
    *,
    latent_k: Tensor | None = None,
    latent_v: Tensor | None = None,
    dropout_prob: float = 0.0,
) -> Tensor:
    """See kernels.attention.reference.latent_memory_attention; dropout is left to others."""
    assert dropout_prob == 0.0, "the kernel has no dropout: choose_backend takes another"
    if latent_k is None:
        batch, _, heads, width = q_BTHK.shape
        latent_k = q_BTHK.new_empty(batch, 0, 0, heads, width)
    latent_v = latent_k if latent_v is None else latent_v
    out_BTHK, _ = latent_attention(
        q_BTHK,
        k_BSHK,
        v_BSHK,
        latent_k,
        latent_v,
        *visibility.query_intervals(),
        *visibility.key_intervals(),
        visibility.document,
        *visibility.document_bounds(latent_k.shape[1]),
    )
    return out_BTHK


@torch.library.custom_op("palimpsest::latent_attention", mutates_args=(), device_types="cpu")
def latent_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    latent_k: Tensor,
    latent_v: Tensor,
    lo: Tensor,
    hi: Tensor,
    key_lo: Tensor,
    key_hi: Tensor,
    document: Tensor,
    document_first: Tensor,
    document_stop: Tensor,
) -> tuple[Tensor, Tensor]:
    """out (B, T, H, K) and the log-sum (B, H, T) fp32, which has no gradient; see plain.forward.

    key_lo, key_hi, document_first, document_stop: see Visibility; only the gradient reads them.
    """
    implementation = plain
    if _interpreted():
        from kernels.attention import launch as implementation
    return implementation.forward(q, k, v, latent_k, latent_v, lo, hi, document)


@latent_attention.register_kernel("cuda")
def _(q, k, v, latent_k, latent_v, lo, hi, key_lo, key_hi, document, document_first, document_stop):
    from kernels.attention import launch

    return launch.forward(q, k, v, latent_k, latent_v, lo, hi, document)


@latent_attention.register_fake
def _(q, k, v, latent_k, latent_v, lo, hi, key_lo, key_hi, document, document_first, document_stop):
    batch, num_queries, heads, width = q.shape
    out = q.new_empty(batch, num_queries, heads, width)
    return out, q.new_empty(batch, heads, num_queries, dtype=torch.float32)


@torch.library.custom_op(
    "palimpsest::latent_attention_backward", mutates_args=(), device_types="cpu"
)
def latent_attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    latent_k: Tensor,
    latent_v: Tensor,
    out: Tensor,
    lse: Tensor,
    lo: Tensor,
    hi: Tensor,
    key_lo: Tensor,
    key_hi: Tensor,
    document: Tensor,
    document_first: Tensor,
    document_stop: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, latent_k and latent_v; see plain.backward."""
    if not _interpreted():
        return plain.backward(dout, q, k, v, latent_k, latent_v, out, lse, lo, hi, document)
    return _backward_kernels(
        dout, q, k, v, latent_k, latent_v, out, lse, lo, hi, key_lo, key_hi, document,
        document_first, document_stop,
    )  # fmt: skip


@latent_attention_backward.register_kernel("cuda")
def _backward_kernels(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from kernels.attention import launch

    return launch.backward(*tensors)


@latent_attention_backward.register_fake
def _(dout, q, k, v, latent_k, latent_v, *rest):
    return tuple(t.new_empty(t.shape) for t in (q, k, v, latent_k, latent_v))


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, *output)


def _gradients(ctx, dout: Tensor, dlse: Tensor | None):
    q, k, v, latent_k, latent_v, *intervals, out, lse = ctx.saved_tensors
    gradients = latent_attention_backward(
        dout, q, k, v, latent_k, latent_v, out, lse, *intervals
    )  # fmt: skip
    return (*gradients, *(None for _ in intervals))


latent_attention.register_autograd(_gradients, setup_context=_save)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"

"""Grids, tiles and launches of the attention kernels. Imported only where triton is there.

With TRITON_INTERPRET=1, set before this is imported, the kernels run on CPU tensors.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.attention.plain import LOG2_E, Gradients
from kernels.attention.triton_backward import (
    delta_kernel,
    key_gradient_kernel,
    query_gradient_kernel,
    slot_gradient_kernel,
)
from kernels.attention.triton_forward import forward_kernel

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class Tiles:
    """Queries and keys of a tile, and how a program runs: warps, and loads ahead of their use."""

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int


HALF_PRECISION = {
    # kernel: (heads up to 64 wide, heads up to 128 wide); docs/kernels.md has what they compile to
    "forward": (Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2)),
    "query_gradient": (Tiles(128, 64, 8, 2), Tiles(64, 64, 8, 2)),
    "key_gradient": (Tiles(64, 128, 8, 2), Tiles(64, 64, 8, 2)),
    "delta": (Tiles(64, 64, 4, 1), Tiles(64, 64, 4, 1)),
    "slot_gradient": (Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2)),
}
# Exact products of fp32 have no matrix instruction and hold their operands in registers.
FULL_PRECISION = (Tiles(32, 32, 8, 1), Tiles(16, 16, 8, 1))


def tiles_of(kernel: str, head_width: int, dtype: torch.dtype) -> Tiles:
    """The tiles of a kernel for heads of `head_width` in `dtype`."""
    if dtype == torch.float32:
        return FULL_PRECISION[head_width > 64]
    return HALF_PRECISION[kernel][head_width > 64]


def constants_of(
    head_width: int, tiles: Tiles, *, interpreted: bool = INTERPRETED, tf32: bool = False
) -> dict[str, object]:
    """The compile-time arguments of every kernel; a kernel takes those that it names."""
    return {
        "HEAD": head_width,
        "WIDTH": triton.next_power_of_2(head_width),
        "BLOCK_Q": tiles.block_q,
        "BLOCK_K": tiles.block_k,
        "LIFT": interpreted,
        "PRECISION": "tf32" if tf32 and not interpreted else "ieee",
    }


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    latent_k: Tensor,
    latent_v: Tensor,
    lo: Tensor,
    hi: Tensor,
    document: Tensor,
) -> tuple[Tensor, Tensor]:
    """As plain.forward."""
    q, k, v = _with_known_strides(q, k, v)
    batch, num_queries, heads, width = q.shape
    num_keys = k.shape[1]
    out = _empty(q, q.shape, q.dtype)
    lse = _empty(q, (batch, heads, num_queries), torch.float32)
    tiles = tiles_of("forward", width, q.dtype)
    grid = (triton.cdiv(num_queries, tiles.block_q), batch * heads)
    with _on_device_of(q):
        forward_kernel[grid](
            q, k, v, latent_k.contiguous(), latent_v.contiguous(), out, lse, lo, hi, document,
            num_queries, num_keys, heads, latent_k.shape[1],
            *q.stride()[:3], *k.stride()[:3], *out.stride()[:3], width**-0.5 * LOG2_E,
            SLOTS=latent_k.shape[2], **_options(forward_kernel, q, tiles),
        )  # fmt: skip
    return out, lse


def backward(
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
) -> Gradients:
    """As plain.backward, which does without the intervals of keys and documents."""
    q, k, v = _with_known_strides(q, k, v)
    latent_k, latent_v, dout = latent_k.contiguous(), latent_v.contiguous(), dout.contiguous()
    gradients = Gradients(*(_empty(t, t.shape, t.dtype) for t in (q, k, v, latent_k, latent_v)))
    batch, num_queries, heads, width = q.shape
    num_keys, num_documents, num_slots = k.shape[1], *latent_k.shape[1:3]
    scale = width**-0.5
    strides = (*q.stride()[:3], *k.stride()[:3], *out.stride()[:3])
    delta = _empty(lse, lse.shape, lse.dtype)
    delta_tiles = tiles_of("delta", width, q.dtype)
    query_tiles = tiles_of("query_gradient", width, q.dtype)
    key_tiles = tiles_of("key_gradient", width, q.dtype)
    with _on_device_of(q):
        delta_kernel[(triton.cdiv(num_queries, delta_tiles.block_q), batch * heads)](
            out, dout, delta, num_queries, heads, *out.stride()[:3],
            **_options(delta_kernel, q, delta_tiles),
        )  # fmt: skip
        query_gradient_kernel[(triton.cdiv(num_queries, query_tiles.block_q), batch * heads)](
            q, k, v, latent_k, latent_v, dout, gradients.q, lse, delta, lo, hi, document,
            num_queries, num_keys, heads, num_documents, *strides, scale, scale * LOG2_E,
            SLOTS=num_slots, **_options(query_gradient_kernel, q, query_tiles),
        )  # fmt: skip
        key_gradient_kernel[(triton.cdiv(num_keys, key_tiles.block_k), batch * heads)](
            q, k, v, dout, gradients.k, gradients.v, lse, delta, key_lo, key_hi,
            num_queries, num_keys, heads, *strides, *gradients.k.stride()[:3],
            scale, scale * LOG2_E, **_options(key_gradient_kernel, q, key_tiles),
        )  # fmt: skip
        if num_slots:
            tiles = tiles_of("slot_gradient", width, q.dtype)
            slot_gradient_kernel[(batch * num_documents, heads, num_slots)](
                q, latent_k, latent_v, dout, gradients.latent_k, gradients.latent_v, lse, delta,
                document_first, document_stop, num_queries, heads, num_documents,
                *q.stride()[:3], *out.stride()[:3], scale, scale * LOG2_E,
                SLOTS=num_slots, **_options(slot_gradient_kernel, q, tiles),
            )  # fmt: skip
    return gradients


def _options(kernel: object, q: Tensor, tiles: Tiles) -> dict[str, object]:
    tf32 = bool(torch.backends.cuda.matmul.allow_tf32)
    constants = constants_of(q.shape[-1], tiles, tf32=tf32)
    names = kernel.arg_names
    taken = {name: value for name, value in constants.items() if name in names}
    return taken | {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}


def _with_known_strides(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views as they are if each head's numbers lie side by side and k and v alike; else copies."""
    if q.stride(-1) != 1:
        q = q.contiguous()
    if k.stride(-1) != 1 or k.stride() != v.stride():
        k, v = k.contiguous(), v.contiguous()
    return q, k, v


def _empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for a kernel to write, every element of it; tests fill it with NaN."""
    return torch.empty(shape, dtype=dtype, device=like.device)


def _on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()

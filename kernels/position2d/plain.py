"""The operators of the 2D embedding as formulas in plain torch, for CPUs without the interpreter.

Their dropout draws from a torch generator with the operator's seed, so that forward and backward
agree with each other (not with the kernels, whose draws are Philox').
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.position2d.reference import embedding_2d
from kernels.position2d.tied import add_rows


def forward(
    ids: Tensor,
    position: Tensor,
    block_position: Tensor | None,
    token_type: Tensor | None,
    document: Tensor | None,
    token_table: Tensor,
    position_table: Tensor,
    block_table: Tensor | None,
    type_table: Tensor | None,
    latent: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    seed: Tensor,
    norm_eps: float,
    dropout_prob: float,
) -> tuple[Tensor, Tensor]:
    """out (B, T, D), and the sum before the LayerNorm, (B, T, D), or nothing (0,) without one."""
    summed, _ = embedding_2d(
        ids,
        position,
        block_position,
        token_table,
        position_table,
        block_table,
        token_type=token_type,
        type_table=type_table,
        latent=latent,
        document=document,
    )
    out = summed
    if norm_weight is not None:
        out = F.layer_norm(summed, norm_weight.shape, norm_weight, norm_bias, norm_eps)
    if dropout_prob:
        out = out * _factors(out, seed, dropout_prob)
    if norm_weight is None:
        return out, out.new_empty(0)
    return out, summed


def sum_gradient(
    dout: Tensor,
    summed: Tensor,
    norm_weight: Tensor | None,
    seed: Tensor,
    norm_eps: float,
    dropout_prob: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the sum (B, T, D) and of the LayerNorm's weight and bias (D,), (0,) without."""
    d = dout
    if dropout_prob:
        d = d * _factors(d, seed, dropout_prob)
    if norm_weight is None:
        return d.clone(), dout.new_empty(0), dout.new_empty(0)
    x, d = summed.float(), d.float()
    x = x - x.mean(-1, keepdim=True)
    inverse = (x.square().mean(-1, keepdim=True) + norm_eps).rsqrt()
    x = x * inverse
    dweight, dbias = (d * x).flatten(0, 1).sum(0), d.flatten(0, 1).sum(0)
    d = d * norm_weight.float()
    d = inverse * (d - d.mean(-1, keepdim=True) - x * (d * x).mean(-1, keepdim=True))
    dtype = norm_weight.dtype
    return d.to(dout.dtype), dweight.to(dtype), dbias.to(dtype)


def sum_rows_into(total: Tensor, rows: Tensor, index: Tensor) -> None:
    """Add to row r of `total` (V, D) the sum of those `rows` (n, D) whose index (n,) is r, rounded
    once; index V drops a row."""
    kept = index < len(total)
    add_rows(total, rows[kept], index[kept])


def _factors(like: Tensor, seed: Tensor, dropout_prob: float) -> Tensor:
    generator = torch.Generator(like.device).manual_seed(int(seed))
    drawn = torch.rand(like.shape, generator=generator, device=like.device)
    return ((drawn >= dropout_prob) / (1 - dropout_prob)).to(like.dtype)

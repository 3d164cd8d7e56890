"""Grids and launches of the 2D embedding's kernels. Imported only where triton is there.

With TRITON_INTERPRET=1, set before this is imported, the kernels run on CPU tensors.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from torch import Tensor

from kernels.position2d.triton_backward import join_kernel, piece_kernel, sum_gradient_kernel
from kernels.position2d.triton_forward import forward_kernel

PIECE = 64  # tokens that one program adds up
BLOCK_D = 128  # columns of a row that it takes
TOKENS = 16  # tokens that one program brings back through the LayerNorm


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
    """As plain.forward."""
    (rows, row_tokens), width = ids.shape, token_table.shape[1]
    out = _empty(token_table, (rows, row_tokens, width), token_table.dtype)
    has_norm = norm_weight is not None
    summed = _empty(out, out.shape if has_norm else (0,), out.dtype)
    # What is absent is never read: the place of ids or of the token table is taken by any tensor.
    indices = [
        _rows_side_by_side(ids if index is None else index)
        for index in (ids, position, block_position, token_type, document)
    ]
    tables = [
        (token_table if table is None else table).contiguous()
        for table in (token_table, position_table, block_table, type_table, latent)
    ]
    norm = [token_table if part is None else part for part in (norm_weight, norm_bias)]
    with _on_device_of(out):
        forward_kernel[(rows * row_tokens,)](
            out, summed, *indices, *tables, *norm, seed,
            row_tokens, 0 if latent is None else latent.shape[1], width,
            *(index.stride(0) for index in indices), norm_eps, dropout_prob,
            HAS_BLOCK=block_table is not None, HAS_TYPE=type_table is not None,
            HAS_LATENT=latent is not None, HAS_NORM=has_norm, HAS_DROPOUT=dropout_prob > 0,
            WIDTH=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
    return out, summed


def sum_gradient(
    dout: Tensor,
    summed: Tensor,
    norm_weight: Tensor | None,
    seed: Tensor,
    norm_eps: float,
    dropout_prob: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """As plain.sum_gradient."""
    dout = dout.contiguous()
    width = dout.shape[-1]
    num_tokens = dout.numel() // width
    num_programs = triton.cdiv(num_tokens, TOKENS)
    dsum = _empty(dout, dout.shape, dout.dtype)
    has_norm = norm_weight is not None
    shares = _empty(dout, (2, num_programs if has_norm else 0, width), torch.float32)
    with _on_device_of(dout):
        sum_gradient_kernel[(num_programs,)](
            dout, summed, dout if norm_weight is None else norm_weight, seed, dsum, *shares,
            num_tokens, width, norm_eps, dropout_prob,
            HAS_NORM=has_norm, HAS_DROPOUT=dropout_prob > 0,
            TOKENS=TOKENS, WIDTH=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
    if norm_weight is None:
        return dsum, dout.new_empty(0), dout.new_empty(0)
    dweight, dbias = shares.sum(1).to(norm_weight.dtype)
    return dsum, dweight.clone(), dbias.clone()


def sum_rows_into(total: Tensor, rows: Tensor, index: Tensor) -> None:
    """As plain.sum_rows_into, in a fixed order."""
    assert total.is_contiguous(), "the kernels walk over rows that stand side by side"
    num_rows, (num_tokens, width) = len(total), rows.shape
    rows = rows.contiguous()
    ordered, order = torch.sort(index, stable=True)
    first = torch.searchsorted(ordered, ordered, out_int32=True)
    stop = torch.searchsorted(ordered, ordered, right=True, out_int32=True)
    partial = _empty(rows, (2 * triton.cdiv(num_tokens, PIECE), width), torch.float32)
    grid = (num_tokens, triton.cdiv(width, BLOCK_D))
    with _on_device_of(rows):
        piece_kernel[grid](
            rows, total, partial, ordered, order, first, stop, num_rows, width,
            PIECE=PIECE, BLOCK_D=BLOCK_D, num_warps=4,
        )  # fmt: skip
        join_kernel[grid](
            total, partial, ordered, first, stop, num_rows, width,
            PIECE=PIECE, BLOCK_D=BLOCK_D, num_warps=4,
        )  # fmt: skip


def _rows_side_by_side(index: Tensor) -> Tensor:
    return index if index.stride(-1) == 1 else index.contiguous()


def _empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for a kernel to write, every element of it; tests fill it with NaN."""
    return torch.empty(shape, dtype=dtype, device=like.device)


def _on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()

"""The 2D embedding as operators of torch, with the kernels behind them on CUDA.

    palimpsest::embedding_2d               the forward pass
    palimpsest::embedding_2d_sum_gradient  back through dropout and LayerNorm
    palimpsest::sum_rows_into              from the tokens that read a table's row to its gradient

On CPU tensors they run the same kernels in triton's interpreter where TRITON_INTERPRET=1 is set,
and the formulas of plain.py otherwise. No table is kept for the backward pass (under ZeRO-3 it is
gathered for the forward pass alone).
"""

import os

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.position2d import plain
from kernels.position2d.tied import edge_of, gradient_to_add_to


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
) -> tuple[Tensor, Tensor]:
    """See kernels.position2d.reference.embedding_2d; dropout's draws are others."""
    device = token_table_VD.device
    if dropout_prob:
        seed = torch.randint(2**31 - 1, (1,), device=device, dtype=torch.int32)
    else:
        seed = torch.zeros(1, device=device, dtype=torch.int32)
    out_BTD, _, tied_VD = embedding_forward(
        ids_BT,
        position_BT,
        block_position_BT,
        token_type,
        document,
        token_table_VD,
        position_table_PD,
        block_table_PD,
        type_table,
        latent,
        norm_weight,
        norm_bias,
        seed,
        norm_eps,
        dropout_prob,
    )
    return out_BTD, tied_VD


@torch.library.custom_op("palimpsest::embedding_2d", mutates_args=(), device_types="cpu")
def embedding_forward(
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
) -> tuple[Tensor, Tensor, Tensor]:
    """See plain.forward; and the edge of the token table. seed: (1,) int32, what dropout draws
    from."""
    out, summed = _implementation().forward(
        ids, position, block_position, token_type, document, token_table, position_table,
        block_table, type_table, latent, norm_weight, norm_bias, seed, norm_eps, dropout_prob,
    )  # fmt: skip
    return out, summed, edge_of(token_table)


@embedding_forward.register_kernel("cuda")
def _(*arguments):
    from kernels.position2d import launch

    return (*launch.forward(*arguments), edge_of(arguments[5]))


@embedding_forward.register_fake
def _(ids, position, block_position, token_type, document, token_table, *rest):
    norm_weight = rest[4]
    shape = (*ids.shape, token_table.shape[1])
    summed = token_table.new_empty(0 if norm_weight is None else shape)
    return token_table.new_empty(shape), summed, edge_of(token_table)


@torch.library.custom_op(
    "palimpsest::embedding_2d_sum_gradient", mutates_args=(), device_types="cpu"
)
def sum_gradient(
    dout: Tensor,
    summed: Tensor,
    norm_weight: Tensor | None,
    seed: Tensor,
    norm_eps: float,
    dropout_prob: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See plain.sum_gradient."""
    return _implementation().sum_gradient(dout, summed, norm_weight, seed, norm_eps, dropout_prob)


@sum_gradient.register_kernel("cuda")
def _(*arguments):
    from kernels.position2d import launch

    return launch.sum_gradient(*arguments)


@sum_gradient.register_fake
def _(dout, summed, norm_weight, seed, norm_eps, dropout_prob):
    of_norm = dout.new_empty(0) if norm_weight is None else torch.empty_like(norm_weight)
    return dout.new_empty(dout.shape), of_norm, torch.empty_like(of_norm)


@torch.library.custom_op("palimpsest::sum_rows_into", mutates_args=("total",), device_types="cpu")
def sum_rows_into(total: Tensor, rows: Tensor, index: Tensor) -> None:
    """See plain.sum_rows_into. total: contiguous."""
    _implementation().sum_rows_into(total, rows, index)


@sum_rows_into.register_kernel("cuda")
def _(*arguments):
    from kernels.position2d import launch

    launch.sum_rows_into(*arguments)


@sum_rows_into.register_fake
def _(total, rows, index):
    pass


def _save(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)  # nobody asks for a gradient of the sum
    *indices, token_table, position_table, block_table, type_table, latent = inputs[:10]
    norm_weight, _, seed, ctx.norm_eps, ctx.dropout_prob = inputs[10:]
    ctx.save_for_backward(*indices, norm_weight, seed, output[1])
    ctx.num_rows = [
        None if table is None else table.shape[0]
        for table in (token_table, position_table, block_table, type_table)
    ]
    ctx.latent_shape = None if latent is None else latent.shape


@once_differentiable
def _gradients(ctx, dout: Tensor | None, _, dtied: Tensor | None):
    if dout is None:
        return (*[None] * 5, dtied, *[None] * 9)
    *indices, norm_weight, seed, summed = ctx.saved_tensors
    dsum, dweight, dbias = dout, None, None
    if norm_weight is not None or ctx.dropout_prob:
        dsum, dweight, dbias = sum_gradient(
            dout, summed, norm_weight, seed, ctx.norm_eps, ctx.dropout_prob
        )
    rows = dsum.flatten(0, 1)
    *of_tables, document = indices
    needs = ctx.needs_input_grad
    tables = [
        _table_gradient(head, rows, index, num_rows) if needed else None
        for head, index, num_rows, needed in zip(
            (dtied, None, None, None), of_tables, ctx.num_rows, needs[5:9], strict=True
        )
    ]
    dlatent = None
    if needs[9]:
        num_documents = ctx.latent_shape[0] * ctx.latent_shape[1]
        b = torch.arange(len(document), device=document.device)[:, None]
        # Padding (-1) goes behind the last, where sum_rows_into leaves it out.
        index = torch.where(document < 0, num_documents, b * ctx.latent_shape[1] + document)
        dlatent = _table_gradient(None, rows, index, num_documents).view(ctx.latent_shape)
    if norm_weight is None:
        dweight = dbias = None
    return (*(None for _ in indices), *tables, dlatent, dweight, dbias, None, None, None)


embedding_forward.register_autograd(_gradients, setup_context=_save)


def _table_gradient(head: Tensor | None, rows: Tensor, index: Tensor, num_rows: int) -> Tensor:
    total = gradient_to_add_to(head, rows, num_rows)
    sum_rows_into(total, rows, index.flatten())
    return total


def _implementation():
    if os.environ.get("TRITON_INTERPRET") != "1":
        return plain
    from kernels.position2d import launch

    return launch

"""The token table of a model that reads it at both ends, with one gradient written once.

    rows_BTD, tied_VD = token_rows(token_table_VD, ids_BT)  # or embedding_2d, which adds more
    logits_NV = tied_logits(hidden_ND, token_table_VD, tied_VD)

Left to autograd, the embedding and the head each make a dense gradient of V x D, and the two are
added. Here the head hands its own to the embedding, which runs last and adds to it the rows that
occur:

    token_table --> embedding --> rows_BTD --> layers --> hidden --> head --> logits
                              --> tied_VD ---------------------->

`tied_VD` is that edge of the graph and nothing else: zeros of V x D in the memory of one number,
which nobody reads. So it holds no table when ZeRO-3 takes the table away; the head keeps the
parameter itself for its backward pass, as torch's own linear layer does. An edge that no head takes
costs what the embedding alone costs. The edge may go to several heads, and to nothing but heads.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def edge_of(table_VD: Tensor) -> Tensor:
    """What stands for a table in the graph: its shape, without its memory."""
    return table_VD.new_zeros(()).expand(table_VD.shape)


def gradient_to_add_to(head_VD: Tensor | None, like: Tensor, num_rows: int) -> Tensor:
    """What came back along the edge, to be written into; zeros (num_rows, D) where nothing did.

    A gradient belongs to autograd, and others may hold it. This one is the embedding's alone:
    tied_logits has just made it and kept no hold of it, the edge leads from there to here, and
    autograd's sum for several heads is just as new. (A gradient spread over strides of 0 is what a
    sum over the edge itself would send; it is copied.)
    """
    return like.new_zeros(num_rows, like.shape[-1]) if head_VD is None else head_VD.contiguous()


def add_rows(total: Tensor, rows: Tensor, index: Tensor) -> None:
    """Add to row r of `total` (V, D) the sum of those `rows` (n, D) whose index (n,) is r, rounded
    once; rows that do not occur are not touched. No shape depends on what occurs."""
    ordered, order = index.long().sort(stable=True)
    first = torch.searchsorted(ordered, ordered)  # where the row's first token stands
    exact = torch.promote_types(rows.dtype, torch.float32)
    # What torch computes behind F.embedding, for a table of no more rows than there are tokens.
    sums = torch.ops.aten.embedding_dense_backward(
        rows[order].to(exact), first, len(index), -1, False
    )
    # Tokens of one row write the same numbers to it.
    total.index_copy_(0, ordered, (total[ordered].to(exact) + sums[first]).to(total.dtype))


@torch.library.custom_op("palimpsest::token_rows", mutates_args=())
def token_rows(table: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The row of every id, (*ids.shape, D), and the edge (V, D) for the head."""
    return F.embedding(ids, table), edge_of(table)


@token_rows.register_fake
def _(table, ids):
    return table.new_empty((*ids.shape, table.shape[1])), edge_of(table)


def _save_ids(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    ctx.num_rows = inputs[0].shape[0]
    ctx.save_for_backward(inputs[1])


@once_differentiable
def _table_gradient(ctx, drows: Tensor | None, dtied: Tensor | None):
    if drows is None:
        return dtied, None
    total = gradient_to_add_to(dtied, drows, ctx.num_rows)
    add_rows(total, drows.flatten(0, -2), ctx.saved_tensors[0].flatten())
    return total, None


token_rows.register_autograd(_table_gradient, setup_context=_save_ids)


@torch.library.custom_op("palimpsest::tied_logits", mutates_args=())
def tied_logits(hidden: Tensor, table: Tensor, tied: Tensor) -> Tensor:
    """hidden (..., D) times the table: (..., V). The table's gradient goes along `tied` alone."""
    return hidden @ table.t()


@tied_logits.register_fake
def _(hidden, table, tied):
    return hidden.new_empty((*hidden.shape[:-1], table.shape[0]))


def _save_factors(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:2])


@once_differentiable
def _factor_gradients(ctx, dlogits: Tensor):
    hidden, table = ctx.saved_tensors
    needs_hidden, _, needs_table = ctx.needs_input_grad
    dtied = None
    if needs_table:
        dtied = dlogits.flatten(0, -2).t() @ hidden.flatten(0, -2)
    return dlogits @ table if needs_hidden else None, None, dtied


tied_logits.register_autograd(_factor_gradients, setup_context=_save_factors)

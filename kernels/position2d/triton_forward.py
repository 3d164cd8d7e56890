"""The 2D embedding in Triton: one program gathers, sums, normalises and drops out one token.

    out = dropout(LayerNorm(token + position [+ block] [+ type] [+ latent of the document]))

The sum is taken in fp32 and rounded once. Dropout draws from Philox, keyed by a seed and the place
of each number, so that the backward pass draws the same again. Plain reference: reference.py.
"""

import triton
import triton.language as tl


@triton.jit
def kept(seed_ptr, token, column, width, drop_prob):
    """Whether dropout keeps each number of a token."""
    place = token.to(tl.int64) * width + column
    return tl.rand(tl.load(seed_ptr), place) >= drop_prob


@triton.jit
def table_row(table_ptr, row, column, width):
    """One row of a table in fp32."""
    place = row.to(tl.int64) * width + column
    return tl.load(table_ptr + place, mask=column < width, other=0.0).to(tl.float32)


@triton.jit
def normalised(x, column, width, eps):
    """x less its mean, over its standard deviation; and one over that."""
    mean = tl.sum(x, 0) / width
    centred = tl.where(column < width, x - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    return centred * inverse, inverse


@triton.jit
def forward_kernel(
    out_ptr, sum_ptr, ids_ptr, position_ptr, block_ptr, type_ptr, document_ptr,
    token_table_ptr, position_table_ptr, block_table_ptr, type_table_ptr, latent_ptr,
    norm_weight_ptr, norm_bias_ptr, seed_ptr,
    row_tokens, num_documents, width,
    ids_stride, position_stride, block_stride, type_stride, document_stride,
    scale_eps, scale_drop,
    HAS_BLOCK: tl.constexpr, HAS_TYPE: tl.constexpr, HAS_LATENT: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_DROPOUT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Token number program_id of B rows of `row_tokens`; index tensors have a stride per row.

    sum: what was normalised, written where HAS_NORM. scale_eps: LayerNorm's eps; scale_drop: the
    probability that a number is dropped.
    """
    token = tl.program_id(0)
    b = (token // row_tokens).to(tl.int64)
    t = token % row_tokens
    column = tl.arange(0, WIDTH)
    inside = column < width
    x = table_row(token_table_ptr, tl.load(ids_ptr + b * ids_stride + t), column, width)
    position = tl.load(position_ptr + b * position_stride + t)
    x += table_row(position_table_ptr, position, column, width)
    if HAS_BLOCK:
        block = tl.load(block_ptr + b * block_stride + t)
        x += table_row(block_table_ptr, block, column, width)
    if HAS_TYPE:
        token_type = tl.load(type_ptr + b * type_stride + t)
        x += table_row(type_table_ptr, token_type, column, width)
    if HAS_LATENT:
        document = tl.load(document_ptr + b * document_stride + t)
        place = (b * num_documents + document) * width + column
        x += tl.load(latent_ptr + place, mask=inside & (document >= 0), other=0.0).to(tl.float32)
    place = token.to(tl.int64) * width + column
    if HAS_NORM:
        rounded = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + place, rounded, mask=inside)
        x, _ = normalised(rounded.to(tl.float32), column, width, scale_eps)
        weight = tl.load(norm_weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        x = x * weight + tl.load(norm_bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_DROPOUT:
        x = tl.where(kept(seed_ptr, token, column, width, scale_drop), x / (1.0 - scale_drop), 0.0)
    tl.store(out_ptr + place, x.to(out_ptr.dtype.element_ty), mask=inside)

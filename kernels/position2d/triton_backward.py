"""Gradients of the 2D embedding in Triton: back to the sum, then from tokens to table rows.

Rows of a table that many tokens read (block position 0 takes most of a batch) make a scatter slow
and, with atomics, different each time. Here the tokens are sorted by the row they read, so that the
readers of one row form a segment, and segments are cut into pieces of at most PIECE tokens:

    sorted rows   0 0 0 0 0 0 0 1 3 3        PIECE = 3
    pieces        0 0 0|0 0 0|0|1|3 3
    piece_kernel  sums every piece; that of a segment of one piece is added to its row of `total`
    join_kernel   sums the pieces of the longer segments, in their order, and adds them to theirs

`total` holds zeros, or for the token table what the tied head gave; rows that no token reads are
not touched. Every sum has one order, so repeated runs give equal bits, and no shape depends on what
was read.
"""

import triton
import triton.language as tl

from kernels.position2d.triton_forward import kept, normalised


@triton.jit
def sum_gradient_kernel(
    dout_ptr, sum_ptr, norm_weight_ptr, seed_ptr, dsum_ptr, dweight_ptr, dbias_ptr,
    num_tokens, width, scale_eps, scale_drop,
    HAS_NORM: tl.constexpr, HAS_DROPOUT: tl.constexpr,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of the sum for TOKENS tokens, and their share of the LayerNorm's gradients.

    dweight, dbias: (programs, width) fp32, to be summed by the caller.
    """
    column = tl.arange(0, WIDTH)
    inside = column < width
    dweight = tl.zeros([WIDTH], tl.float32)
    dbias = tl.zeros([WIDTH], tl.float32)
    first = tl.program_id(0) * TOKENS
    for token in range(first, tl.minimum(first + TOKENS, num_tokens)):
        place = tl.cast(token, tl.int64) * width + column
        d = tl.load(dout_ptr + place, mask=inside, other=0.0).to(tl.float32)
        if HAS_DROPOUT:
            token_kept = kept(seed_ptr, tl.cast(token, tl.int32), column, width, scale_drop)
            d = tl.where(token_kept, d / (1.0 - scale_drop), 0.0)
        if HAS_NORM:
            x = tl.load(sum_ptr + place, mask=inside, other=0.0).to(tl.float32)
            x, inverse = normalised(x, column, width, scale_eps)
            dweight += d * x
            dbias += d
            d = d * tl.load(norm_weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
            d = inverse * (d - tl.sum(d, 0) / width - x * (tl.sum(d * x, 0) / width))
        tl.store(dsum_ptr + place, d.to(dsum_ptr.dtype.element_ty), mask=inside)
    if HAS_NORM:
        place = tl.program_id(0).to(tl.int64) * width + column
        tl.store(dweight_ptr + place, dweight, mask=inside)
        tl.store(dbias_ptr + place, dbias, mask=inside)


@triton.jit
def place_of_piece(i, first, PIECE: tl.constexpr):
    """Where the sum of the piece that begins at sorted place i of a long segment is kept.

    Two such pieces that begin within the same PIECE places are the short end of one segment and
    the beginning of the next, so two places for each PIECE suffice.
    """
    return i // PIECE * 2 + tl.where(i == first, 1, 0)


@triton.jit
def add_to_row(total_ptr, row, amount, column, width):
    """Add to a row that no other program writes, rounding once."""
    place = row.to(tl.int64) * width + column
    before = tl.load(total_ptr + place, mask=column < width, other=0.0).to(tl.float32)
    after = (before + amount).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + place, after, mask=column < width)


@triton.jit
def piece_kernel(
    rows_ptr, total_ptr, partial_ptr, sorted_ptr, order_ptr, first_ptr, stop_ptr,
    num_rows, width,
    PIECE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The sum of the piece that begins at sorted place program_id; nothing where none does.

    rows: (tokens, width), what is summed; sorted: the table row that each token reads, in order,
    those beyond num_rows are left out; order: the token; first, stop: the token's segment.
    """
    i = tl.program_id(0)
    row = tl.load(sorted_ptr + i)
    first = tl.load(first_ptr + i)
    stop = tl.load(stop_ptr + i)
    if ((i - first) % PIECE == 0) & (row < num_rows):
        column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
        member = i + tl.arange(0, PIECE)
        token = tl.load(order_ptr + member, mask=member < stop, other=0).to(tl.int64)
        inside = (member < stop)[:, None] & (column < width)[None, :]
        tile = tl.load(rows_ptr + token[:, None] * width + column[None, :], mask=inside, other=0.0)
        piece = tl.sum(tile.to(tl.float32), 0)
        if stop - first <= PIECE:
            add_to_row(total_ptr, row, piece, column, width)
        else:
            place = place_of_piece(i, first, PIECE).to(tl.int64) * width + column
            tl.store(partial_ptr + place, piece, mask=column < width)


@triton.jit
def join_kernel(
    total_ptr, partial_ptr, sorted_ptr, first_ptr, stop_ptr, num_rows, width,
    PIECE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The sum of all pieces of the long segment that begins at sorted place program_id, if any."""
    i = tl.program_id(0)
    row = tl.load(sorted_ptr + i)
    first = tl.load(first_ptr + i)
    stop = tl.load(stop_ptr + i)
    if (i == first) & (stop - first > PIECE) & (row < num_rows):
        column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
        pieces = tl.zeros([BLOCK_D], tl.float32)
        for start in range(first, stop, PIECE):
            place = place_of_piece(start, first, PIECE) * 1
            place = tl.cast(place, tl.int64) * width + column
            pieces += tl.load(partial_ptr + place, mask=column < width, other=0.0)
        add_to_row(total_ptr, row, pieces, column, width)

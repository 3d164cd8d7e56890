"""What every attention kernel does with tiles: load, store and multiply them, walk an interval.

A tile is a (rows, WIDTH) piece of a (rows, HEAD) matrix whose rows lie `stride` apart: one head of
q, k, v or of a gradient. WIDTH is HEAD rounded up to a power of two; columns from HEAD on are 0.
"""

import triton
import triton.language as tl


@triton.jit
def tile_offsets(stride, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Where the elements of a tile lie, counted from its first: int32, the same in every round."""
    return tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, WIDTH)[None, :]


@triton.jit
def tile_inside(
    first, num_rows, ROWS: tl.constexpr, WIDTH: tl.constexpr, HEAD: tl.constexpr
):  # fmt: skip
    """Whether an element of the tile that begins at row `first` belongs to the matrix."""
    row = first + tl.arange(0, ROWS)
    inside = (row < num_rows)[:, None]
    if HEAD < WIDTH:
        inside = inside & (tl.arange(0, WIDTH) < HEAD)[None, :]
    return inside


@triton.jit
def load_tile(
    base, offsets, first, stride, num_rows, CHECK: tl.constexpr, HEAD: tl.constexpr
):  # fmt: skip
    """Rows first, first + 1, ... of the matrix at `base`; 0 outside of it.

    CHECK False: all rows are known to lie inside. Scalars are int64, so any size will do.
    """
    pointers = base + first * stride.to(tl.int64) + offsets
    ROWS: tl.constexpr = offsets.shape[0]
    WIDTH: tl.constexpr = offsets.shape[1]
    if CHECK or HEAD < WIDTH:
        limit = num_rows
        if not CHECK:
            limit = first + ROWS
        tile = tl.load(pointers, mask=tile_inside(first, limit, ROWS, WIDTH, HEAD), other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def store_tile(base, offsets, first, stride, num_rows, tile, HEAD: tl.constexpr):
    """Write `tile` over rows first, first + 1, ... of the matrix at `base`, in its dtype."""
    inside = tile_inside(first, num_rows, offsets.shape[0], offsets.shape[1], HEAD)
    pointers = base + first * stride.to(tl.int64) + offsets
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def dot(a, b, total, LIFT: tl.constexpr, PRECISION: tl.constexpr):
    """total + a b, in fp32.

    LIFT: operands go to fp32 first, because the interpreter multiplies the bits of bf16.
    PRECISION: of fp32 operands, "ieee" or "tf32".
    """
    if LIFT:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def runs_of(lo, hi, BLOCK: tl.constexpr):
    """Where blocks of the intervals [lo, hi) of a tile's rows begin: start, whole, partly, stop.

    Blocks of [start, whole) and [partly, stop) are seen by some rows only and need a mask, those of
    [whole, partly) are seen by all. A row that sees nothing has a lo beyond everything and hi = 0.
    """
    start = tl.min(lo, 0) // BLOCK * BLOCK
    stop = tl.maximum(tl.max(hi, 0), start)
    whole = tl.minimum(tl.cdiv(tl.max(lo, 0), BLOCK), tl.cdiv(stop, BLOCK)) * BLOCK
    partly = tl.maximum(tl.min(hi, 0) // BLOCK * BLOCK, whole)
    return start, whole, partly, stop


@triton.jit
def sees(lo, hi, first, COUNT: tl.constexpr):
    """Which of `COUNT` places from `first` on lie in the interval of each row: (rows, COUNT)."""
    place = first + tl.arange(0, COUNT)[None, :]
    return (place >= lo[:, None]) & (place < hi[:, None])

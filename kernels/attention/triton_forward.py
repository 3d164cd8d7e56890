"""Attention forward in Triton: one program computes BLOCK_Q queries of one head.

It walks over the blocks of keys that its queries see and over no others, keeping the running
maximum and the sum of the softmax (online softmax; FlashAttention, Dao et al. 2022):

    slots of each query's document      rank-1 updates, before the walk
    [start, whole)    keys masked       where documents begin
    [whole, partly)   keys not masked
    [partly, stop)    keys masked       the diagonal, where documents end

The log of the softmax's sum goes out too, to base 2, for the backward pass: +inf where a query sees
nothing, so that all its weights come out as exp2(-inf) = 0 there, with no branch.
Plain reference: reference.py. Gradients: triton_backward.py.
"""

import triton
import triton.language as tl

from kernels.attention.triton_tiles import (
    dot,
    load_tile,
    runs_of,
    sees,
    store_tile,
    tile_offsets,
)


@triton.jit
def online_softmax(highest, total, acc, scores):
    """The softmax so far, made ready for more scores: weights, and what was kept, rescaled.

    highest, total: (rows,); acc: (rows, WIDTH); scores: (rows, n), to base 2. A row that has seen
    nothing yet keeps -inf, and exp2 of -inf minus -inf never arises.
    """
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    finite = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    shrink = tl.exp2(highest - finite)
    weights = tl.exp2(scores - finite[:, None])
    return new_highest, total * shrink + tl.sum(weights, 1), acc * shrink[:, None], weights


@triton.jit
def read_keys(
    q, k_base, v_base, offsets, k_stride, first, num_keys, lo, hi, highest, total, acc, scale2,
    HEAD: tl.constexpr, MASK: tl.constexpr, LIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of keys joins the softmax."""
    BLOCK_K: tl.constexpr = offsets.shape[0]
    k = load_tile(k_base, offsets, first, k_stride, num_keys, MASK, HEAD)
    scores = tl.zeros([q.shape[0], BLOCK_K], tl.float32)
    scores = dot(q, tl.trans(k), scores, LIFT, PRECISION) * scale2
    if MASK:
        scores = tl.where(sees(lo, hi, first, BLOCK_K), scores, float("-inf"))
    highest, total, acc, weights = online_softmax(highest, total, acc, scores)
    v = load_tile(v_base, offsets, first, k_stride, num_keys, MASK, HEAD)
    return highest, total, dot(weights.to(v.dtype), v, acc, LIFT, PRECISION)


@triton.jit
def load_slots(
    latents, document, slot, head, num_heads,
    SLOTS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Slot number `slot` of each row's document, fp32 (rows, WIDTH); 0 where there is none.

    latents: (documents of all rows, SLOTS, heads, HEAD), no gaps; document: (rows,), -1 is none.
    """
    row = (document.to(tl.int64) * SLOTS + slot) * num_heads + head
    column = tl.arange(0, WIDTH)[None, :]
    inside = (document >= 0)[:, None] & (column < HEAD)
    return tl.load(latents + row[:, None] * HEAD + column, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, latent_k_ptr, latent_v_ptr, out_ptr, lse_ptr,
    lo_ptr, hi_ptr, document_ptr,
    num_queries, num_keys, num_heads, num_documents,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    out_stride_b, out_stride_t, out_stride_h, scale2,
    SLOTS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, LIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out and lse of queries i0 .. i0 + BLOCK_Q - 1 of one head of one row.

    lo, hi: (B, T) int32, the keys each query sees; (num_keys, 0) where it sees nothing. document:
    (B, T) int32. scale2: log2(e) / sqrt(HEAD). lse: (B, H, T) fp32.
    """
    # Late queries of a document see most: the heavy blocks start first.
    i0 = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_Q
    b = (tl.program_id(1) // num_heads).to(tl.int64)
    head = tl.program_id(1) % num_heads
    row = i0 + tl.arange(0, BLOCK_Q)
    inside = row < num_queries
    lo = tl.load(lo_ptr + b * num_queries + row, mask=inside, other=num_keys)
    hi = tl.load(hi_ptr + b * num_queries + row, mask=inside, other=0)
    q_offsets = tile_offsets(q_stride_t, BLOCK_Q, WIDTH)
    q_base = q_ptr + b * q_stride_b + head * q_stride_h
    q = load_tile(q_base, q_offsets, i0, q_stride_t, num_queries, True, HEAD)

    highest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, WIDTH], tl.float32)
    if SLOTS > 0:
        document = tl.load(document_ptr + b * num_queries + row, mask=inside, other=-1)
        document = tl.where(document >= 0, document + b * num_documents, -1)
        q_full = q.to(tl.float32)
        for slot in tl.static_range(SLOTS):
            k_slot = load_slots(
                latent_k_ptr, document, slot, head, num_heads, SLOTS, HEAD, WIDTH
            )  # fmt: skip
            v_slot = load_slots(
                latent_v_ptr, document, slot, head, num_heads, SLOTS, HEAD, WIDTH
            )  # fmt: skip
            score = tl.where(document >= 0, tl.sum(q_full * k_slot, 1) * scale2, float("-inf"))
            highest, total, acc, weight = online_softmax(highest, total, acc, score[:, None])
            acc += weight * v_slot

    k_offsets = tile_offsets(k_stride_t, BLOCK_K, WIDTH)
    k_base = k_ptr + b * k_stride_b + head * k_stride_h
    v_base = v_ptr + b * k_stride_b + head * k_stride_h
    start, whole, partly, stop = runs_of(lo, hi, BLOCK_K)
    for j0 in range(start, whole, BLOCK_K):
        highest, total, acc = read_keys(
            q, k_base, v_base, k_offsets, k_stride_t, j0, num_keys, lo, hi,
            highest, total, acc, scale2, HEAD, True, LIFT, PRECISION,
        )  # fmt: skip
    for j0 in range(whole, partly, BLOCK_K):
        highest, total, acc = read_keys(
            q, k_base, v_base, k_offsets, k_stride_t, j0, num_keys, lo, hi,
            highest, total, acc, scale2, HEAD, False, LIFT, PRECISION,
        )  # fmt: skip
    for j0 in range(partly, stop, BLOCK_K):
        highest, total, acc = read_keys(
            q, k_base, v_base, k_offsets, k_stride_t, j0, num_keys, lo, hi,
            highest, total, acc, scale2, HEAD, True, LIFT, PRECISION,
        )  # fmt: skip

    nothing = total == 0.0
    total = tl.where(nothing, 1.0, total)
    out_offsets = tile_offsets(out_stride_t, BLOCK_Q, WIDTH)
    out_base = out_ptr + b * out_stride_b + head * out_stride_h
    store_tile(out_base, out_offsets, i0, out_stride_t, num_queries, acc / total[:, None], HEAD)
    lse = tl.where(nothing, float("inf"), highest + tl.log2(total))
    lse_base = lse_ptr + tl.program_id(1).to(tl.int64) * num_queries
    tl.store(lse_base + row, lse, mask=inside)

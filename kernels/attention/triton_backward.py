"""Attention backward in Triton: four kernels, each writing its own gradient once, without atomics.

With P the weights, recomputed from the scores and the log-sum of the forward pass, and dout given:

    delta_i = out_i . dout_i
    dS_ij = P_ij (dout_i . v_j - delta_i)
    dq_i = scale sum_j dS_ij k_j          query by query, over the keys it sees
    dv_j = sum_i P_ij dout_i              key by key, over the queries that see it
    dk_j = scale sum_i dS_ij q_i
    slots: as dk and dv, over all queries of their document

The queries that see one key are an interval too (Visibility.key_intervals), so the walk over
queries skips blocks as the walk over keys does. Every sum has one order: repeated runs give equal
bits. Where a query sees nothing its log-sum is +inf, so its P and dS are 0.
"""

import triton
import triton.language as tl

from kernels.attention.triton_forward import load_slots
from kernels.attention.triton_tiles import (
    dot,
    load_tile,
    runs_of,
    sees,
    store_tile,
    tile_offsets,
)


@triton.jit
def delta_kernel(
    out_ptr, dout_ptr, delta_ptr, num_queries, num_heads,
    out_stride_b, out_stride_t, out_stride_h,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """delta (B, H, T) fp32: the product of every query's output and its gradient."""
    i0 = tl.program_id(0) * BLOCK_Q
    b = (tl.program_id(1) // num_heads).to(tl.int64)
    head = tl.program_id(1) % num_heads
    offsets = tile_offsets(out_stride_t, BLOCK_Q, WIDTH)
    place = b * out_stride_b + head * out_stride_h
    out = load_tile(out_ptr + place, offsets, i0, out_stride_t, num_queries, True, HEAD)
    dout = load_tile(dout_ptr + place, offsets, i0, out_stride_t, num_queries, True, HEAD)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    row = i0 + tl.arange(0, BLOCK_Q)
    base = delta_ptr + tl.program_id(1).to(tl.int64) * num_queries
    tl.store(base + row, delta, mask=row < num_queries)


@triton.jit
def add_keys(
    q, dout, lse, delta, k_base, v_base, offsets, k_stride, first, num_keys, lo, hi, dq, scale2,
    HEAD: tl.constexpr, MASK: tl.constexpr, LIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq / scale with the share of one block of keys."""
    BLOCK_K: tl.constexpr = offsets.shape[0]
    zeros = tl.zeros([q.shape[0], BLOCK_K], tl.float32)
    k = load_tile(k_base, offsets, first, k_stride, num_keys, MASK, HEAD)
    weights = tl.exp2(dot(q, tl.trans(k), zeros, LIFT, PRECISION) * scale2 - lse[:, None])
    if MASK:
        weights = tl.where(sees(lo, hi, first, BLOCK_K), weights, 0.0)
    v = load_tile(v_base, offsets, first, k_stride, num_keys, MASK, HEAD)
    dscores = weights * (dot(dout, tl.trans(v), zeros, LIFT, PRECISION) - delta[:, None])
    return dot(dscores.to(k.dtype), k, dq, LIFT, PRECISION)


@triton.jit
def query_gradient_kernel(
    q_ptr, k_ptr, v_ptr, latent_k_ptr, latent_v_ptr, dout_ptr, dq_ptr, lse_ptr, delta_ptr,
    lo_ptr, hi_ptr, document_ptr,
    num_queries, num_keys, num_heads, num_documents,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    out_stride_b, out_stride_t, out_stride_h, scale, scale2,
    SLOTS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, LIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of queries i0 .. i0 + BLOCK_Q - 1 of one head; dout and dq have the strides of out."""
    i0 = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_Q
    b = (tl.program_id(1) // num_heads).to(tl.int64)
    head = tl.program_id(1) % num_heads
    row = i0 + tl.arange(0, BLOCK_Q)
    inside = row < num_queries
    lo = tl.load(lo_ptr + b * num_queries + row, mask=inside, other=num_keys)
    hi = tl.load(hi_ptr + b * num_queries + row, mask=inside, other=0)
    of_head = tl.program_id(1).to(tl.int64) * num_queries
    lse = tl.load(lse_ptr + of_head + row, mask=inside, other=float("inf"))
    delta = tl.load(delta_ptr + of_head + row, mask=inside, other=0.0)
    q_base = q_ptr + b * q_stride_b + head * q_stride_h
    q_offsets = tile_offsets(q_stride_t, BLOCK_Q, WIDTH)
    q = load_tile(q_base, q_offsets, i0, q_stride_t, num_queries, True, HEAD)
    out_offsets = tile_offsets(out_stride_t, BLOCK_Q, WIDTH)
    out_place = b * out_stride_b + head * out_stride_h
    dout_base = dout_ptr + out_place
    dout = load_tile(dout_base, out_offsets, i0, out_stride_t, num_queries, True, HEAD)
    dq = tl.zeros([BLOCK_Q, WIDTH], tl.float32)

    k_offsets = tile_offsets(k_stride_t, BLOCK_K, WIDTH)
    k_base = k_ptr + b * k_stride_b + head * k_stride_h
    v_base = v_ptr + b * k_stride_b + head * k_stride_h
    start, whole, partly, stop = runs_of(lo, hi, BLOCK_K)
    for j0 in range(start, whole, BLOCK_K):
        dq = add_keys(
            q, dout, lse, delta, k_base, v_base, k_offsets, k_stride_t, j0, num_keys, lo, hi, dq,
            scale2, HEAD, True, LIFT, PRECISION,
        )  # fmt: skip
    for j0 in range(whole, partly, BLOCK_K):
        dq = add_keys(
            q, dout, lse, delta, k_base, v_base, k_offsets, k_stride_t, j0, num_keys, lo, hi, dq,
            scale2, HEAD, False, LIFT, PRECISION,
        )  # fmt: skip
    for j0 in range(partly, stop, BLOCK_K):
        dq = add_keys(
            q, dout, lse, delta, k_base, v_base, k_offsets, k_stride_t, j0, num_keys, lo, hi, dq,
            scale2, HEAD, True, LIFT, PRECISION,
        )  # fmt: skip

    if SLOTS > 0:
        document = tl.load(document_ptr + b * num_queries + row, mask=inside, other=-1)
        document = tl.where(document >= 0, document + b * num_documents, -1)
        q_full = q.to(tl.float32)
        dout_full = dout.to(tl.float32)
        for slot in tl.static_range(SLOTS):
            k_slot = load_slots(
                latent_k_ptr, document, slot, head, num_heads, SLOTS, HEAD, WIDTH
            )  # fmt: skip
            v_slot = load_slots(
                latent_v_ptr, document, slot, head, num_heads, SLOTS, HEAD, WIDTH
            )  # fmt: skip
            weight = tl.exp2(tl.sum(q_full * k_slot, 1) * scale2 - lse)
            dscore = weight * (tl.sum(dout_full * v_slot, 1) - delta)
            dq += dscore[:, None] * k_slot
    store_tile(
        dq_ptr + out_place, out_offsets, i0, out_stride_t, num_queries, dq * scale, HEAD
    )  # fmt: skip


@triton.jit
def add_queries(
    k, v, q_base, dout_base, lse_base, delta_base, q_offsets, out_offsets, q_stride, out_stride,
    first, num_queries, lo, hi, dk, dv, scale2,
    HEAD: tl.constexpr, MASK: tl.constexpr, LIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk / scale and dv with the share of one block of queries. Scores are (keys, queries)."""
    BLOCK_Q: tl.constexpr = q_offsets.shape[0]
    zeros = tl.zeros([k.shape[0], BLOCK_Q], tl.float32)
    row = first + tl.arange(0, BLOCK_Q)
    inside = row < num_queries
    lse = tl.load(lse_base + row, mask=inside, other=float("inf"))
    delta = tl.load(delta_base + row, mask=inside, other=0.0)
    q = load_tile(q_base, q_offsets, first, q_stride, num_queries, MASK, HEAD)
    weights = tl.exp2(dot(k, tl.trans(q), zeros, LIFT, PRECISION) * scale2 - lse[None, :])
    if MASK:
        weights = tl.where(sees(lo, hi, first, BLOCK_Q), weights, 0.0)
    dout = load_tile(dout_base, out_offsets, first, out_stride, num_queries, MASK, HEAD)
    dv = dot(weights.to(dout.dtype), dout, dv, LIFT, PRECISION)
    dscores = weights * (dot(v, tl.trans(dout), zeros, LIFT, PRECISION) - delta[None, :])
    return dot(dscores.to(q.dtype), q, dk, LIFT, PRECISION), dv


@triton.jit
def key_gradient_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, dk_ptr, dv_ptr, lse_ptr, delta_ptr, lo_ptr, hi_ptr,
    num_queries, num_keys, num_heads,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    out_stride_b, out_stride_t, out_stride_h, dk_stride_b, dk_stride_t, dk_stride_h,
    scale, scale2,
    HEAD: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, LIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of keys j0 .. j0 + BLOCK_K - 1 of one head.

    lo, hi: (B, S) int32, the queries that see each key; (num_queries, 0) where none does. The
    first keys of a document are seen by most queries, and their programs start first.
    """
    j0 = tl.program_id(0) * BLOCK_K
    b = (tl.program_id(1) // num_heads).to(tl.int64)
    head = tl.program_id(1) % num_heads
    key = j0 + tl.arange(0, BLOCK_K)
    lo = tl.load(lo_ptr + b * num_keys + key, mask=key < num_keys, other=num_queries)
    hi = tl.load(hi_ptr + b * num_keys + key, mask=key < num_keys, other=0)
    k_offsets = tile_offsets(k_stride_t, BLOCK_K, WIDTH)
    k_place = b * k_stride_b + head * k_stride_h
    k = load_tile(k_ptr + k_place, k_offsets, j0, k_stride_t, num_keys, True, HEAD)
    v = load_tile(v_ptr + k_place, k_offsets, j0, k_stride_t, num_keys, True, HEAD)
    dk = tl.zeros([BLOCK_K, WIDTH], tl.float32)
    dv = tl.zeros([BLOCK_K, WIDTH], tl.float32)

    q_offsets = tile_offsets(q_stride_t, BLOCK_Q, WIDTH)
    out_offsets = tile_offsets(out_stride_t, BLOCK_Q, WIDTH)
    q_base = q_ptr + b * q_stride_b + head * q_stride_h
    dout_base = dout_ptr + b * out_stride_b + head * out_stride_h
    of_head = tl.program_id(1).to(tl.int64) * num_queries
    start, whole, partly, stop = runs_of(lo, hi, BLOCK_Q)
    for i0 in range(start, whole, BLOCK_Q):
        dk, dv = add_queries(
            k, v, q_base, dout_base, lse_ptr + of_head, delta_ptr + of_head, q_offsets,
            out_offsets, q_stride_t, out_stride_t, i0, num_queries, lo, hi, dk, dv, scale2,
            HEAD, True, LIFT, PRECISION,
        )  # fmt: skip
    for i0 in range(whole, partly, BLOCK_Q):
        dk, dv = add_queries(
            k, v, q_base, dout_base, lse_ptr + of_head, delta_ptr + of_head, q_offsets,
            out_offsets, q_stride_t, out_stride_t, i0, num_queries, lo, hi, dk, dv, scale2,
            HEAD, False, LIFT, PRECISION,
        )  # fmt: skip
    for i0 in range(partly, stop, BLOCK_Q):
        dk, dv = add_queries(
            k, v, q_base, dout_base, lse_ptr + of_head, delta_ptr + of_head, q_offsets,
            out_offsets, q_stride_t, out_stride_t, i0, num_queries, lo, hi, dk, dv, scale2,
            HEAD, True, LIFT, PRECISION,
        )  # fmt: skip
    dk_offsets = tile_offsets(dk_stride_t, BLOCK_K, WIDTH)
    place = b * dk_stride_b + head * dk_stride_h
    store_tile(dk_ptr + place, dk_offsets, j0, dk_stride_t, num_keys, dk * scale, HEAD)
    store_tile(dv_ptr + place, dk_offsets, j0, dk_stride_t, num_keys, dv, HEAD)


@triton.jit
def slot_gradient_kernel(
    q_ptr, latent_k_ptr, latent_v_ptr, dout_ptr, dlatent_k_ptr, dlatent_v_ptr, lse_ptr, delta_ptr,
    first_ptr, stop_ptr, num_queries, num_heads, num_documents,
    q_stride_b, q_stride_t, q_stride_h, out_stride_b, out_stride_t, out_stride_h, scale, scale2,
    SLOTS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """dlatent_k and dlatent_v of one slot of one document, one head: a walk over its queries.

    first, stop: (B, N) int32, the tokens of each document; equal where a row has fewer documents.
    """
    document = tl.program_id(0).to(tl.int64)
    b = document // num_documents
    head = tl.program_id(1)
    column = tl.arange(0, WIDTH)
    place = ((document * SLOTS + tl.program_id(2)) * num_heads + head) * HEAD + column
    k_slot = tl.load(latent_k_ptr + place, mask=column < HEAD, other=0.0).to(tl.float32)
    v_slot = tl.load(latent_v_ptr + place, mask=column < HEAD, other=0.0).to(tl.float32)
    dk = tl.zeros([WIDTH], tl.float32)
    dv = tl.zeros([WIDTH], tl.float32)
    q_offsets = tile_offsets(q_stride_t, BLOCK_Q, WIDTH)
    out_offsets = tile_offsets(out_stride_t, BLOCK_Q, WIDTH)
    q_base = q_ptr + b * q_stride_b + head * q_stride_h
    dout_base = dout_ptr + b * out_stride_b + head * out_stride_h
    of_head = (b * num_heads + head) * num_queries
    stop = tl.load(stop_ptr + document)
    for i0 in range(tl.load(first_ptr + document), stop, BLOCK_Q):
        row = i0 + tl.arange(0, BLOCK_Q)
        lse = tl.load(lse_ptr + of_head + row, mask=row < stop, other=float("inf"))
        delta = tl.load(delta_ptr + of_head + row, mask=row < stop, other=0.0)
        q = load_tile(q_base, q_offsets, i0, q_stride_t, stop, True, HEAD).to(tl.float32)
        dout = load_tile(dout_base, out_offsets, i0, out_stride_t, stop, True, HEAD)
        dout = dout.to(tl.float32)
        weight = tl.exp2(tl.sum(q * k_slot[None, :], 1) * scale2 - lse)
        dscore = weight * (tl.sum(dout * v_slot[None, :], 1) - delta)
        dk += tl.sum(dscore[:, None] * q, 0)
        dv += tl.sum(weight[:, None] * dout, 0)
    dtype = dlatent_k_ptr.dtype.element_ty
    tl.store(dlatent_k_ptr + place, (dk * scale).to(dtype), mask=column < HEAD)
    tl.store(dlatent_v_ptr + place, dv.to(dtype), mask=column < HEAD)

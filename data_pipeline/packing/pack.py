"""Training rows laid end to end into a fixed (B, T) block, with what each of their tokens may see.

rows of 3 and 2 tokens (sep 2 and 1) in one packed row of T = 6

document   0 0 0 1 1 -1          padding is -1 and sees nothing
lo         0 0 0 3 3  0          the first key that each token sees
hi         2 2 3 4 5  0          one past the last: part A sees part A, part B what is behind it
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.rows import PackedRows, PackedSources, Rows, Sources

ARRAYS = ("ids", "position", "block_position", "targets", "weights", "kind", "document", "lo", "hi")


def pack_rows(rows: Rows, num_rows_B: NDArray[np.int64], row_tokens: int) -> PackedRows:
    """B packed rows of `row_tokens` positions; the first holds the first num_rows_B[0] rows."""
    document_N = ragged.within(num_rows_B)
    flat_offsets_N1 = ragged.offsets(rows.lengths_N)
    filled_B = np.diff(flat_offsets_N1[ragged.offsets(num_rows_B)])
    assert filled_B.max(initial=0) <= row_tokens
    begin_B = ragged.offsets(filled_B)[:-1]
    start_N = flat_offsets_N1[:-1] - np.repeat(begin_B, num_rows_B)
    lo, document, visible_end = (
        np.repeat(values.astype(np.int32), rows.lengths_N)
        for values in (start_N, document_N, start_N + rows.sep_N)
    )
    inside = np.arange(row_tokens, dtype=np.int32) < filled_B[:, None]  # (B, T)
    one_past = np.broadcast_to(np.arange(1, row_tokens + 1, dtype=np.int32), inside.shape)
    flat = {
        "lo": lo,
        "hi": np.maximum(one_past[inside], visible_end),
        "document": document,
        **{
            name: getattr(rows, name)
            for name in ("ids", "position", "block_position", "targets", "weights", "kind")
        },
    }
    packed: dict[str, NDArray] = {
        name: np.zeros(inside.shape, values.dtype) for name, values in flat.items()
    }
    packed["document"] -= 1
    for name, values in flat.items():
        packed[name][inside] = values
    sources = rows.sources and _pack_sources(rows.sources, num_rows_B, row_tokens)
    return PackedRows(**packed, sources=sources)


def _pack_sources(
    sources: Sources, num_rows_B: NDArray[np.int64], row_tokens: int
) -> PackedSources:
    """Sources side by side as their rows are, which are never shorter."""
    offsets_N1 = ragged.offsets(sources.lengths_N)
    filled_B = np.diff(offsets_N1[ragged.offsets(num_rows_B)])
    assert filled_B.max(initial=0) <= row_tokens
    inside = np.arange(row_tokens) < filled_B[:, None]
    ids = np.zeros(inside.shape, np.int32)
    ids[inside] = sources.ids
    document = np.full(inside.shape, -1, np.int32)
    document[inside] = np.repeat(ragged.within(num_rows_B), sources.lengths_N)
    keys = np.zeros((len(num_rows_B), int(num_rows_B.max(initial=0))), np.uint64)
    keys[np.arange(keys.shape[1]) < num_rows_B[:, None]] = sources.keys_N
    return PackedSources(ids, document, keys)


def padding_rows(num_rows: int, row_tokens: int) -> PackedRows:
    """Packed rows that hold nothing."""
    nothing = np.zeros(0, np.int32)
    no_rows = Rows(
        lengths_N=np.zeros(0, np.int64),
        sep_N=np.zeros(0, np.int64),
        ids=nothing,
        position=nothing,
        block_position=nothing,
        targets=nothing,
        weights=np.zeros(0, np.float32),
        kind=np.zeros(0, np.uint8),
    )
    return pack_rows(no_rows, np.zeros(num_rows, np.int64), row_tokens)


def concatenate(parts: Sequence[PackedRows]) -> PackedRows:
    """The rows of several blocks of one width in one block.

    Padding rows have no sources; beside rows that have some, theirs are empty.
    """
    sources = None
    if any(part.sources for part in parts):
        sources = _concatenate_sources([part.sources or _no_sources(part) for part in parts])
    return PackedRows(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS},
        sources=sources,
    )


def take_rows(packed: PackedRows, index: NDArray[np.integer]) -> PackedRows:
    """Some rows of a block, in the order asked for."""
    held = packed.sources
    return PackedRows(
        **{name: getattr(packed, name)[index] for name in ARRAYS},
        sources=held and PackedSources(held.ids[index], held.document[index], held.keys[index]),
    )


def _no_sources(packed: PackedRows) -> PackedSources:
    ids = np.zeros_like(packed.ids)
    return PackedSources(ids, ids - 1, np.zeros((len(ids), 0), np.uint64))


def _concatenate_sources(parts: Sequence[PackedSources]) -> PackedSources:
    num_documents = max(part.keys.shape[1] for part in parts)
    keys = [np.pad(p.keys, ((0, 0), (0, num_documents - p.keys.shape[1]))) for p in parts]
    return PackedSources(
        ids=np.concatenate([part.ids for part in parts]),
        document=np.concatenate([part.document for part in parts]),
        keys=np.concatenate(keys),
    )

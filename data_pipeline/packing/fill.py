"""Cut to fill: the emptiest packed rows are taken apart, their text goes into the others' rooms.

Documents of about the row's length leave rooms that no other document fits (lognormal(512, 0.3) in
rows of 576 tokens: 6.7 %). So the rows that hold least are emptied, as many as the rooms of the
others can take, and their documents are cut at sentence ends into those rooms. What finds no room
is packed into rows of its own.

    before   aaaaaaaaaa..   bbbbbbbbb...   cccccc......     c = three sentences: ccc, cc and c
    after    aaaaaaaaaacc   bbbbbbbbbccc   c...........

A piece is drawn anew for the room it is in, with the key of its new beginning. Spans that would
overfill the room are lost and counted, tokens never.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline.packing.cut import Stretches, last_sentence_end
from data_pipeline.packing.fit import best_fit
from data_pipeline.protocols import TransformPlan

MAX_TRIES = 3  # documents that a room is offered before it stays as it is

Draw = Callable[[Stretches, NDArray[np.int64]], TransformPlan]


def smallest_room(row_tokens: int) -> int:
    """Rooms of fewer tokens stay empty: 32, or less where the rows themselves are short."""
    return min(32, row_tokens // 8)


@dataclass(frozen=True)
class Layout:
    """N stretches with what was drawn for each and the packed row it lies in (-1: in none)."""

    stretches: Stretches
    plan: TransformPlan
    row_N: NDArray[np.int64]
    num_rows: int


def pack_best_fit(stretches: Stretches, draw: Draw, row_tokens: int) -> Layout:
    """Every stretch in a packed row, best-fit by the length of its own row."""
    plan = draw(stretches, np.full(len(stretches), row_tokens))
    row_N = best_fit(plan.row_lengths_N, row_tokens)
    return Layout(stretches, plan, row_N, int(row_N.max(initial=-1)) + 1)


def cut_to_fill(layout: Layout, draw: Draw, row_tokens: int) -> Layout:
    """The same text in fewer rows, or the same layout where cutting saves none.

    What was taken apart stays in the layout, in row -1, beside the pieces it was cut into.
    """
    row_lengths_N = layout.plan.row_lengths_N
    filled_R = np.bincount(layout.row_N, row_lengths_N, layout.num_rows).astype(np.int64)
    apart_R = rows_to_take_apart(filled_R, row_tokens)
    if not apart_R.any():
        return layout
    apart_N = apart_R[layout.row_N]
    kept_R = np.where(apart_R, -1, np.cumsum(~apart_R) - 1)  # new numbers of the rows that stay
    kept = Layout(layout.stretches, layout.plan, kept_R[layout.row_N], int((~apart_R).sum()))
    growth = row_lengths_N.sum() / layout.stretches.source_lengths_N.sum()
    placed, rest = _fill(
        layout.stretches.take(apart_N),
        row_tokens - filled_R[~apart_R],
        draw,
        growth,
        smallest_room(row_tokens),
    )
    if len(rest):
        packed = pack_best_fit(rest, draw, row_tokens)
        row_N = packed.row_N + kept.num_rows
        placed.append(Layout(rest, packed.plan, row_N, kept.num_rows + packed.num_rows))
    filled = _join([kept, *placed])
    return filled if filled.num_rows < layout.num_rows else layout


def rows_to_take_apart(filled_R: NDArray[np.int64], row_tokens: int) -> NDArray[np.bool_]:
    """The emptiest rows, as many as the others could hold if all their room were used."""
    emptiest = np.argsort(filled_R, kind="stable")
    filled = filled_R[emptiest]
    rooms = row_tokens - filled
    rooms[rooms < smallest_room(row_tokens)] = 0
    fits = np.cumsum(filled) <= rooms.sum() - np.cumsum(rooms)
    apart_R = np.zeros(len(filled_R), np.bool_)
    apart_R[emptiest[: int(fits.sum())]] = True  # true, ..., true, false, ...
    return apart_R


def _fill(
    rest: Stretches, room_R: NDArray[np.int64], draw: Draw, growth: float, smallest: int
) -> tuple[list[Layout], Stretches]:
    """What was placed, and what is left over. growth: row tokens for each source token."""
    rows = np.flatnonzero(room_R >= smallest)
    rows = rows[np.argsort(-room_R[rows], kind="stable")]
    tries_R = np.zeros(len(room_R), np.int64)
    placed: list[Layout] = []
    while len(rest) and len(rows):
        rest = rest.take(np.argsort(-rest.source_lengths_N, kind="stable"))
        num_pairs = min(len(rest), len(rows))
        offered, waiting = rows[:num_pairs], rows[num_pairs:]
        front = rest.take(slice(num_pairs))
        end = _fitting_end(front, room_R[offered], growth)
        fits = end >= 0
        if fits.any():
            pieces = Stretches(rest.documents, front.owner_N[fits], front.begin_N[fits], end[fits])
            plan = draw(pieces, room_R[offered[fits]])
            placed.append(Layout(pieces, plan, offered[fits], len(room_R)))
            room_R[offered[fits]] -= plan.row_lengths_N
        tries_R[offered[~fits]] += 1
        again = (room_R[offered] >= smallest) & (tries_R[offered] < MAX_TRIES)
        rows = np.concatenate([waiting, offered[again]])
        behind = Stretches(
            rest.documents, front.owner_N, np.where(fits, end, front.begin_N), front.end_N
        ).take(end < front.end_N)
        rest = Stretches.concatenate([behind, rest.take(slice(num_pairs, None))])
    return placed, rest


def _fitting_end(
    stretches: Stretches, rooms_N: NDArray[np.int64], growth: float
) -> NDArray[np.int64]:
    """Where to cut each stretch for its room: its end if all fits; -1: no sentence end will do."""
    allowed = (rooms_N / growth).astype(np.int64)
    last_place = np.minimum(stretches.begin_N + allowed - 1, stretches.end_N - 1)
    end = last_sentence_end(stretches.documents, last_place)
    half_used = 2 * (1 + end - stretches.begin_N) >= allowed
    end = np.where(half_used & (end > stretches.begin_N), end, -1)
    return np.where(stretches.source_lengths_N <= allowed, stretches.end_N, end)


def _join(layouts: list[Layout]) -> Layout:
    plans = [layout.plan for layout in layouts]
    return Layout(
        Stretches.concatenate([layout.stretches for layout in layouts]),
        plans[0].concatenate(plans),
        np.concatenate([layout.row_N for layout in layouts]),
        layouts[-1].num_rows,
    )

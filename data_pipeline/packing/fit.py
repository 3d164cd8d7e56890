"""Rows of unequal length into packed rows of one length: best-fit decreasing, many at a time.

Each row, the longest first, goes where it leaves the least room (Johnson 1974). Rows of one length
are placed together, and the open packed rows stand in piles by the room left in them, so that the
work grows with the number of different lengths and not with the number of rows.

    best_fit([3, 5, 4, 2], row_tokens=7)  ->  [1, 0, 1, 0]       5 + 2 in row 0, 4 + 3 in row 1
"""

import numpy as np
from numpy.typing import NDArray


def best_fit(lengths_N: NDArray[np.int64], row_tokens: int) -> NDArray[np.int64]:
    """The packed row of each of N rows: 0, 1, 2, ... in the order in which they were opened.

    lengths_N: in 1..row_tokens. Equal lengths are placed in their given order.
    """
    assert not len(lengths_N) or 0 < lengths_N.min() <= lengths_N.max() <= row_tokens
    decreasing = _stable_order(row_tokens - lengths_N, row_tokens)
    lengths = lengths_N[decreasing]
    first = np.flatnonzero(np.diff(lengths, prepend=row_tokens + 1))
    placed, rooms = np.empty(len(lengths), np.int64), _Rooms(row_tokens)
    for length, begin, end in zip(
        lengths[first].tolist(), first.tolist(), [*first[1:].tolist(), len(lengths)]
    ):
        while begin < end:
            room, rows = rooms.take_tightest(length, end - begin)
            placed[begin : begin + len(rows)] = rows
            rooms.put(room - length, rows)
            begin += len(rows)
    row_N = np.empty(len(lengths), np.int64)
    row_N[decreasing] = placed
    return row_N


class _Rooms:
    """Open packed rows in piles by the room left in them; bit r of `piles_present` is pile r."""

    def __init__(self, row_tokens: int) -> None:
        self.row_tokens = row_tokens
        self.num_rows = 0
        self.piles: dict[int, NDArray[np.int64]] = {}
        self.piles_present = 0

    def take_tightest(self, length: int, count: int) -> tuple[int, NDArray[np.int64]]:
        """The least room that holds `length` and at most `count` rows that have it."""
        large_enough = self.piles_present >> length
        if not large_enough:
            num_new = -(-count // (self.row_tokens // length))
            self.num_rows += num_new
            return self.row_tokens, np.arange(self.num_rows - num_new, self.num_rows)
        room = length + (large_enough & -large_enough).bit_length() - 1
        rows = self.piles.pop(room)
        self.piles_present ^= 1 << room
        self.put(room, rows[count:])
        return room, rows[:count]

    def put(self, room: int, rows: NDArray[np.int64]) -> None:
        """Lay rows with this room left back on their pile."""
        if room == 0 or not len(rows):
            return
        pile = self.piles.get(room)
        self.piles[room] = rows if pile is None else np.concatenate([rows, pile])
        self.piles_present |= 1 << room


def _stable_order(values: NDArray[np.int64], largest: int) -> NDArray[np.int64]:
    # numpy sorts 16-bit integers by radix, in a tenth of the time.
    return np.argsort(values.astype(np.uint16 if largest < 1 << 16 else np.int64), kind="stable")


def order_by_row(row_N: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """The order that brings the contents of each packed row together, row 0 first."""
    return _stable_order(row_N, num_rows)

"""Keys and values of what a backbone has read, so that the next token is read alone.

    cache = KeyValueCache(num_layers=12, max_rows=2)
    backbone(ids_BT, positions_B2T, visibility, cache=cache)        # two texts, of any lengths
    backbone(next_ids_B1, next_positions_B21, next_visibility, cache=cache)

Every row keeps its tokens without gaps: padding among the tokens that are read, at the right or at
the left, is not kept, so that a row of a batch holds what it would hold alone. lo and hi of the
visibility count these places. Rows may be of different lengths and get different numbers of tokens:
a row of 3 and one of 5 tokens that get 1 and 2 more (p is padding):

    document   0 -1     lo  0 0     hi  4 0     row 0: 4 tokens of 7 places
               0  0         0 0         6 7     row 1: 7 tokens of 7 places

Memory is taken once for `capacity` tokens a row, and doubled where that is not enough: a token is
copied a constant number of times, whatever the length.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.visibility import Visibility


class LayerCache:
    """Keys and values of one layer: (rows, H, capacity, K) each, once the first token is read.

    Heads come first, because a query reads the keys of one head after the other: 1.7 times as fast
    as tokens first (16 rows, 12 heads, 400 keys, one thread).
    """

    def __init__(self, cache: "KeyValueCache") -> None:
        self._cache = cache
        self._kv: list[Tensor] = []

    def extend(self, k_BTHK: Tensor, v_BTHK: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of the new tokens; all that are kept: (B, S, H, K) each."""
        cache = self._cache
        if not self._kv:
            heads, width = k_BTHK.shape[2:]
            size = (cache.max_rows, heads, cache.capacity, width)
            # Zeros: what lies behind the end of a row is hidden, but 0 x NaN would show.
            self._kv = [new.new_zeros(size) for new in (k_BTHK, v_BTHK)]
        kept = []
        for stored, new in zip(self._kv, (k_BTHK, v_BTHK), strict=True):
            new_NHK = new.flatten(0, 1)
            if cache.chosen_N is not None:
                new_NHK = new_NHK[cache.chosen_N]
            stored[cache.rows_N, :, cache.places_N] = new_NHK
            kept.append(stored[: len(cache.lengths), :, : cache.num_keys].transpose(1, 2))
        return kept[0], kept[1]

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens a row."""
        for number, stored in enumerate(self._kv):
            rows, heads, size, width = stored.shape
            larger = stored.new_zeros(rows, heads, capacity, width)
            larger[:, :, :size] = stored
            self._kv[number] = larger

    def move(self, targets_N: Tensor, sources_N: Tensor, first: int, stop: int) -> None:
        """Give rows `targets_N` the tokens first .. stop - 1 of rows `sources_N`."""
        for stored in self._kv:
            part = stored[:, :, first:stop]
            part[targets_N] = part[sources_N]


class KeyValueCache:
    """What every layer keeps of up to `max_rows` rows. lengths: tokens kept of each row."""

    def __init__(self, *, num_layers: int, max_rows: int, capacity: int = 0) -> None:
        """capacity: tokens a row is expected to reach, for which memory is taken at once."""
        self.max_rows, self.capacity = max_rows, capacity
        self.lengths: list[int] = []
        self.num_keys = 0  # the longest row
        self.layers = [LayerCache(self) for _ in range(num_layers)]
        # Of the tokens that are being read: which are no padding (None: all), and where they go.
        self.chosen_N: Tensor | None = None
        self.rows_N: Tensor = torch.empty(0, dtype=torch.int64)
        self.places_N: Tensor = torch.empty(0, dtype=torch.int64)

    def admit(self, visibility: Visibility) -> Visibility:
        """Make room for the tokens of `visibility`; the same, told how many keys there are."""
        inside_BT = ~visibility.padding().cpu()
        num_rows = len(inside_BT)
        self.lengths = self.lengths or [0] * num_rows
        assert num_rows == len(self.lengths) <= self.max_rows, "a cache keeps its rows"
        before_B = torch.tensor(self.lengths)
        self.lengths = (before_B + inside_BT.sum(1)).tolist()
        self.num_keys = max(self.lengths)
        if self.num_keys > self.capacity:
            self.capacity = max(self.num_keys, 2 * self.capacity)
            for layer in self.layers:
                layer.reserve(self.capacity)
        place_BT = before_B[:, None] + inside_BT.cumsum(1) - 1
        device = visibility.lo.device
        self.places_N = place_BT[inside_BT].to(device)
        self.rows_N = inside_BT.nonzero()[:, 0].to(device)
        self.chosen_N = None
        if not bool(inside_BT.all()):
            self.chosen_N = inside_BT.flatten().nonzero()[:, 0].to(device)
        return Visibility(visibility.lo, visibility.hi, visibility.document, self.num_keys)

    def keep(self, rows: Sequence[int], *, shared: int = 0) -> None:
        """Row i becomes what row rows[i] was; rows may be dropped, moved and repeated.

        A row that stays where it is costs nothing. shared: leading tokens that rows which change
        places have in common (the beams of one text), which are not copied.
        """
        moved = [(row, source) for row, source in enumerate(rows) if row != source]
        if moved:
            stop = max(self.lengths[source] for _, source in moved)
            device = self.places_N.device
            targets_N, sources_N = torch.tensor(moved, device=device).unbind(dim=1)
            for layer in self.layers:
                layer.move(targets_N, sources_N, shared, stop)
        self.lengths = [self.lengths[source] for source in rows]

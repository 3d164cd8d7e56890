"""Which keys a query sees, as one interval of keys per query; no T x T tensor is needed to say it.

Key j is visible to query i of the same packed row iff `lo[i] <= j < hi[i]`. For a document that
starts at `start` and whose first `sep` tokens see each other, lo = start and hi = max(i + 1,
start + sep): GLM and prefix-LM. sep = 0 is GPT, sep = the document's length is BERT. Documents
packed into one row never see each other. Padding has document -1 and lo = hi = 0: it sees nothing
and nothing sees it.

Two documents of 3 and 2 tokens with sep 2 and 0, then one position of padding:

    lo        0 0 0 3 3 0          key      0 1 2 3 4 5
    hi        2 2 3 4 5 0          query 0  x x . . . .
    document  0 0 0 1 1 -1               1  x x . . . .
                                         2  x x x . . .
                                         3  . . . x . .
                                         4  . . . x x .
                                         5  . . . . . .

With a cache the queries are only the last tokens of a row: lo, hi and document then have a column
for each query, and `num_keys` says how many keys there are.

Inside the documents of a row lo and hi rise with i, so the queries that see one key form one
interval too: blocks of queries or keys are skipped exactly, forward and backward. An arbitrary
T x T mask (the published code takes one as a 4-D tensor) is no interval and has no place here.

Latent slots are keys beside those of the row: M of them belong to each document and are seen by all
its queries and by nobody else.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Visibility:
    """lo, hi, document: (B, T) integers, in packed coordinates. Masks are built once and kept.

    num_keys: keys S of a row where they are not the queries themselves; None is S = T.
    """

    lo: Tensor
    hi: Tensor
    document: Tensor
    num_keys: int | None = None
    _kept: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    def dense_mask(self) -> Tensor:
        """True where the query (third axis) sees the key (last axis): bool (B, 1, T, S)."""
        return self.kept("dense", self._dense_mask)

    def slot_mask(self, num_documents: int, num_slots: int) -> Tensor:
        """True where the slot is one of the query's document: bool (B, 1, T, documents x slots).

        Slots lie document by document, in the order of `document`.
        """
        owner = torch.arange(num_documents, device=self.document.device)
        owner = owner.repeat_interleave(num_slots)
        return (self.document[:, :, None] == owner)[:, None]

    def additive_mask(
        self, dtype: torch.dtype, *, num_documents: int = 0, num_slots: int = 0
    ) -> Tensor:
        """0 where a key is visible and -inf where not: (B, 1, T, S), to be added to scores.

        With slots, their columns come first: (B, 1, T, documents x slots + S). Rows of padding are
        0 throughout, since a softmax over nothing is NaN; what they read has to be discarded by
        the caller.
        """
        key = (dtype, num_documents, num_slots)
        return self.kept(key, lambda: self._additive_mask(*key))

    def query_intervals(self) -> tuple[Tensor, Tensor]:
        """lo and hi with padding set to (S, 0): int32 (B, T) each.

        So padding changes neither the least lo of some queries nor the greatest hi.
        """
        return self.kept("query_intervals", self._query_intervals)

    def key_intervals(self) -> tuple[Tensor, Tensor]:
        """The queries that see each key, as first and one past the last: int32 (B, S) each.

        The transpose of lo and hi, which must rise inside of documents; (T, 0) for a key that
        nobody sees.
        """
        return self.kept("key_intervals", self._key_intervals)

    def document_bounds(self, num_documents: int) -> tuple[Tensor, Tensor]:
        """First token of documents 0 .. N - 1 of each row and one past their last: int32 (B, N).

        Both are equal for a document that the row does not have. Padding behind a document may be
        counted with it.
        """
        key = ("document_bounds", num_documents)
        return self.kept(key, lambda: self._document_bounds(num_documents))

    def padding(self) -> Tensor:
        """True at positions that belong to no document: bool (B, T)."""
        return self.document < 0

    def num_visible_pairs(self) -> Tensor:
        """Pairs of query and visible key in all rows: an int64 scalar tensor (no device sync)."""
        return (self.hi.long() - self.lo).masked_fill(self.padding(), 0).sum()

    def kept(self, key: object, make: Callable[[], T]) -> T:
        """What `make` gives, made once for all layers that ask under one key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _dense_mask(self) -> Tensor:
        key_S = torch.arange(self._num_keys(), device=self.lo.device, dtype=self.lo.dtype)
        above = key_S >= self.lo[:, :, None]
        below = key_S < self.hi[:, :, None]
        return (above & below & ~self.padding()[:, :, None])[:, None]

    def _additive_mask(self, dtype: torch.dtype, num_documents: int, num_slots: int) -> Tensor:
        seen = self.dense_mask()
        if num_slots:
            seen = torch.cat((self.slot_mask(num_documents, num_slots), seen), dim=-1)
        hidden = ~(seen | self.padding()[:, None, :, None])
        zeros = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        return zeros.masked_fill_(hidden, float("-inf"))

    def _query_intervals(self) -> tuple[Tensor, Tensor]:
        padding = self.padding()
        lo = self.lo.masked_fill(padding, self._num_keys()).int().contiguous()
        return lo, self.hi.masked_fill(padding, 0).int().contiguous()

    def _key_intervals(self) -> tuple[Tensor, Tensor]:
        lo, hi = self.query_intervals()
        # Padding takes its neighbours' values, with which both still rise and it sees nothing.
        lo = lo.flip(1).cummin(1).values.flip(1).contiguous()
        hi = hi.cummax(1).values.contiguous()
        key = torch.arange(self._num_keys(), device=lo.device, dtype=lo.dtype)
        key = key.expand(len(lo), -1).contiguous()
        first = torch.searchsorted(hi, key, right=True, out_int32=True)
        stop = torch.searchsorted(lo, key, right=True, out_int32=True)
        unseen = first >= stop
        return first.masked_fill(unseen, self.lo.shape[1]), stop.masked_fill(unseen, 0)

    def _document_bounds(self, num_documents: int) -> tuple[Tensor, Tensor]:
        rising = self.document.cummax(1).values.contiguous()
        number = torch.arange(num_documents, device=rising.device, dtype=rising.dtype)
        number = number.expand(len(rising), -1).contiguous()
        first = torch.searchsorted(rising, number, out_int32=True)
        return first, torch.searchsorted(rising, number, right=True, out_int32=True)

    def _num_keys(self) -> int:
        return self.lo.shape[1] if self.num_keys is None else self.num_keys


def single_documents(lengths_B: Tensor, seps_B: Tensor, num_tokens: int) -> Visibility:
    """Rows of one document each: its first sep tokens see each other, the rest see the past.

    lengths_B, seps_B: (B,) integers, sep <= length <= num_tokens; from length on is padding.
    """
    index_T = torch.arange(num_tokens, device=lengths_B.device)
    inside_BT = index_T < lengths_B[:, None]
    hi_BT = torch.maximum(index_T + 1, seps_B[:, None]) * inside_BT
    return Visibility(
        lo=torch.zeros_like(hi_BT, dtype=torch.int32),
        hi=hi_BT.int(),
        document=inside_BT.int() - 1,
    )

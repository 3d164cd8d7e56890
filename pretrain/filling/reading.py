"""How a model is asked for the next token of many drafts: with a cache, or reading all anew.

    reader = CachedReader(backbone, max_rows=32)
    logits_NV = reader(drafts)                          # reads the rows so far
    logits_NV = reader(open_drafts, rows=[0, 2])        # reads what is new; draft 1 is done

Both give the same scores up to rounding. The cache is the default; where the weights are sharded
over ranks, the engine is asked anew for whole rows (evaluate/samples.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from kernels.visibility import Visibility
from pretrain.filling.draft import Draft, inputs_of
from pretrain.models.backbone import Backbone, check_positions
from pretrain.models.cache import KeyValueCache

Scores = Callable[[Mapping[str, Tensor]], Tensor]


class Reader(Protocol):
    """Gives the scores of the next token of each draft: fp32 (N, V)."""

    def __call__(
        self, drafts: Sequence[Draft], *, rows: Sequence[int] | None = None, shared: int = 0
    ) -> Tensor:
        """drafts: of one batch; rows: which drafts of the call before they go on from.

        shared: leading tokens that drafts which change places have in common.
        """
        ...


class AnewReader:
    """Asks `scores` with whole rows."""

    def __init__(self, backbone: Backbone, scores: Scores) -> None:
        self._backbone, self._scores = backbone, scores

    def __call__(
        self, drafts: Sequence[Draft], *, rows: Sequence[int] | None = None, shared: int = 0
    ) -> Tensor:
        return self._scores(_checked(inputs_of(drafts, [0] * len(drafts)), self._backbone))


class CachedReader:
    """Reads every token once."""

    def __init__(self, backbone: Backbone, max_rows: int) -> None:
        self._backbone = backbone
        self._cache = KeyValueCache(num_layers=backbone.shape.num_layers, max_rows=max_rows)

    def __call__(
        self, drafts: Sequence[Draft], *, rows: Sequence[int] | None = None, shared: int = 0
    ) -> Tensor:
        if rows is not None:
            self._cache.keep(rows, shared=shared)
        starts = self._cache.lengths or [0] * len(drafts)
        inputs = _checked(inputs_of(drafts, starts), self._backbone)
        return next_scores(self._backbone, inputs, self._cache)


def next_scores(
    backbone: Backbone, inputs: Mapping[str, Tensor], cache: KeyValueCache | None = None
) -> Tensor:
    """Scores, fp32 (N, V), of what follows column `last` (N,) of each row of `inputs`.

    inputs: those of draft.inputs_of on the device of the weights; whole rows, or with a cache what
    follows the rows that it holds.
    """
    visibility = Visibility(inputs["lo"], inputs["hi"], inputs["document"])
    hidden_NTD = backbone(inputs["ids"], inputs["positions"], visibility, cache=cache)
    row_N = torch.arange(len(hidden_NTD), device=hidden_NTD.device)
    return backbone.logits(hidden_NTD[row_N, inputs["last"]]).float()


def _checked(inputs: dict[str, Tensor], backbone: Backbone) -> dict[str, Tensor]:
    check_positions(inputs["positions"], backbone.num_positions)
    device = backbone.embedding.token_table.device
    return {name: values.to(device) for name, values in inputs.items()}

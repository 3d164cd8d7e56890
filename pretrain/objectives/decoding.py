"""Texts beside z: how probable a known one is, and what comes next in one that is being written.

decoder = objective.decoder(model, z_BNZ)
decoder.target_nats(inputs)                 # of the targets of known texts: (N,)

decoder = objective.decoder(model, z_R1Z)   # one text a row
decoder.next_scores(columns)                # what may follow the last column: (R, V)
decoder.keep(torch.tensor([0, 2]))          # the other texts have ended
decoder.next_scores(next_columns)           # what was read before is known
"""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from kernels.visibility import Visibility
from pretrain.models.backbone import Backbone
from pretrain.models.cache import KeyValueCache
from pretrain.models.latent import Injected
from pretrain.objectives.loss import target_losses


class Decoder(Protocol):
    """What writes texts beside the z of each."""

    def target_nats(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Cross entropy of each target given z, in nats and fp32: (N,)."""
        ...

    def next_scores(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Scores, fp32 (R, V), of what follows the last of the columns, which are read behind those
        of the calls before.

        columns: ids, lo, hi, document (R, T) and positions (R, 2, T) of rows of one text each,
        without padding; lo and hi count from the first column that was ever read.
        """
        ...

    def keep(self, rows_R: Tensor) -> None:
        """Go on with these rows alone."""
        ...


class BackboneDecoder:
    """A backbone beside what z gives it, which is computed once and stands beside the cache of
    keys and values; that holds tokens alone."""

    def __init__(self, backbone: Backbone, injected: Injected | None = None) -> None:
        """injected: None where nothing is read but tokens."""
        self.backbone = backbone
        self.injected = Injected(None, None) if injected is None else injected
        self._cache: KeyValueCache | None = None

    def target_nats(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """See Decoder."""
        hidden_BTD, tied_VD = self._read(inputs)
        return target_losses(
            self.backbone, hidden_BTD, inputs["target_index"], inputs["targets"], tied_VD
        )

    def next_scores(self, columns: Mapping[str, Tensor]) -> Tensor:
        """See Decoder."""
        if self._cache is None:
            layers, rows = self.backbone.shape.num_layers, len(columns["ids"])
            self._cache = KeyValueCache(num_layers=layers, max_rows=rows, capacity=32)
        hidden_RTD, _ = self._read(columns, self._cache)
        return self.backbone.logits(hidden_RTD[:, -1]).float()

    def keep(self, rows_R: Tensor) -> None:
        """See Decoder."""
        assert self._cache is not None, "nothing has been read"
        self._cache.keep(rows_R.tolist())
        memory, added, _ = self.injected
        if memory is not None:
            memory = [(k[rows_R], v if v is None else v[rows_R]) for k, v in memory]
        added = added if added is None else added[rows_R]
        self.injected = self.injected._replace(memory=memory, latent_embedding=added)

    def _read(
        self, rows: Mapping[str, Tensor], cache: KeyValueCache | None = None
    ) -> tuple[Tensor, Tensor]:
        visibility = Visibility(rows["lo"], rows["hi"], rows["document"])
        injected = self.injected._asdict()
        return self.backbone(
            rows["ids"], rows["positions"], visibility, cache=cache, with_tied=True, **injected
        )

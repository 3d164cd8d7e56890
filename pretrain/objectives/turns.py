"""Aggressive training of an encoder: it catches up with the decoder before that moves again.

    turns = Turns(AggressiveConfig(max_encoder_updates=100))
    turns.sides()                      # what the next update moves: the encoder's half
    turns.note(nats)                   # the loss of an update that was applied

Updates of the encoder follow one another until the mean loss of a window of them is no longer below
that of the window before, or there are max_encoder_updates; then one update of the decoder. It ends
for good at the first evaluation whose mutual information is not above that of the one before; from
then on every update moves all. Every rank has the numbers that decide, so all decide alike; the
state is part of checkpoints. He et al. 2019, algorithm 1.
"""

import math
from collections.abc import Mapping
from typing import Any

from pretrain.settings.elbo_config import AggressiveConfig
from pretrain.settings.trains import SIDES, Side

READS: tuple[Side, ...] = ("encoder", "head")
WRITES: tuple[Side, ...] = ("injection", "decoder")


class Turns:
    """Whose update comes next."""

    def __init__(self, config: AggressiveConfig) -> None:
        self.config = config
        self.is_over = False
        self.encoder_updates = 0  # of this turn
        self.last_turn = 0  # encoder updates before the last update of the decoder
        self._nats = 0.0  # summed over this window
        self._window_before = math.inf  # its mean
        self._information = -math.inf  # of the last evaluation, in nats
        self._is_decoders = False

    def sides(self) -> tuple[Side, ...]:
        """The halves that the next update moves."""
        if self.is_over:
            return SIDES
        return WRITES if self._is_decoders else READS

    def note(self, nats: float) -> None:
        """Count an update that was applied; nats: its loss over all ranks."""
        if self.is_over:
            return
        if self._is_decoders:
            self.last_turn = self.encoder_updates
            self._begin()
            return
        self.encoder_updates += 1
        self._nats += nats
        if self.encoder_updates % self.config.window == 0:
            mean = self._nats / self.config.window
            self._is_decoders = mean >= self._window_before
            self._window_before, self._nats = mean, 0.0
        if self.encoder_updates >= self.config.max_encoder_updates:
            self._is_decoders = True

    def note_evaluation(self, scalars: Mapping[str, float]) -> str | None:
        """Compare the mutual information with that of the last evaluation; what is said where the
        aggressive training ends."""
        nats = scalars.get("mutual_information_nats")
        if self.is_over or nats is None:
            return None
        if nats > self._information:
            self._information = nats
            return None
        self.is_over = True
        return (
            f"aggressive training of the encoder ends: mutual information {nats:.3f} nats, not "
            f"above {self._information:.3f}; from here on every update moves all"
        )

    def scalars(self) -> dict[str, float]:
        """Encoder updates before the last update of the decoder, and whether it goes on."""
        return {
            "encoder_updates_per_decoder_update": float(self.last_turn),
            "aggressive": float(not self.is_over),
        }

    def state(self) -> dict[str, Any]:
        """What a resumed run must know, as plain JSON values."""
        return {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in self._values().items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; an empty one leaves it as it is.

        Raises ValueError where it is not such a state.
        """
        if not state:
            return
        kinds = {name: type(value) for name, value in self._values().items()}
        infinite = {"_window_before": math.inf, "_information": -math.inf}
        try:
            for name, kind in kinds.items():
                value = state[name]
                setattr(self, name, infinite[name] if value is None else kind(value))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"the checkpoint's state of the aggressive training is {state!r}: {error}. "
                "Resume from another one: --resume PATH."
            ) from error

    def _values(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "config"}

    def _begin(self) -> None:
        self.encoder_updates, self._nats, self._window_before = 0, 0.0, math.inf
        self._is_decoders = False

"""The collapse alarm: a latent space that says too little for several evaluations in a row.

    alarm = CollapseAlarm(AlarmConfig(active_units=4, evaluations=3, action="raise_free_bits"))
    alarm.note({"active_units": 1.0, ...})     # None, None, and the third time what is done

It is fed numbers that every rank has, so all ranks decide alike; its state is part of checkpoints.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pretrain.settings.elbo_config import AlarmConfig, FreeBitsConfig


class CollapseAlarm:
    """Counts evaluations below the thresholds; what free bits were raised by."""

    def __init__(self, config: AlarmConfig) -> None:
        self.config = config
        self.in_a_row = 0
        self.raised_nats = 0.0

    def note(self, scalars: Mapping[str, float]) -> str | None:
        """Count an evaluation; what was found and what is done about it, once it has come to that.

        scalars: active_units, mutual_information_nats and its ceiling, of health.py.
        """
        wrong = self._wrong(scalars)
        self.in_a_row = self.in_a_row + 1 if wrong else 0
        if not wrong or self.in_a_row < self.config.evaluations:
            return None
        said = f"the latent space collapses: {wrong}, {self.in_a_row} evaluations in a row"
        if self.config.action == "raise_free_bits":
            self.raised_nats += self.config.raise_nats
            self.in_a_row = 0
            return f"{said}; free_bits.nats are raised by {self.raised_nats:g} in all"
        return said

    @property
    def stops(self) -> bool:
        """Whether the run is to end where `note` says something."""
        return self.config.action == "stop"

    def raised(self, free_bits: FreeBitsConfig) -> FreeBitsConfig:
        """The free bits as they stand now."""
        return replace(free_bits, nats=free_bits.nats + self.raised_nats)

    def state(self) -> dict[str, float]:
        """What a resumed run must know, as plain JSON values."""
        return {"in_a_row": self.in_a_row, "raised_nats": self.raised_nats}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; an empty one leaves the alarm as it is.

        Raises ValueError where it is not such a state.
        """
        try:
            self.in_a_row = int(state.get("in_a_row", self.in_a_row))
            self.raised_nats = float(state.get("raised_nats", self.raised_nats))
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"the checkpoint's state of a collapse alarm is {state!r}: {error}. "
                "Resume from another one: --resume PATH."
            ) from error

    def _wrong(self, scalars: Mapping[str, float]) -> str | None:
        units, least = scalars.get("active_units"), self.config.active_units
        if units is not None and units < least:
            return f"{units:.0f} active units, fewer than {least}"
        nats = scalars.get("mutual_information_nats")
        if nats is None:
            return None
        ceiling = scalars["mutual_information_ceiling_nats"]
        if nats < self.config.mi_ratio * ceiling:
            return f"mutual information {nats:.3f} of at most {ceiling:.3f} nats"
        return None

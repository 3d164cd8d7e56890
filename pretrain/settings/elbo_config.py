"""What the evidence lower bound of a latent objective is made of; no torch, as config.py."""

import math
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class BetaConfig:
    """The factor of the KL term as a function of the applied updates (pretrain/objectives/elbo.py).

    The default is Optimus' pretraining: ten cycles, half of each at 0, a quarter rising, a quarter
    at the ceiling (Li et al. 2020; fine-tuning has one cycle).
    """

    schedule: Literal["cyclical", "linear", "constant"] = "cyclical"
    """cyclical: 0, rising, at the ceiling, again and again; linear: one rise over increase_ratio of
    the run; constant: the ceiling throughout."""
    ceiling: float = 1.0
    """Largest beta; 0 trains an autoencoder (with constant)."""
    cycles: int = 10
    """Cycles in the whole run (cyclical)."""
    zero_ratio: float = 0.5
    """Share of a cycle at 0 (cyclical)."""
    increase_ratio: float = 0.25
    """Share of a cycle, or with linear of the run, over which beta rises."""

    def __post_init__(self) -> None:
        if not 0 <= self.ceiling < math.inf:
            raise ValueError(f"beta.ceiling must be finite, 0 or more, got {self.ceiling}.")
        if self.cycles < 1:
            raise ValueError(f"beta.cycles must be at least 1, got {self.cycles}.")
        if not 0 <= self.zero_ratio < 1:
            raise ValueError(f"beta.zero_ratio must lie in [0, 1), got {self.zero_ratio}.")
        if not 0 < self.increase_ratio <= 1:
            raise ValueError(f"beta.increase_ratio must lie in (0, 1], got {self.increase_ratio}.")
        if self.schedule == "cyclical" and self.zero_ratio + self.increase_ratio > 1:
            raise ValueError(
                "beta.zero_ratio + beta.increase_ratio must not pass 1, got "
                f"{self.zero_ratio} + {self.increase_ratio}."
            )


@dataclass(frozen=True, kw_only=True)
class FreeBitsConfig:
    """How much KL costs nothing, against posteriors that collapse to the prior."""

    mode: Literal["none", "hinge", "mask", "total"] = "none"
    """hinge: max(nats, KL_d) of each dimension d (the paper); mask: KL_d where it is above nats,
    else 0 (Optimus' code; the same gradient); total: max(nats, sum of KL_d) of each text."""
    nats: float = 0.5
    """The threshold: of one dimension, or with total of all together."""

    def __post_init__(self) -> None:
        if not 0 <= self.nats < math.inf:
            raise ValueError(f"free_bits.nats must be finite, 0 or more, got {self.nats}.")


@dataclass(frozen=True, kw_only=True)
class AlarmConfig:
    """What is done about a latent space that says nothing (posterior collapse), as the held-out
    texts tell at every evaluation. Thresholds of 0 watch nothing."""

    active_units: int = 0
    """Fewer active units than so many are a collapse."""
    mi_ratio: float = 0.0
    """Mutual information below this share of its ceiling log N is one too."""
    evaluations: int = 3
    """So many of them in a row raise the alarm."""
    action: Literal["warn", "stop", "raise_free_bits"] = "warn"
    """warn: a line in the log, at each further evaluation again; stop: the run ends; its last
    checkpoint stays; raise_free_bits: free_bits.nats grow by raise_nats and the count begins
    anew."""
    raise_nats: float = 0.1
    """By how much, each time."""

    def __post_init__(self) -> None:
        if self.active_units < 0:
            raise ValueError(f"alarm.active_units must be 0 or more, got {self.active_units}.")
        if not 0 <= self.mi_ratio <= 1:
            raise ValueError(f"alarm.mi_ratio must lie in [0, 1], got {self.mi_ratio}.")
        if self.evaluations < 1:
            raise ValueError(f"alarm.evaluations must be at least 1, got {self.evaluations}.")
        if not 0 < self.raise_nats < math.inf:
            raise ValueError(f"alarm.raise_nats must be above 0, got {self.raise_nats}.")


@dataclass(frozen=True, kw_only=True)
class AggressiveConfig:
    """Aggressive training of the encoder (He et al. 2019): it alone moves until it has caught up,
    then the decoder by one update (pretrain/objectives/turns.py). Every update counts for the
    schedules and takes rows."""

    max_encoder_updates: int = 0
    """Most updates of the encoder before one of the decoder; 0: every update moves all. The
    published code has 99."""
    window: int = 15
    """Encoder updates whose mean loss is compared with the window before; where it is not below,
    the decoder's turn comes."""

    def __post_init__(self) -> None:
        if self.max_encoder_updates < 0:
            raise ValueError(
                "elbo.aggressive.max_encoder_updates must be 0 or more, got "
                f"{self.max_encoder_updates}."
            )
        if self.window < 1:
            raise ValueError(f"elbo.aggressive.window must be at least 1, got {self.window}.")


@dataclass(frozen=True, kw_only=True)
class ElboConfig:
    """How reconstruction and KL become one loss."""

    beta: BetaConfig = field(default_factory=BetaConfig)
    """Factor of the KL term."""
    free_bits: FreeBitsConfig = field(default_factory=FreeBitsConfig)
    """KL that costs nothing."""
    alarm: AlarmConfig = field(default_factory=AlarmConfig)
    """What is done about a collapse."""
    aggressive: AggressiveConfig = field(default_factory=AggressiveConfig)
    """Updates of the encoder alone, until it has caught up with the decoder."""
    reduction: Literal["token", "text", "length_weighted", "separate"] = "text"
    """What is divided by what. text: the mean over texts of reconstruction + beta KL (Optimus);
    token: the same sum divided by the number of targets, on the scale of a language model's loss;
    length_weighted: each text's reconstruction divided by its number of targets, its KL not
    (Optimus' --length_weighted_loss); separate: reconstruction divided by targets, KL by texts, so
    that beta counts as often as a text has tokens (AdaVAE)."""
    noise: Literal["sampled", "none"] = "sampled"
    """sampled: z ~ q(z | x); none: z = mu, a deterministic autoencoder."""
    window: int = 1024
    """Texts of this rank over which active units and mutual information are reported while
    training."""
    report_every: int = 20
    """Updates between these reports: a mixture of `window` densities at as many points takes some
    tens of milliseconds."""

    def __post_init__(self) -> None:
        for name, least in (("window", 2), ("report_every", 1)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"elbo.{name} must be at least {least}, got {getattr(self, name)}."
                )
        if self.alarm.action == "raise_free_bits" and self.free_bits.mode == "none":
            raise ValueError(
                "elbo.alarm.action: raise_free_bits needs free bits to raise: set "
                "elbo.free_bits.mode to hinge, mask or total."
            )

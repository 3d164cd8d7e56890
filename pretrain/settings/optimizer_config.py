"""How weights move: AdamW, the learning rate over the updates, and updates that are skipped."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with decoupled weight decay on matrices and embeddings, none on biases and
    LayerNorm."""

    lr: float = 4e-4
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of the first and second moment."""
    eps: float = 1e-6
    """Term added to the denominator."""
    weight_decay: float = 0.1
    """Decoupled weight decay."""
    gradient_clipping: float = 1.0
    """Largest global L2 norm of the gradient; 0 clips nothing."""

    def __post_init__(self) -> None:
        for name in ("lr", "eps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"optimizer.{name} must be above 0, got {getattr(self, name)}.")
        for name in ("weight_decay", "gradient_clipping"):
            if getattr(self, name) < 0:
                raise ValueError(f"optimizer.{name} must be 0 or more, got {getattr(self, name)}.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimizer.betas must lie in [0, 1), got {list(self.betas)}.")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate as a function of the update (pretrain/settings/schedule.py). Defaults are
    GLM-Base."""

    shape: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    """Decay after the warm-up; wsd is warm-up, stable, decay."""
    warmup_ratio: float = 0.05
    """Share of decay_steps over which the rate rises from 0."""
    decay_steps: int | None = None
    """Update at which the decay has ended; by default the run's `steps`."""
    end_ratio: float = 0.05
    """Rate after the decay, as a share of the peak. It never falls below."""
    wsd_decay_ratio: float = 0.1
    """Last share of decay_steps over which wsd decays."""

    def __post_init__(self) -> None:
        for name in ("warmup_ratio", "end_ratio", "wsd_decay_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"schedule.{name} must lie in [0, 1], got {getattr(self, name)}.")
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ValueError(f"schedule.decay_steps must be at least 1, got {self.decay_steps}.")
        if self.shape == "wsd" and self.warmup_ratio + self.wsd_decay_ratio > 1:
            raise ValueError(
                "schedule.warmup_ratio + schedule.wsd_decay_ratio must not pass 1, got "
                f"{self.warmup_ratio} + {self.wsd_decay_ratio}."
            )


@dataclass(frozen=True, kw_only=True)
class SpikesConfig:
    """Updates that are not applied (judge.py). One whose loss or gradient is not finite
    never is."""

    loss_deviations: float = 20.0
    """A loss above the median of the last `history` finite ones by more than so many median
    absolute deviations skips its update; 0 lets every finite loss pass. 20 are 13.5 standard
    deviations of a normal distribution: a batch that is merely hard stays far below."""
    history: int = 128
    """Losses of earlier steps that a loss is compared with; before there are so many none is a
    spike."""
    stop_after: int = 10
    """Updates skipped in a row, those of data.skip_steps left out, that end the run."""

    def __post_init__(self) -> None:
        if not 0 <= self.loss_deviations < float("inf"):
            raise ValueError(
                f"spikes.loss_deviations must be finite, 0 or more, got {self.loss_deviations}."
            )
        for name, least in (("history", 2), ("stop_after", 1)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"spikes.{name} must be at least {least}, got {getattr(self, name)}."
                )

"""What a run records of itself for who looks for lost time; no torch, as config.py."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """A trace of some steps, operation by operation, by torch's profiler."""

    start_step: int = 0
    """First step that is traced, from 1; 0 traces none."""
    steps: int = 3
    """Steps that are traced. A trace of a large model has some 10 MB a step and rank."""
    ranks: tuple[int, ...] = (0,)
    """Ranks that write one, as [0, 8]."""
    shapes: bool = False
    """Whether the sizes of every operation's inputs are kept; slows the traced steps down."""
    memory: bool = False
    """Whether allocations are kept; slows the traced steps down."""
    stacks: bool = False
    """Whether the Python lines that call an operation are kept; slows the traced steps down."""

    def __post_init__(self) -> None:
        if self.start_step < 0:
            raise ValueError(f"profile.start_step must be 0 or more, got {self.start_step}.")
        if self.steps < 1:
            raise ValueError(f"profile.steps must be at least 1, got {self.steps}.")
        if not self.ranks or min(self.ranks) < 0:
            raise ValueError(f"profile.ranks must name ranks from 0 on, got {list(self.ranks)}.")

    @property
    def last_step(self) -> int:
        """Last step that is traced; below start_step where none is."""
        return self.start_step + self.steps - 1 if self.start_step else -1


@dataclass(frozen=True, kw_only=True)
class StragglersConfig:
    """Ranks that the others wait for, looked for now and then."""

    every_steps: int = 50
    """Steps between two looks, each of which costs one small collective; 0 never looks."""
    slower_ratio: float = 1.5
    """A rank is named whose own matrix products take this many times what the others' median
    does."""
    wait_ratio: float = 0.1
    """A rank is named that waits for data for more than this share of its time."""

    def __post_init__(self) -> None:
        if self.every_steps < 0:
            raise ValueError(f"stragglers.every_steps must be 0 or more, got {self.every_steps}.")
        if self.slower_ratio <= 1:
            raise ValueError(f"stragglers.slower_ratio must be above 1, got {self.slower_ratio}.")
        if not 0 < self.wait_ratio < 1:
            raise ValueError(f"stragglers.wait_ratio must lie in (0, 1), got {self.wait_ratio}.")

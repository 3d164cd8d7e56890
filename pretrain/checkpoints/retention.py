"""Which checkpoints stay: the last ones, every n-th, and the best on held-out text.

Of steps 10 to 40 with held-out losses 3.1, 2.9, 3.0 and none, keep_last 1 and keep_best 1 keep 40
and 20.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Retention:
    """The three rules; a checkpoint stays where any of them keeps it."""

    keep_last: int = 3  # this many of the newest
    keep_every: int = 0  # those whose step is a multiple of it; 0: none for that reason
    keep_best: int = 0  # this many with the lowest held-out loss

    def __str__(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in asdict(self).items() if count)


def kept(held_out_nats: Mapping[int, float | None], rules: Retention) -> set[int]:
    """Steps of the checkpoints that stay.

    held_out_nats: the held-out loss of every checkpoint by its step; None where it was not
    measured. That, nan and inf are never among the best; of equal losses the later step is the
    better.
    """
    steps = sorted(held_out_nats)
    stay = set(steps[-rules.keep_last :])
    if rules.keep_every:
        stay |= {step for step in steps if step % rules.keep_every == 0}
    numbers = ((nats, -step) for step, nats in held_out_nats.items() if nats is not None)
    measured = [pair for pair in numbers if math.isfinite(pair[0])]
    return stay | {-negative for _, negative in sorted(measured)[: rules.keep_best]}

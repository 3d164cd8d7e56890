"""Contestants timed in turn: ours, peer, ours, peer, ..., so that a busy machine slows all alike.

times = take_turns({"ours": step, "peer": peer_step}, rounds=7)
times["peer"].median_s / times["ours"].median_s        # how many times faster we are
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Seconds of every round, by the clock of the wall and by that of this process's CPU."""

    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.wall_s) == len(self.cpu_s) > 0

    def __add__(self, other: "Times") -> "Times":
        """Two parts of one step, round by round."""
        return Times(_plus(self.wall_s, other.wall_s), _plus(self.cpu_s, other.cpu_s))

    @property
    def median_s(self) -> float:
        """The median by the clock of the wall."""
        return statistics.median(self.wall_s)

    @property
    def least_s(self) -> float:
        """The fastest round by the clock of the wall."""
        return min(self.wall_s)

    @property
    def median_cpu_s(self) -> float:
        """The median by the clock of this process's CPU, which others on the machine move less."""
        return statistics.median(self.cpu_s)


def take_turns(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    before_each: Callable[[], object] = lambda: None,
) -> dict[str, Times]:
    """Times of every contestant over `rounds` rounds, each of which runs all of them in order.

    One round before them is not counted. before_each: what is done, untimed, before a contestant
    runs (a barrier of ranks).
    """
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            gc.collect()
            before_each()
            wall_from, cpu_from = time.perf_counter(), time.process_time()
            run()
            if number:
                wall[name].append(time.perf_counter() - wall_from)
                cpu[name].append(time.process_time() - cpu_from)
    return {name: Times(tuple(wall[name]), tuple(cpu[name])) for name in contestants}


def _plus(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))

"""Ranks that the others wait for, named by rank 0 with their hosts.

Under ZeRO all ranks finish a step together, since each waits for the others' parts layer by layer:
the time of a step does not tell who is late. Two times do, and are this rank's own:

    products   what its matrix products took in one step; a slow or shared device, heavy rows
    data       what it waited for batches; a slow disk, too few loader workers

Every stragglers.every_steps one step is looked at: its products are timed, and one sum over ranks
carries both times of all of them to rank 0. Other steps cost nothing.
"""

import logging
import socket
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from pretrain.distributed.world import World
from pretrain.models.parameters import Linear
from pretrain.settings.watch_config import StragglersConfig

logger = logging.getLogger(__name__)


class ProductClock:
    """What the matrix products of a model take on this rank alone.

    A layer's weights are gathered before its hook is called, so no waiting for others is counted;
    on a GPU two events around each product say how long the device worked.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._layers = [module for module in model.modules() if isinstance(module, Linear)]
        self._on_gpu = device.type == "cuda"
        self._handles: list[RemovableHandle] = []
        self._times: list[tuple[Any, Any]] = []
        self._started: Any = None

    def start(self) -> None:
        """Time the products from here on."""
        self._times = []
        for layer in self._layers:
            self._handles += [
                layer.register_forward_pre_hook(lambda *_: self._begin()),
                layer.register_forward_hook(lambda *_: self._finish()),
            ]

    def stop(self) -> float:
        """The seconds that they took since `start`."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if not self._on_gpu:
            return sum(finished - begun for begun, finished in self._times)
        torch.cuda.synchronize()
        return sum(begun.elapsed_time(finished) for begun, finished in self._times) / 1000

    def _begin(self) -> None:
        self._started = self._now()

    def _finish(self) -> None:
        self._times.append((self._started, self._now()))

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Stragglers:
    """Looks at one step in `every_steps`, on all ranks alike."""

    def __init__(self, config: StragglersConfig, model: nn.Module | None, world: World) -> None:
        """model: whose products are timed; None where a compiler has made others of them."""
        self._config, self._world = config, world
        self._every = config.every_steps if world.world_size > 1 else 0
        if model is None and self._every:
            logger.info("stragglers: compiled layers are not timed, only what waits for data")
        self._clock = ProductClock(model or nn.Module(), world.device)
        self._hosts = world.gather(socket.gethostname()) if self._every else []
        self._waited_s, self._since = 0.0, time.perf_counter()
        self._is_first = True
        self._named: dict[str, int | None] = {}

    def before(self, step: int) -> None:
        """Time the products of `step` where it is one to look at."""
        if self._is_due(step):
            self._clock.start()

    def after(self, step: int, data_wait_s: float) -> dict[str, float]:
        """What the look of this step has found, by tag, the same on all ranks; {} without one."""
        self._waited_s += data_wait_s
        if self._is_first:  # its rows are planned from nothing, which is no straggler's fault
            self._is_first, self._waited_s, self._since = False, 0.0, time.perf_counter()
        if not self._is_due(step):
            return {}
        elapsed_s = max(time.perf_counter() - self._since, 1e-9)
        own = [self._clock.stop(), self._waited_s / elapsed_s]
        self._waited_s, self._since = 0.0, time.perf_counter()
        of_all = torch.zeros(self._world.world_size, 2, dtype=torch.float64)
        of_all[self._world.rank] = torch.tensor(own, dtype=torch.float64)
        seconds, waits = self._world.sum(of_all).T.tolist()
        slowest, longest = _greatest(seconds), _greatest(waits)
        usual_s = statistics.median([s for rank, s in enumerate(seconds) if rank != slowest])
        ratio = seconds[slowest] / usual_s if usual_s else 1.0
        self._name(
            step, "products", slowest if ratio > self._config.slower_ratio else None,
            f"its matrix products take {ratio:.1f} times what the others' do, "
            f"{seconds[slowest]:.3f} s of a step and {usual_s:.3f} s",
        )  # fmt: skip
        self._name(
            step, "data", longest if waits[longest] > self._config.wait_ratio else None,
            f"it waits for data {waits[longest]:.0%} of the time (data.num_workers, its disk)",
        )  # fmt: skip
        return {
            "ranks/slowest_rank": float(slowest),
            "ranks/slowest_products_ratio": ratio,
            "ranks/longest_data_wait_rank": float(longest),
            "ranks/longest_data_wait_ratio": waits[longest],
        }

    def _is_due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def _name(self, step: int, what: str, rank: int | None, why: str) -> None:
        """Say on rank 0 that `rank` keeps the others waiting, once for as long as it is the one."""
        before, self._named[what] = self._named.get(what), rank
        if not self._world.leads or rank == before:
            return
        if rank is None:
            logger.info("step %d: no rank is behind any more (%s)", step, what)
        else:
            host = self._hosts[rank]
            logger.warning("step %d: rank %d on %s is behind: %s", step, rank, host, why)


def _greatest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda rank: values[rank])

"""A trace of some steps for Perfetto (ui.perfetto.dev), chrome://tracing or TensorBoard's plugin.

    profile: {start_step: 100, steps: 3, ranks: [0, 1]}

writes runs/NAME/profile/rank-0-steps-100-102.pt.trace.json, a file for each rank that is named.
Steps that were not traced cost nothing.
"""

import logging
import os
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from pretrain.distributed.world import World
from pretrain.settings.watch_config import ProfileConfig

logger = logging.getLogger(__name__)


class Profiler:
    """The traces of this rank; of most ranks, and of most steps, there are none."""

    def __init__(self, config: ProfileConfig, run_folder: Path, world: World, step: int) -> None:
        """step: steps that are done. Raises AgreedError where a rank is named that is not there."""
        missing = [rank for rank in config.ranks if rank >= world.world_size]
        if config.start_step and missing:
            world.agree(
                f"profile.ranks names rank {missing[0]}, and there are {world.world_size}: 0 to "
                f"{world.world_size - 1}."
            )
        self._config, self._world = config, world
        self._folder = run_folder / "profile"
        self._running: profile | None = None
        self._first = max(config.start_step, step + 1)
        self._is_wanted = bool(config.start_step) and world.rank in config.ranks
        if config.start_step and step >= config.last_step and world.leads:
            logger.info("profile: its last step, %d, is done: no trace", config.last_step)

    def before(self, step: int) -> None:
        """Begin to trace where `step` is the first of those that are wanted."""
        if not self._is_wanted or step != self._first or step > self._config.last_step:
            return
        activities = [ProfilerActivity.CPU]
        if self._world.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._running = profile(
            activities=activities,
            record_shapes=self._config.shapes,
            profile_memory=self._config.memory,
            with_stack=self._config.stacks,
        )
        self._running.__enter__()

    def after(self, step: int, *, leaves: bool = False) -> None:
        """Write the trace where `step` was the last of them, or the run `leaves` after it."""
        if self._running is None or (step < self._config.last_step and not leaves):
            return
        running, self._running = self._running, None
        running.__exit__(None, None, None)
        name = f"rank-{self._world.rank}-steps-{self._first}-{step}.pt.trace.json"
        partial = self._folder / f"{name}.partial"
        try:
            self._folder.mkdir(exist_ok=True)
            running.export_chrome_trace(str(partial))
            os.replace(partial, self._folder / name)
        except OSError as problem:  # no reason to end a training
            logger.error("profile: the trace cannot be written: %s", problem)
            return
        logger.info("profile: steps %d to %d in %s", self._first, step, self._folder / name)

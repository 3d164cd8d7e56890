"""What a run records of itself while it trains: traces of some steps, and ranks that are behind."""

from pretrain.training.profiling import Profiler
from pretrain.training.setup import Setup
from pretrain.training.stragglers import Stragglers


class Watch:
    """Looks at the steps of a run on every rank; most of them cost nothing."""

    def __init__(self, setup: Setup) -> None:
        config = setup.config
        self._profiler = Profiler(config.profile, setup.folder.path, setup.world, setup.step)
        model = setup.engine.module if config.memory.compile == "none" else None
        self._stragglers = Stragglers(config.stragglers, model, setup.world)

    def before(self, step: int) -> None:
        """`step` is about to be taken."""
        self._profiler.before(step)
        self._stragglers.before(step)

    def after(self, step: int, data_wait_s: float) -> dict[str, float]:
        """`step` is taken, after waiting so long for its rows; what was found, by tag."""
        found = self._stragglers.after(step, data_wait_s)
        self._profiler.after(step)
        return found

    def leave(self, step: int) -> None:
        """`step` was the last one of this start."""
        self._profiler.after(step, leaves=True)

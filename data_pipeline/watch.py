"""How long work reports its progress to whoever watches."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

_EVERY_S = 30.0
_log = logging.getLogger(__name__)

# Opened with the bytes to come (None: unknown); gives the function that is told of bytes done.
Watch = Callable[[int | None], AbstractContextManager[Callable[[int], object]]]


@contextmanager
def unwatched(total_bytes: int | None) -> Iterator[Callable[[int], object]]:
    """Nobody watches."""
    yield lambda num_bytes: None


@contextmanager
def logged(total_bytes: int | None) -> Iterator[Callable[[int], object]]:
    """A line in the log every half minute, for whoever reads it later."""
    begun_s = told_s = time.monotonic()
    done = 0

    def on_bytes(num_bytes: int) -> None:
        nonlocal told_s, done
        done += num_bytes
        now_s = time.monotonic()
        if now_s - told_s >= _EVERY_S:
            told_s = now_s
            of_all = f" of {total_bytes / 1e9:,.2f}" if total_bytes else ""
            rate = done / 1e6 / (now_s - begun_s)
            _log.info("%s%s GB done, %.1f MB/s", f"{done / 1e9:,.2f}", of_all, rate)

    yield on_bytes


class InLumps:
    """Passes a count of bytes on, many at a time."""

    def __init__(self, tell: Callable[[int], object], lump_bytes: int = 4 << 20) -> None:
        self._tell, self._lump_bytes, self._pending = tell, lump_bytes, 0

    def __call__(self, num_bytes: int) -> None:
        self._pending += num_bytes
        if self._pending >= self._lump_bytes:
            self.flush()

    def flush(self) -> None:
        """Pass on what is left."""
        if self._pending:
            self._tell(self._pending)
        self._pending = 0

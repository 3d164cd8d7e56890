"""How long work reports its progress to whoever watches."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

# Opened with the bytes to come (None: unknown); gives the function that is told of bytes done.
Watch = Callable[[int | None], AbstractContextManager[Callable[[int], object]]]


@contextmanager
def unwatched(total_bytes: int | None) -> Iterator[Callable[[int], object]]:
    """Nobody watches."""
    yield lambda num_bytes: None


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

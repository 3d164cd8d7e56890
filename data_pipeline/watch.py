"""How long work reports its progress to whoever watches."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

# Opened with the bytes to come (None: unknown); gives the function that is told of bytes done.
Watch = Callable[[int | None], AbstractContextManager[Callable[[int], object]]]


@contextmanager
def unwatched(total_bytes: int | None) -> Iterator[Callable[[int], object]]:
    """Nobody watches."""
    yield lambda num_bytes: None

"""A rank of tests/pretrain/test_watching.py: trainings in which the last rank is behind.

`python watch_cases.py CASES.json`, in the environment of a rank; CASES.json: a list of [what is
slow, arguments of a training].
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pretrain.__main__ import leave_at_once
from pretrain.distributed.world import join_world, leave_world
from pretrain.models.parameters import Linear
from pretrain.recording.run_log import log_to_stderr
from pretrain.settings.cli import parse_train
from pretrain.training import train


@contextmanager
def slow(what: str) -> Iterator[None]:
    """Inside, this rank's `products` or `data` take long."""
    forward, stream = Linear.forward, train.training_stream

    def slow_forward(layer: Linear, x: Any) -> Any:
        time.sleep(0.02)
        return forward(layer, x)

    def slow_stream(*arguments: Any) -> Iterator[Any]:
        for batch in stream(*arguments):
            time.sleep(0.2)
            yield batch

    if what == "products":
        setattr(Linear, "forward", slow_forward)  # noqa: B010
    elif what == "data":
        setattr(train, "training_stream", slow_stream)  # noqa: B010
    try:
        yield
    finally:
        setattr(Linear, "forward", forward)  # noqa: B010
        setattr(train, "training_stream", stream)  # noqa: B010


def main() -> None:
    log_to_stderr()
    world = join_world(timeout_s=120)
    for what, arguments in json.loads(Path(sys.argv[1]).read_text()):
        with slow(what if world.rank == world.world_size - 1 else "nothing"):
            train.run_in(world, *parse_train(arguments))
    leave_world()


if __name__ == "__main__":
    main()
    leave_at_once(0)

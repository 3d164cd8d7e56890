"""Two training steps of a small model under ZeRO-3 on one rank, as a process: prints what they did.

Attention and embedding run on the backend that KERNELS_BACKEND names.
"""

import itertools

from bench.sizes import Size, engine_of
from bench.texts import planned_batches
from data_pipeline.transforms.blank import BlankConfig
from pretrain.__main__ import leave_at_once
from pretrain.distributed.world import join_world, leave_world
from pretrain.objectives.glm import GlmObjective
from pretrain.training.update import apply_update

SMALL = Size("small", 1, 64, 2, 256, row_tokens=64, rows=1)


def main() -> None:
    """Print loss and gradient norm of each step."""
    world = join_world(timeout_s=600)
    stream = itertools.cycle(planned_batches(vocab_size=256, rows=1, row_tokens=64, count=2))
    engine = engine_of(SMALL, 1, world)
    objectives = [GlmObjective(BlankConfig())]
    for step in range(2):
        update, _ = apply_update(engine, objectives, {"glm": stream}, lr=1e-3, seed=1, step=step)
        print("step", update.loss(objectives), update.gradient_norm)
    leave_world()


if __name__ == "__main__":
    main()
    leave_at_once(0)

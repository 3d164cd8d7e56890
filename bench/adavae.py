"""AdaVAE beside training all of the same model: time of a step, and memory.

Both take the same step on the same packed sentences; one learns adapters, slots and LayerNorms
(trains: adapters), the other every weight (trains: all). Each has a process of its own and they
take turns; memory is the largest resident size of the process, less what it was before there was a
model.
"""

import itertools
import multiprocessing
import resource
import sys
import time
from multiprocessing.connection import Connection

from bench.sizes import SIZES, engine_of
from bench.table import Row, rate_row
from bench.timing import Times
from bench.vae import ROWS, model_of, packed_sentences
from pretrain.distributed.world import join_world, leave_world
from pretrain.objectives.adavae import AdaVae
from pretrain.objectives.latent import LatentObjective
from pretrain.objectives.loss import ObjectiveModel
from pretrain.settings.latent_config import AdaVaeConfig
from pretrain.settings.trains import Trains, TrainsPolicy, UnfreezingConfig
from pretrain.training.update import apply_update

CONTESTANTS: dict[str, Trains] = {"ours": "adapters", "peer": "all"}
ROUNDS = {"S": 8, "B": 4}
ENCODER_LAYERS = {"S": 3, "B": 8}
ADAPTER_SIZE = {"S": 32, "B": 128}


def adavae_rows(name: str, quick: bool) -> list[Row]:
    """The rows of size `name`, S or B."""
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    processes = []
    for contestant, trains in CONTESTANTS.items():
        ends[contestant], theirs = context.Pipe()
        processes.append(context.Process(target=_contestant, args=(name, trains, theirs)))
        processes[-1].start()
    spent: dict[str, list[tuple[float, float]]] = {contestant: [] for contestant in ends}
    work = {contestant: end.recv() for contestant, end in ends.items()}
    for _ in range(2 if quick else ROUNDS[name]):
        for contestant, end in ends.items():
            end.send("step")
            spent[contestant].append(end.recv())
    memory_gb = {}
    for contestant, end in ends.items():
        end.send("stop")
        memory_gb[contestant] = end.recv()
    for process in processes:
        process.join()
    times = {c: Times(*(tuple(clock) for clock in zip(*s, strict=True))) for c, s in spent.items()}
    return [
        rate_row(
            f"adavae_step_{name}_1rank",
            "training all of it",
            (times["ours"], times["peer"]),
            (work["ours"], work["peer"]),
            "tokens/s",
            1.0,
        ),
        Row(
            bench=f"adavae_memory_{name}_1rank",
            ours=1.0 / memory_gb["ours"],
            peer="training all of it",
            peer_value=1.0 / memory_gb["peer"],
            unit="runs/GB",
            goal=1.0,
        ),
    ]


def _contestant(name: str, trains: Trains, parent: Connection) -> None:
    """Take a step whenever the parent says so; tell it tokens, seconds and, at last, gigabytes."""
    size, before_gb = SIZES[name], _largest_gb()
    config = AdaVaeConfig(
        weight=1.0, encoder_layers=ENCODER_LAYERS[name], adapter_size=ADAPTER_SIZE[name]
    )
    objective = LatentObjective(AdaVae(config), steps=1000)
    policy = TrainsPolicy(
        trains,
        UnfreezingConfig(),
        num_layers=size.num_layers,
        shared_layers=config.encoder_layers,
    )

    def make_model() -> ObjectiveModel:
        model = model_of(size, objective)
        policy.freeze(model)
        return model

    world = join_world(timeout_s=600)
    engine = engine_of(size, ROWS[name], world, make_model, backbone_calls=objective.backbone_calls)
    batches = packed_sentences(size, objective)
    stream = itertools.cycle(batches)
    for step in itertools.count():
        wall_from, cpu_from = time.perf_counter(), time.process_time()
        update, _ = apply_update(
            engine, [objective], {objective.name: stream}, lr=1e-4, seed=1, step=step
        )
        seconds = (time.perf_counter() - wall_from, time.process_time() - cpu_from)
        # The first step is not counted; the tokens of all are nearly the same.
        parent.send(seconds if step else update.tokens)
        if parent.recv() == "stop":
            break
    parent.send(_largest_gb() - before_gb)
    leave_world()


def _largest_gb() -> float:
    """Largest resident size of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9

"""make bench-scale: a step on 1 and 2 local ranks beside what `plan` and ZeRO's formula say of it.

    python -m bench.scale                  # 1 and 2 ranks, bench/results/scale.json
    python -m bench.scale --ranks 1 2 4    # four ranks on two cores crawl: half an hour

Size S in fp32 with two rows a rank, on gloo. Bytes and memory: with nothing kept gathered, as
ZeRO-3's formula has it. Seconds: with ds_config.json as it is shipped.
"""

import argparse
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.collectives import Sent
from bench.groups import rank_environments, versions
from bench.live_memory import most_added_bytes, storages
from bench.sizes import SIZES
from bench.texts import planned_batches
from data_pipeline.packing.loader import Batch
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.transforms.blank import BlankConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World, join_world
from pretrain.models.backbone import decays
from pretrain.models.layer import Layer
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.loss import Objective, ObjectiveModel
from pretrain.planning.gpus import GPUS
from pretrain.planning.plan import Planner
from pretrain.planning.rows import RowContent
from pretrain.settings.config import BatchConfig, Config
from pretrain.settings.data_config import DataConfig
from pretrain.settings.deepspeed_settings import REPOSITORY, complete
from pretrain.settings.optimizer_config import OptimizerConfig
from pretrain.training.update import apply_update

NOTHING_KEPT = {
    "stage": 3,
    "reduce_scatter": True,
    "reduce_bucket_size": 1_000_000,
    "stage3_param_persistence_threshold": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
}
ROWS, NUM_BATCHES, STEPS = 2, 4, 7
SIZE = replace(SIZES["S"], rows=ROWS)
PROBE_ELEMENTS = 4_000_000  # of the gather that the network's speed is measured by


def measured(folder: Path) -> dict[str, float]:
    """What one rank of the world finds; every rank calls this."""
    world = join_world(timeout_s=900)
    batches = planned_batches(
        vocab_size=SIZE.vocab_size, rows=ROWS, row_tokens=SIZE.row_tokens, count=NUM_BATCHES,
        rank=world.rank, world_size=world.world_size,
    )  # fmt: skip
    file = folder / f"nothing_kept.{world.rank}.json"
    file.write_text(json.dumps({"zero_optimization": NOTHING_KEPT}))
    before = storages()
    step, parameters = _training(file, world, batches)
    for _ in range(3):
        step()
    with Sent() as sent:
        step()
    state = sum(size for place, size in storages().items() if place not in before)
    most = most_added_bytes(step)
    planned = _planned(file, world.world_size, parameters, batches)
    del step
    timed, _ = _training(REPOSITORY / "ds_config.json", world, batches)
    with Sent() as shipped:
        timed()
    return {
        "sent_bytes": sent.total_bytes,
        "shipped_sent_bytes": shipped.total_bytes,
        "memory_bytes": float(state + most),
        "seconds": _seconds(timed, world),
        "gather_bytes_per_s": _gather_rate(world),
        **planned,
    }


def _training(file: Path, world: World, batches: list[Batch]) -> tuple[Callable[[], object], int]:
    settings = complete(
        file, micro_rows=ROWS, accumulation=1, world_size=world.world_size,
        gradient_clipping=1.0, precision="fp32",
    )  # fmt: skip
    engine = Engine(
        lambda: ObjectiveModel(SIZE.backbone()), decays=decays, optimizer=OptimizerConfig(),
        settings=settings, world=world, gathered_whole=(Layer,),
    )  # fmt: skip
    objective: Objective = GlmObjective(BlankConfig())
    stream, updates = itertools.cycle(batches), itertools.count()

    def step() -> object:
        return apply_update(
            engine, [objective], {"glm": stream}, lr=1e-4, seed=1, step=next(updates)
        )

    return step, sum(engine.num_parameters.values())


def _planned(file: Path, ranks: int, parameters: int, batches: list[Batch]) -> dict[str, float]:
    """What `plan` says of the same run, on devices that it knows."""
    config = Config(
        name="scale",
        steps=1,
        data=DataConfig(
            shards="none",
            packing=PackingConfig(source_tokens=SIZE.row_tokens - 2, row_tokens=SIZE.row_tokens),
        ),
        batch=BatchConfig(global_rows=ROWS * ranks, micro_rows=ROWS),
        model=replace(SIZE.shape, max_positions=SIZE.row_tokens),  # as many rows as the backbone's
        precision="fp32",
        deepspeed_config=str(file),
    )
    targets = sum(int((b.weights > 0).sum()) for b in batches) / len(batches) / ROWS
    content = RowContent(
        source_tokens=SIZE.row_tokens, tokens=SIZE.row_tokens, targets=targets, visible_pairs=1.0,
        vocab_size=SIZE.vocab_size, corpus_tokens=None, origin="",
    )  # fmt: skip
    planner = Planner(config, ranks, {"glm": content})
    assert planner.num_parameters == parameters, (planner.num_parameters, parameters)
    plan = planner.plan(GPUS["h200"], 0.4, "", {})
    return {
        "planned_memory_bytes": plan.memory.total - plan.memory.reserved,
        "planned_sent_bytes": plan.sent_bytes_per_step,
    }


def _seconds(step: Callable[[], object], world: World) -> float:
    taken = []
    for _ in range(STEPS):
        world.barrier()
        started_at = time.perf_counter()
        step()
        taken.append(time.perf_counter() - started_at)
    return statistics.median(taken)


def _gather_rate(world: World) -> float:
    """Bytes a second that a gather moves past this rank; 0 on one."""
    if world.world_size == 1:
        return 0.0
    share = torch.ones(PROBE_ELEMENTS)
    whole = torch.empty(PROBE_ELEMENTS * world.world_size)
    taken = []
    for _ in range(5):
        world.barrier()
        started_at = time.perf_counter()
        dist.all_gather_into_tensor(whole, share)
        taken.append(time.perf_counter() - started_at)
    moved = 4 * PROBE_ELEMENTS * (world.world_size - 1)
    return moved / statistics.median(taken)


def measure(ranks: int) -> dict[str, float]:
    """`measured` on so many new processes: memory and bytes in the mean, seconds of the slowest."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.scale", "--measure", folder]
        started = [
            subprocess.Popen(
                command, cwd=REPOSITORY, env=environment | {"DS_ACCELERATOR": "cpu"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for environment in rank_environments(ranks)
        ]  # fmt: skip
        said = [process.communicate()[0] for process in started]
        for process, text in zip(started, said, strict=True):
            if process.returncode:
                raise RuntimeError(f"bench.scale on {ranks} ranks failed:\n{text[-4000:]}")
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("result.*"))]
    mean = {key: sum(rank[key] for rank in found) / ranks for key in found[0]}
    return mean | {"seconds": max(rank["seconds"] for rank in found)}


def as_text(results: dict[int, dict[str, float]]) -> str:
    """The tables of a measurement, in Markdown."""
    lines = [
        "| ranks | sent an update | ZeRO-3's formula | ratio | sent as shipped | memory of a rank "
        "| plan | ratio | s/step as shipped |",
        "|" + " --- |" * 9,
    ]
    for ranks, r in results.items():
        formula = r["planned_sent_bytes"]
        ratio = f"{r['sent_bytes'] / formula:.3f}" if formula else ""
        lines.append(
            f"| {ranks} | {_mb(r['sent_bytes'])} | {_mb(formula)} | {ratio} "
            f"| {_mb(r['shipped_sent_bytes'])} | {_mb(r['memory_bytes'])} "
            f"| {_mb(r['planned_memory_bytes'])} "
            f"| {r['memory_bytes'] / r['planned_memory_bytes']:.3f} | {r['seconds']:.3f} |"
        )
    if 1 in results and 2 in results:
        alone, two = results[1], results[2]
        sending_s = two["shipped_sent_bytes"] / two["gather_bytes_per_s"]
        lines += [
            "",
            f"gloo moved {two['gather_bytes_per_s'] / 1e9:.2f} GB/s past a rank of two: what a "
            f"step sends would take {sending_s:.3f} s. With the step of one rank "
            f"{alone['seconds'] + sending_s:.3f} s if nothing is hidden; measured "
            f"{two['seconds']:.3f} s.",
        ]
    return "\n".join(lines)


def _mb(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.2f} MB"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.measure:
        logging.disable(logging.WARNING)
        torch.set_num_threads(1)
        result = json.dumps(measured(arguments.measure))
        (arguments.measure / f"result.{dist.get_rank()}").write_text(result)
        dist.barrier()
        os._exit(0)  # gloo aborts the interpreter's own exit now and then
    results = {ranks: measure(ranks) for ranks in arguments.ranks}
    now = datetime.now(UTC)
    kept: dict[str, Any] = {"date": now.date().isoformat(), "versions": versions()}
    kept |= {"ranks": {str(ranks): found for ranks, found in results.items()}}
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / "scale.json"
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    load = os.getloadavg()[0]
    sys.stdout.write(f"\nscale: {now:%Y-%m-%d %H:%M} UTC, load {load:.1f}\n\n{as_text(results)}\n")


if __name__ == "__main__":
    main()

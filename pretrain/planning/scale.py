"""One recipe on ever more GPUs: `python -m pretrain plan --scale --config RECIPE --gpus 8 64 512`.

What ZeRO-3 sends, how long that takes on a network, which utilisation is left, and which settings
change it. Plain arithmetic: nothing here was measured on a GPU. With P parameters of w bytes,
gradients of g bytes and N GPUs in nodes of n:

    gathered for the forward pass     w P from all N
    gathered for the backward pass    w P from all N, or from the n of a node
    summed                            g P over all N

each once a micro-batch. A ring moves (N - 1) / N of it past every GPU; between nodes it is the
node's network that carries it, all cards together, inside a node the GPU's own link. A ring of N
has N - 1 hops, each of which takes a moment, whatever its size.

What is hidden behind arithmetic costs nothing (overlap_comm, prefetching); the two utilisations of
a row are those of everything hidden and of nothing hidden. A real run lies between.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from pretrain.planning.gpus import GIB, GPUS, Gpu
from pretrain.planning.planner import Planner
from pretrain.planning.rows import RowContent, glm_contents, mean_content, vocabulary_of
from pretrain.settings.config import BatchConfig, Config

GB = 1e9
LARGE_BUCKET = 500_000_000  # elements
RECOMPUTED = 4 / 3  # arithmetic where each layer's forward pass is run once more


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """A cluster's network, in bytes a second of one direction."""

    node_bytes_per_s: float
    """What a node sends to others, all its cards together."""
    inside_bytes_per_s: float = 450 * GB
    """What a GPU sends to others of its node (NVLink of H100 and H200)."""
    gpus_per_node: int = 8
    usable: float = 0.8
    """Share of these that collectives reach; assumed."""
    hop_s: float = 5e-6
    """From one GPU of a ring to the next, of no bytes; assumed."""

    def ring_s(self, num_bytes: float, gpus: int, calls: int) -> float:
        """Seconds to gather `num_bytes` from `gpus` GPUs, or to sum and scatter them, in so many
        collectives."""
        if gpus == 1:
            return 0.0
        rate = self.inside_bytes_per_s
        if gpus > self.gpus_per_node:
            rate = min(rate, self.node_bytes_per_s)
        moved = num_bytes * (gpus - 1) / gpus
        return moved / (rate * self.usable) + calls * (gpus - 1) * self.hop_s


@dataclass(frozen=True)
class Collectives:
    """Seconds of one micro-batch in each kind of collective."""

    forward_s: float
    backward_s: float
    reduce_s: float

    @property
    def total_s(self) -> float:
        """All of them, one behind the other."""
        return self.forward_s + self.backward_s + self.reduce_s


@dataclass(frozen=True)
class ScaleRow:
    """One recipe on one number of GPUs, gathered from all of them or inside nodes."""

    gpus: int
    global_rows: int
    micro_rows: int
    accumulation: int
    memory_bytes: float
    compute_s: float  # of a micro-batch
    collectives: Collectives
    sent_bytes: float  # by a GPU an update
    flop: float  # of an update
    peak: float  # FLOP a second of a GPU
    steps: int

    @property
    def utilisation(self) -> tuple[float, float]:
        """Of everything hidden behind arithmetic, and of nothing."""
        compute_s, sending_s = self.compute_s, self.collectives.total_s
        useful_s = self.flop / (self.gpus * self.peak * self.accumulation)
        return useful_s / max(compute_s, sending_s), useful_s / (compute_s + sending_s)

    @property
    def days(self) -> float:
        """Of the whole run, everything hidden."""
        micro_s = max(self.compute_s, self.collectives.total_s)
        return self.steps * self.accumulation * micro_s / 86_400


def scale_row(
    config: Config,
    rows: RowContent,
    *,
    gpus: int,
    gpu: Gpu,
    fabric: Fabric,
    kernels: float,
    changes: Mapping[str, int] | None = None,
) -> ScaleRow:
    """`config` on so many GPUs, with the largest micro-batch up to the recipe's that divides.

    rows: what a row holds in the mean. kernels: share of the peak while nobody waits. changes:
    fields of Zero that differ from DeepSpeed's file. Where the recipe's batch has fewer rows than
    GPUs, or does not divide, the nearest larger one that does is taken. Raises ValueError below
    stage 3.
    """
    config = _batch_that_divides(config, gpus)
    planner = Planner(config, gpus, {"glm": rows})
    zero = planner.zero = replace(planner.zero, **(changes or {}))
    if zero.stage != 3:
        raise ValueError(f"--scale is of ZeRO stage 3, and DeepSpeed's file says {zero.stage}.")
    plan = planner.plan(gpu, kernels, "", {})
    again = RECOMPUTED if config.memory.layers_per_checkpoint else 1.0
    peak = gpu.peak_flop_per_s(planner.precision)
    return ScaleRow(
        gpus=gpus,
        global_rows=config.batch.global_rows,
        micro_rows=config.batch.micro_rows,
        accumulation=planner.accumulation,
        memory_bytes=plan.memory.total,
        compute_s=again * plan.flop_per_step / (gpus * peak * kernels * planner.accumulation),
        collectives=_collectives(planner, fabric),
        sent_bytes=plan.sent_bytes_per_step,
        flop=plan.flop_per_step,
        peak=peak,
        steps=config.steps,
    )


def _collectives(planner: Planner, fabric: Fabric) -> Collectives:
    zero, size, gpus = planner.zero, planner.num_parameters, planner.num_gpus
    gathers = planner.config.model.num_layers + 2  # a layer at once, and the tables
    sums = math.ceil(size / max(zero.reduce_bucket, 1))
    inside = min(zero.second_partition, gpus) if zero.second_partition > 1 else gpus
    return Collectives(
        fabric.ring_s(planner.weight_bytes * size, gpus, gathers),
        fabric.ring_s(planner.weight_bytes * size, inside, gathers),
        fabric.ring_s(zero.gradient_bytes * size, gpus, sums),
    )


def _batch_that_divides(config: Config, gpus: int) -> Config:
    rows, micro = config.batch.global_rows, config.batch.micro_rows
    fitting = [m for m in range(1, micro + 1) if rows % (m * gpus) == 0]
    if not fitting:
        rows = math.ceil(rows / (gpus * micro)) * gpus * micro
        fitting = [micro]
    return replace(config, batch=BatchConfig(global_rows=rows, micro_rows=max(fitting)))


HEADS = ("", "rows", "micro x acc.", "memory", "sent", "compute", "gather + gather + sum", "MFU",
         "days")  # fmt: skip


@dataclass(frozen=True)
class Site:
    """What all rows of a table share."""

    config: Config
    rows: RowContent
    gpu: Gpu
    fabric: Fabric
    kernels: float

    def row(
        self, gpus: int, changes: Mapping[str, int] | None = None, *, doubled: bool = False
    ) -> ScaleRow:
        """One number of GPUs; doubled: twice the rows, of an update and of a micro-batch."""
        config = _batch_that_divides(self.config, gpus)
        rows, micro = config.batch.global_rows, config.batch.micro_rows
        if doubled:
            config = replace(config, batch=BatchConfig(global_rows=2 * rows, micro_rows=2 * micro))
        return scale_row(
            config, self.rows, gpus=gpus, gpu=self.gpu, fabric=self.fabric,
            kernels=self.kernels, changes=changes,
        )  # fmt: skip

    def counts(self, counts: Sequence[int]) -> str:
        """A table over numbers of GPUs, as the recipe and DeepSpeed's file are."""
        return _table("GPUs", [(f"{gpus:,}", self.row(gpus)) for gpus in counts])

    def settings(self, gpus: int) -> str:
        """A table over settings that change what is sent, on one number of GPUs."""
        node = {"second_partition": self.fabric.gpus_per_node}
        bucket, short = {"reduce_bucket": LARGE_BUCKET}, {"gradient_bytes": 2}
        return _table(
            f"on {gpus:,} GPUs",
            [
                ("as it is", self.row(gpus)),
                (f"reduce_bucket_size {LARGE_BUCKET:,}", self.row(gpus, bucket)),
                (f"zero_hpz_partition_size {self.fabric.gpus_per_node}", self.row(gpus, node)),
                ("numerics.reduction_dtype bf16", self.row(gpus, short)),
                ("twice the rows a GPU", self.row(gpus, doubled=True)),
                ("all of these", self.row(gpus, node | bucket | short, doubled=True)),
            ],
        )


def _table(head: str, rows: Sequence[tuple[str, ScaleRow]]) -> str:
    lines = [f"| {' | '.join((head, *HEADS[1:]))} |", "|" + " --- |" * len(HEADS)]
    for name, row in rows:
        sending = row.collectives
        parts = (sending.forward_s, sending.backward_s, sending.reduce_s)
        hidden, bare = row.utilisation
        cells = (
            name,
            f"{row.global_rows:,}",
            f"{row.micro_rows} x {row.accumulation}",
            f"{row.memory_bytes / GIB:.1f} GiB",
            f"{row.sent_bytes / GB:,.0f} GB",
            f"{1000 * row.compute_s:.0f} ms",
            " + ".join(f"{1000 * part:.0f}" for part in parts) + " ms",
            f"{hidden:.0%} / {bare:.0%}",
            f"{row.days:.3g}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """Errors are ValueErrors, which `python -m pretrain` turns into one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"plan --scale: {message}")


def parser() -> argparse.ArgumentParser:
    """The arguments of `python -m pretrain plan --scale` beside the recipe's."""
    made = _Parser(prog="pretrain plan --scale", allow_abbrev=False)
    made.add_argument("--scale", action="store_true", help="a table over numbers of GPUs")
    made.add_argument("--gpus", type=int, nargs="+", required=True, metavar="N")
    made.add_argument("--gpu", choices=sorted(GPUS), default="h200", help="default: h200")
    made.add_argument(
        "--node-network", type=float, nargs="+", default=[400.0, 100.0, 25.0], metavar="GB/S",
        help="what a node sends to others, all cards together; a table each; default 400 100 25",
    )  # fmt: skip
    made.add_argument(
        "--settings", type=int, nargs="+", default=[], metavar="N",
        help="numbers of GPUs that settings are compared on; default: the largest of --gpus",
    )  # fmt: skip
    made.add_argument(
        "--kernels", type=float, default=0.55,
        help="share of the peak that arithmetic reaches while nobody waits; default 0.55",
    )  # fmt: skip
    return made


def main(argv: Sequence[str]) -> None:
    """Write the tables that the command line asks for to standard output."""
    arguments, rest = parser().parse_known_args(argv)
    if min(*arguments.gpus, *arguments.settings, 1) < 1 or min(arguments.node_network) <= 0:
        raise ValueError("plan --scale: --gpus, --settings and --node-network must be above 0.")
    if not 0 < arguments.kernels <= 1:
        raise ValueError(f"plan --scale: --kernels must lie in (0, 1], got {arguments.kernels}.")
    from pretrain.settings.cli import parse_train

    config, _ = parse_train(rest)
    others = [name for name in config.objectives.chosen if name != "glm"]
    if others or config.trains != "all":
        raise ValueError(
            "plan --scale counts GLM alone, all of which learns; this recipe trains "
            f"{', '.join(config.objectives.chosen)} (trains: {config.trains}). Leave out --scale "
            "for a plan of one number of GPUs."
        )
    ids = vocabulary_of([corpus.shards for corpus in config.data.sources])
    rows = mean_content([(corpus.weight, held) for corpus, held in glm_contents(config, ids)])
    for network in arguments.node_network:
        fabric = Fabric(node_bytes_per_s=network * GB)
        site = Site(config, rows, GPUS[arguments.gpu], fabric, arguments.kernels)
        compared = arguments.settings or [max(arguments.gpus)]
        settings = "\n\n".join(site.settings(gpus) for gpus in compared)
        sys.stdout.write(
            f"{config.name} on {arguments.gpu}, nodes of {fabric.gpus_per_node} that send "
            f"{network:g} GB/s, {arguments.kernels:.0%} of the peak in arithmetic:\n\n"
            f"{site.counts(arguments.gpus)}\n\n{settings}\n\n"
        )

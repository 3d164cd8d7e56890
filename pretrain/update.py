"""One update: micro-batches in, gradients summed over ranks, weights moved, named sums out.

The loss that is minimised is, per objective, the sum of weighted token losses over all ranks and
micro-batches of the update, divided once by their global count: never a mean of means. So the
counts are summed over ranks before the first forward; then every micro-batch of every rank
contributes its share of that one mean, and 4 micro-batches on one rank give the gradient of one on
each of four.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from data_pipeline.loader import Batch
from pretrain.engine import Engine
from pretrain.objectives.loss import Objective
from pretrain.world import World


@dataclass(frozen=True)
class Update:
    """What one update did; every number is over all ranks."""

    sums: dict[str, float]  # "objective/term" -> sum of weighted losses in nats
    counts: dict[str, float]  # "objective/term" -> sum of weights
    gradient_norm: float  # global L2 norm before clipping
    cells: float  # positions, padding included
    tokens: float  # positions that belong to a document
    visible_pairs: float
    targets: float
    data_wait_s: float  # longest over the micro-batches of this rank, summed

    def loss(self, objectives: Sequence[Objective]) -> float:
        """The minimised value: weighted sum of means in nats."""
        return sum(
            o.weight * self.sums[f"{o.name}/{term}"] / max(self.counts[f"{o.name}/{term}"], 1.0)
            for o in objectives
            for term in o.optimised
        )


def apply_update(
    engine: Engine,
    objectives: Sequence[Objective],
    streams: Mapping[str, Iterator[Batch]],
    *,
    lr: float,
    seed: int,
    update: int,
) -> tuple[Update, dict[str, Batch]]:
    """Take one batch a micro-batch from each objective's stream and apply one update with rate
    `lr`.

    Returns what was done and the last batch of every stream, whose `position` says where the next
    update starts.
    """
    started_at = time.perf_counter()
    batches = [
        {o.name: next(streams[o.name]) for o in objectives} for _ in range(engine.accumulation)
    ]
    data_wait_s = time.perf_counter() - started_at
    inputs = [{o.name: o.inputs(micro[o.name]) for o in objectives} for micro in batches]
    counts = global_counts(engine.world, objectives, inputs)

    device = engine.world.device
    reported: dict[str, Tensor] = defaultdict(
        lambda: torch.zeros(2, dtype=torch.float64, device=device)
    )
    gradient_norm = None
    for number, micro in enumerate(inputs):
        seed_dropout(seed, update, number, engine.world.rank)
        shares = []
        for objective in objectives:
            terms = engine.forward(objective, to_device(micro[objective.name], engine.world.device))
            shares += [
                objective.weight * terms[name].sum / counts[f"{objective.name}/{name}"]
                for name in objective.optimised
            ]
            for name, term in terms.items():
                reported[f"{objective.name}/{name}"] += torch.stack(term).detach().double()
        engine.backward(torch.stack(shares).sum())
        gradient_norm = engine.end_micro_batch(lr)
    assert gradient_norm is not None, "the last micro-batch must close the update"

    names = sorted(reported)
    sizes = torch.tensor(
        [_sizes(micro[o.name]) for micro in batches for o in objectives], dtype=torch.float64
    )
    totals = engine.world.sum(
        torch.cat(
            [torch.stack([reported[n] for n in names]).flatten(), sizes.sum(dim=0).to(device)]
        )
    ).tolist()
    pairs = dict(zip(names, zip(totals[0::2], totals[1::2], strict=False), strict=False))
    cells, tokens, visible_pairs, targets = totals[2 * len(names) :]
    done = Update(
        sums={n: s for n, (s, _) in pairs.items()},
        counts={n: c for n, (_, c) in pairs.items()},
        gradient_norm=gradient_norm,
        cells=cells,
        tokens=tokens,
        visible_pairs=visible_pairs,
        targets=targets,
        data_wait_s=data_wait_s,
    )
    return done, batches[-1]


def global_counts(
    world: World,
    objectives: Sequence[Objective],
    inputs: Sequence[Mapping[str, Mapping[str, Tensor]]],
) -> dict[str, float]:
    """Counts of every optimised term over all micro-batches and ranks; 1 where there is no target
    at all."""
    local: dict[str, float] = defaultdict(float)
    for micro in inputs:
        for objective in objectives:
            for term, count in objective.counts(micro[objective.name]).items():
                local[f"{objective.name}/{term}"] += float(count)
    names = sorted(local)
    totals = world.sum(torch.tensor([local[n] for n in names], dtype=torch.float64)).tolist()
    return {name: total or 1.0 for name, total in zip(names, totals, strict=True)}


def seed_dropout(seed: int, update: int, micro_batch: int, rank: int) -> None:
    """Seed dropout from where in the run it is drawn, so that no generator state has to be
    saved."""
    place = f"{seed}/{update}/{micro_batch}/{rank}".encode()
    torch.manual_seed(xxhash.xxh3_64_intdigest(place) >> 1)


def to_device(inputs: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The tensors of `inputs` on `device`."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}


def _sizes(batch: Batch) -> list[float]:
    """Cells, tokens, visible pairs and targets of a batch."""
    return [
        batch.ids.numel(),
        batch.tokens,
        int((batch.hi.long() - batch.lo).sum()),
        int((batch.weights > 0).sum()),
    ]

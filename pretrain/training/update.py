"""One update: micro-batches in, gradients summed over ranks, weights moved, named sums out.

The loss that is minimised is, per objective, the sum of weighted token losses over all ranks and
micro-batches of the update, divided once by their global count: never a mean of means. So the
counts are summed over ranks before the first forward; then every micro-batch of every rank
contributes its share of that one mean, and 4 micro-batches on one rank give the gradient of one on
each of four.

Everything else that ranks must know of each other travels in one more sum, between the last forward
and the last backward: the loss of the whole update is known there and nothing has been applied, so
that it is judged before the backward that would complete the update. Where it is skipped, what
earlier micro-batches have added up is dropped.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import xxhash
from torch import Tensor

from data_pipeline.packing.loader import Batch
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World
from pretrain.models.flop import Work
from pretrain.objectives.loss import Objective

Streams = Mapping[str, Iterator[Batch]]
MicroBatch = Mapping[str, Batch]  # a batch for each objective, by its name


@dataclass(frozen=True)
class Update:
    """What one step did; every number is over all ranks."""

    sums: dict[str, float]  # "objective/term" -> sum of weighted losses in nats
    counts: dict[str, float]  # "objective/term" -> sum of weights
    skipped: str | None  # why nothing was applied, a reason of judge.py; None where it was
    gradient_norm: float | None  # global L2 norm before clipping; None where it was not computed
    cells: float  # positions, padding included
    work: dict[str, Work]  # what the rows of each objective held
    votes: list[float]  # what the ranks brought as votes, summed
    data_wait_s: float  # longest over the micro-batches of this rank, summed

    @property
    def tokens(self) -> float:
        """Positions that belong to a document."""
        return sum(work.tokens for work in self.work.values())

    @property
    def targets(self) -> float:
        """Targets of all objectives."""
        return sum(work.targets for work in self.work.values())

    @property
    def visible_pairs(self) -> float:
        """Pairs of query and visible key in what is written."""
        return sum(work.visible_pairs for work in self.work.values())

    def loss(self, objectives: Sequence[Objective]) -> float:
        """The minimised value: weighted sum of means in nats."""
        return sum(self._share(o, term) for o in objectives for term in o.optimised)

    def judged_loss(self, objectives: Sequence[Objective]) -> float:
        """What spikes are told by: as `loss`, of the terms that no schedule scales; `loss` where
        that is no finite number."""
        loss = self.loss(objectives)
        if not math.isfinite(loss):
            return loss
        return sum(self._share(o, term) for o in objectives for term in o.judged)

    def _share(self, objective: Objective, term: str) -> float:
        name = f"{objective.name}/{term}"
        return objective.weight * self.sums[name] / max(self.counts[name], 1.0)


def apply_everything(nats: float) -> str | None:
    """The judgement of a run that skips nothing."""


def no_votes() -> Tensor:
    """The votes of a run that nobody asks anything."""
    return torch.zeros(0, dtype=torch.float64)


def apply_update(
    engine: Engine,
    objectives: Sequence[Objective],
    streams: Streams,
    *,
    lr: float,
    seed: int,
    step: int,
    applied: int = 0,
    judge: Callable[[float], str | None] = apply_everything,
    votes: Callable[[], Tensor] = no_votes,
) -> tuple[Update, MicroBatch]:
    """Take one batch a micro-batch from each objective's stream and apply one update with rate
    `lr`, or skip it.

    step: seeds dropout, so that a step draws the same whatever was skipped before. applied: updates
    applied so far, which the schedules of objectives follow.
    judge(nats): why an update with this loss over all ranks is skipped, None where it is applied.
    votes(): float64, asked for at the end of the last forward and summed over ranks on the way.
    Returns what was done and the last batch of every stream, whose `position` says where the next
    update starts.
    """
    batches, data_wait_s = _taken(objectives, streams, engine.accumulation)
    inputs = [{o.name: o.inputs(micro[o.name], applied) for o in objectives} for micro in batches]
    counts = global_counts(engine.world, objectives, inputs)
    reported: dict[str, Tensor] = defaultdict(
        lambda: torch.zeros(2, dtype=torch.float64, device=engine.world.device)
    )
    done = None
    for number, micro in enumerate(inputs):
        seed_dropout(seed, step, number, engine.world.rank)
        loss = _forward(engine, objectives, micro, counts, reported)
        if number == len(inputs) - 1:
            done = replace(
                _summed(engine.world, reported, batches, votes()), data_wait_s=data_wait_s
            )
            skipped = judge(done.judged_loss(objectives))
            if skipped is not None:
                engine.drop_gradients()
                return replace(done, skipped=skipped), batches[-1]
        engine.backward(loss)
        norm = engine.end_micro_batch(lr)
    assert done is not None and norm is not None, "the last micro-batch must close the update"
    skipped = None if math.isfinite(norm) else "gradient"
    return replace(done, skipped=skipped, gradient_norm=norm), batches[-1]


def pass_over(
    engine: Engine,
    objectives: Sequence[Objective],
    streams: Streams,
    *,
    votes: Callable[[], Tensor] = no_votes,
) -> tuple[Update, MicroBatch]:
    """Take the batches of an update and do nothing with them; else as `apply_update`."""
    batches, data_wait_s = _taken(objectives, streams, engine.accumulation)
    done = _summed(engine.world, {}, batches, votes())
    return replace(done, skipped="named", data_wait_s=data_wait_s), batches[-1]


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


def seed_dropout(seed: int, step: int, micro_batch: int, rank: int) -> None:
    """Seed dropout from where in the run it is drawn, so that no generator state has to be
    saved."""
    place = f"{seed}/{step}/{micro_batch}/{rank}".encode()
    torch.manual_seed(xxhash.xxh3_64_intdigest(place) >> 1)


def to_device(inputs: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The tensors of `inputs` on `device`."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}


def _taken(
    objectives: Sequence[Objective], streams: Streams, accumulation: int
) -> tuple[Sequence[MicroBatch], float]:
    """The next batches of every stream, by micro-batch, and the seconds they were waited for."""
    started_at = time.perf_counter()
    batches = [{o.name: next(streams[o.name]) for o in objectives} for _ in range(accumulation)]
    return batches, time.perf_counter() - started_at


def _forward(
    engine: Engine,
    objectives: Sequence[Objective],
    inputs: Mapping[str, Mapping[str, Tensor]],
    counts: Mapping[str, float],
    reported: dict[str, Tensor],
) -> Tensor:
    """This micro-batch's share of the loss; its terms are added to `reported`."""
    shares = []
    for objective in objectives:
        terms = engine.forward(objective, to_device(inputs[objective.name], engine.world.device))
        shares += [
            objective.weight * terms[name].sum / counts[f"{objective.name}/{name}"]
            for name in objective.optimised
        ]
        for name, term in terms.items():
            reported[f"{objective.name}/{name}"] += torch.stack(term).detach().double()
    return torch.stack(shares).sum()


def _summed(
    world: World, reported: Mapping[str, Tensor], batches: Sequence[MicroBatch], votes: Tensor
) -> Update:
    """What ranks tell each other of a step, in one sum, as an update of which nothing is judged."""
    names, of_objectives = sorted(reported), sorted(batches[0])
    sizes = torch.tensor(
        [[_sizes(micro[name]) for name in of_objectives] for micro in batches], dtype=torch.float64
    ).sum(dim=0)
    cells = torch.tensor([float(b.ids.numel()) for micro in batches for b in micro.values()]).sum()
    terms = [reported[name] for name in names]
    parts = (*terms, cells.double()[None], sizes.flatten(), votes)
    totals = world.sum(torch.cat([part.to(world.device) for part in parts])).tolist()
    losses, rest = totals[: 2 * len(names)], totals[2 * len(names) :]
    (cells_of_all, *work), votes_of_all = rest[: 1 + sizes.numel()], rest[1 + sizes.numel() :]
    per = len(Work._fields)
    return Update(
        sums=dict(zip(names, losses[0::2], strict=True)),
        counts=dict(zip(names, losses[1::2], strict=True)),
        skipped=None,
        gradient_norm=None,
        cells=cells_of_all,
        work={n: Work(*work[per * i : per * (i + 1)]) for i, n in enumerate(of_objectives)},
        votes=votes_of_all,
        data_wait_s=0.0,
    )


def _sizes(batch: Batch) -> Work:
    """What the rows of a batch hold."""
    lengths_N = torch.zeros(0)
    if batch.sources is not None:
        owner_BT = batch.sources[1].long()
        row_B1 = torch.arange(len(owner_BT))[:, None] * (owner_BT.shape[1] + 1)
        lengths_N = torch.bincount((owner_BT + row_B1)[owner_BT >= 0]).double()
    return Work(
        tokens=batch.tokens,
        visible_pairs=int((batch.hi.long() - batch.lo).sum()),
        targets=int((batch.weights > 0).sum()),
        source_tokens=float(lengths_N.sum()),
        source_pairs=float(lengths_N.square().sum()),
    )

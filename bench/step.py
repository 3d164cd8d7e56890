"""A training step on one rank and one thread, beside those of peers of equal size.

Ours is the step that a run takes: `apply_update` with the DeepSpeed engine at ZeRO stage 3, on
packed rows of our planner; its tokens are the positions that are no padding. A peer reads as many
full rows. A peer's optimizer is timed by itself, so that one model serves AdamW as it comes by
default and its fused form.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from bench.peers import PlainModel, adamw, bert, gpt2, gradients_of
from bench.sizes import SIZES, Size, engine_of
from bench.table import Row, rate_row
from bench.texts import planned_batches
from bench.timing import Times, take_turns
from data_pipeline.packing.loader import Batch
from data_pipeline.transforms.blank import BlankConfig
from kernels.visibility import Visibility
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import join_world, leave_world
from pretrain.models.flop import training_flop
from pretrain.objectives.glm import GlmObjective
from pretrain.training.update import Update, apply_update

GOALS = {"S": {"gpt2": 1.6, "sgemm": 0.55}, "B": {"gpt2": 1.35, "sgemm": 0.68}}
ROUNDS = {"S": 9, "B": 4}
NUM_BATCHES = 4
SGEMM = (2048, 768, 3072)
SGEMM_REPEATS = 8


def step_rows(name: str, quick: bool) -> list[Row]:
    """The rows of size `name`, S or B. quick: ours, GPT-2 and sgemm alone."""
    size = SIZES[name]
    world = join_world(timeout_s=600)
    try:
        return _rows(OurSteps(size, engine_of(size, size.rows, world)), size, quick)
    finally:
        leave_world()


class OurSteps:
    """Our step on real rows, on real rows with logits everywhere, and as a causal model."""

    def __init__(self, size: Size, engine: Engine) -> None:
        self._engine = engine
        self._objective = GlmObjective(BlankConfig())
        self.batches = planned_batches(
            vocab_size=size.vocab_size,
            rows=size.rows,
            row_tokens=size.row_tokens,
            count=NUM_BATCHES,
        )
        self._updates = itertools.count()
        self.done: list[Update] = []
        self.contestants = {
            "ours": self._step(self.batches, self.done),
            "ours, logits everywhere": self._step([with_all_targets(b) for b in self.batches], []),
            "ours, causal": self._step([as_causal(b) for b in self.batches], []),
        }

    def _step(self, batches: list[Batch], done: list[Update]) -> Callable[[], None]:
        stream: Iterator[Batch] = itertools.cycle(batches)

        def run() -> None:
            update, _ = apply_update(
                self._engine,
                [self._objective],
                {"glm": stream},
                lr=1e-4,
                seed=1,
                step=next(self._updates),
            )
            done.append(update)

        return run


def with_all_targets(batch: Batch) -> Batch:
    """The same rows with a target at every position, padding too, as the peers have it."""
    block = batch.block.clone()
    block[4].view(torch.float32).fill_(1.0)
    block[5] = 1
    return replace(batch, block=block)


def as_causal(batch: Batch) -> Batch:
    """The ids as one text a row in which everybody sees the past: sep = 0, all are targets."""
    batch = with_all_targets(batch)
    num_tokens = batch.ids.shape[1]
    block = batch.block
    block[1] = torch.arange(num_tokens)
    block[2] = 0
    block[6:8] = 0
    block[8] = torch.arange(1, num_tokens + 1)
    return replace(batch, tokens=batch.ids.numel())


def sgemm() -> Callable[[], None]:
    """Plain matrix products, SGEMM_REPEATS at a time."""
    m, k, n = SGEMM
    left, right = torch.randn(m, k), torch.randn(k, n)

    def run() -> None:
        for _ in range(SGEMM_REPEATS):
            torch.mm(left, right)

    return run


def _peer_contestants(size: Size, batch: Batch, quick: bool) -> dict[str, Callable[[], object]]:
    """Forward and backward of every peer, and its optimizers' steps."""
    ids_BT, positions_B2T = batch.ids.long(), batch.positions
    model = gpt2(size)
    contestants: dict[str, Callable[[], object]] = {
        "GPT-2": gradients_of(model, lambda: model(input_ids=ids_BT, labels=ids_BT).loss),
        "GPT-2 AdamW": adamw(model, fused=False).step,
        "GPT-2 fused AdamW": adamw(model, fused=True).step,
    }
    if quick:
        return contestants
    other = bert(size)
    plain = PlainModel(size)
    mask = Visibility(batch.lo, batch.hi, batch.document).dense_mask()
    mask = mask | (batch.document < 0)[:, None, :, None]
    everywhere_N = torch.arange(ids_BT.numel())
    index_N = batch.weights.flatten().nonzero().flatten()
    targets_N = batch.targets.flatten().long()
    return contestants | {
        "BERT": gradients_of(other, lambda: other(input_ids=ids_BT, labels=ids_BT).loss),
        "BERT AdamW": adamw(other, fused=False).step,
        "plain": gradients_of(
            plain, lambda: plain(ids_BT, positions_B2T, mask, targets_N, everywhere_N)
        ),
        "plain AdamW": adamw(plain, fused=False).step,
        "plain, targets": gradients_of(
            plain, lambda: plain(ids_BT, positions_B2T, mask, targets_N[index_N], index_N)
        ),
        "plain fused AdamW": adamw(plain, fused=True).step,
    }


def _rows(ours: OurSteps, size: Size, quick: bool) -> list[Row]:
    rounds = (4 if size.name == "S" else 2) if quick else ROUNDS[size.name]
    mine = {"ours": ours.contestants["ours"]} if quick else ours.contestants
    contestants = mine | _peer_contestants(size, ours.batches[0], quick) | {"sgemm": sgemm()}
    times = take_turns(contestants, rounds=rounds)
    counted = ours.done[1:]  # the first round is not counted
    our_tokens = sum(update.tokens for update in counted) / len(counted)
    cells = size.rows * size.row_tokens
    goals, bench = GOALS[size.name], f"step_{size.name}_1rank"

    def beside(peer: str, parts: tuple[str, ...], goal: float | None = None) -> Row:
        theirs = sum_of(times, parts)
        return rate_row(bench, peer, (times["ours"], theirs), (our_tokens, cells), "tokens/s", goal)

    rows = [
        beside("transformers GPT-2", ("GPT-2", "GPT-2 AdamW"), goals["gpt2"]),
        beside("transformers GPT-2, fused AdamW", ("GPT-2", "GPT-2 fused AdamW")),
    ]
    if not quick:
        rows += [
            beside("transformers BERT", ("BERT", "BERT AdamW")),
            beside("plain SDPA model", ("plain", "plain AdamW")),
            beside(
                "plain SDPA model, logits at targets, fused AdamW",
                ("plain, targets", "plain fused AdamW"),
            ),
            _share_of_fewer_logits(size, times),
            rate_row(
                f"causal_{size.name}_1rank",
                "transformers GPT-2, fused AdamW",
                (times["ours, causal"], sum_of(times, ("GPT-2", "GPT-2 fused AdamW"))),
                (cells, cells),
                "tokens/s",
                1.0,
            ),
        ]
    flop = sum(_flop(size, update) for update in counted) / len(counted)
    return [*rows, _sgemm_row(size, times, flop, goals["sgemm"])]


def _share_of_fewer_logits(size: Size, times: dict[str, Times]) -> Row:
    """Which part of the time saved against GPT-2 is owed to logits at targets alone."""
    ours_s = times["ours"].median_s
    return Row(
        bench=f"gain_from_fewer_logits_{size.name}",
        ours=times["ours, logits everywhere"].median_s - ours_s,
        peer="whole gain over transformers GPT-2",
        peer_value=sum_of(times, ("GPT-2", "GPT-2 AdamW")).median_s - ours_s,
        unit="s/step",
    )


def _sgemm_row(size: Size, times: dict[str, Times], flop: float, goal: float) -> Row:
    m, k, n = SGEMM
    return rate_row(
        f"sgemm_share_{size.name}_1rank",
        "sgemm " + "x".join(map(str, SGEMM)),
        (times["ours"], times["sgemm"]),
        (flop / 1e9, SGEMM_REPEATS * 2 * m * k * n / 1e9),
        "GFLOP/s",
        goal,
    )


def _flop(size: Size, update: Update) -> float:
    return training_flop(
        size.shape,
        vocab_size=size.vocab_size,
        tokens=update.tokens,
        visible_pairs=update.visible_pairs,
        targets=update.targets,
    )


def sum_of(times: dict[str, Times], parts: tuple[str, ...]) -> Times:
    """The whole step of a peer whose parts were timed one by one."""
    total = times[parts[0]]
    for part in parts[1:]:
        total = total + times[part]
    return total

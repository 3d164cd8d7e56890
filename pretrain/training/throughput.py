"""How fast a run is, and which share of the machine it uses.

Model FLOP utilisation is FLOP of the model's matrix products, counted only where they are done
(non-padding positions, visible pairs, logits at targets; flop.py), divided by the peak of
a plain matrix product on the same device in the same run.
"""

import time
from collections.abc import Mapping, Sequence

import psutil
import torch

from pretrain.objectives.loss import Objective
from pretrain.recording.metric_lines import TOKENS
from pretrain.training.judge import Judge
from pretrain.training.setup import Setup
from pretrain.training.update import Update


def matmul_peak_flop_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """The best of a few plain matrix products, in FLOP per second of this rank (some 0.2 s on a CPU
    core)."""
    size = 4096 if device.type == "cuda" else 768
    left = torch.randn(size, size, device=device, dtype=dtype)
    right = torch.randn(size, size, device=device, dtype=dtype)
    best_s = float("inf")
    for _ in range(8):
        _wait(device)
        started_at = time.perf_counter()
        torch.matmul(left, right)
        _wait(device)
        best_s = min(best_s, time.perf_counter() - started_at)
    return 2 * size**3 / best_s


def tag_name(term: str) -> str:
    """ "objective/term" as one word of a tag, which has a single slash."""
    return term.replace("/", "_")


def memory_bytes(device: torch.device) -> int:
    """Peak bytes that tensors took on a GPU; on a CPU the resident set of this process now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return psutil.Process().memory_info().rss


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class StepScalars:
    """Turns what an update did into the scalars that are recorded, keeping the clock between
    steps."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        world = setup.world
        dtype = setup.engine.dtype
        self._peak = matmul_peak_flop_per_s(world.device, dtype) * world.world_size
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leave out what happened since the last step: evaluation, a checkpoint."""
        self._since = time.perf_counter()

    def __call__(self, done: Update, lr: float) -> dict[str, float]:
        """The scalars of the step that has just ended, by tag; of a skipped one those there are."""
        elapsed_s = time.perf_counter() - self._since
        self.restart_clock()
        scalars = {
            "optimizer/learning_rate": lr,
            "speed/step_seconds": elapsed_s,
            "data/wait_seconds": done.data_wait_s,
            "data/padding_ratio": 1 - done.tokens / done.cells,
            "data/targets_per_step": done.targets,
            TOKENS: done.tokens,
            "memory/rank0_bytes": float(memory_bytes(self._setup.world.device)),
            **counters(self._setup.judge),
        }
        if done.counts:
            scalars["loss/total_nats"] = done.loss(self._setup.objectives)
            scalars |= {
                f"loss/{tag_name(term)}_nats": done.sums[term] / count
                for term, count in done.counts.items()
                if count > 0
            }
        if done.gradient_norm is not None:
            scalars["optimizer/gradient_norm"] = done.gradient_norm
        if done.skipped is None:
            scalars["speed/tokens_per_second"] = done.tokens / elapsed_s
            scalars["speed/mfu_ratio"] = self._flop(done) / elapsed_s / self._peak
        return scalars

    def _flop(self, done: Update) -> float:
        return sum(
            objective.flop(
                self._setup.config.model,
                done.work[objective.name],
                vocab_size=self._setup.vocab_size,
            )
            for objective in self._setup.objectives
        )


def corpus_scalars(shares: Mapping[str, float]) -> dict[str, float]:
    """Each corpus's share of the text's tokens since the run began, by tag."""
    return {f"data/{name}_tokens_ratio": share for name, share in shares.items()}


def objective_scalars(objectives: Sequence[Objective], update: int) -> dict[str, float]:
    """What objectives say of update number `update` beside their losses, by tag."""
    return {
        f"latent/{objective.name}_{name}": value
        for objective in objectives
        for name, value in objective.scalars(update).items()
    }


def counters(judge: Judge) -> dict[str, float]:
    """What was applied and skipped since the run began, by tag."""
    return {
        "updates/applied": judge.updates,
        **{f"updates/skipped_{reason}": number for reason, number in judge.skipped.items()},
        "updates/clipped_gradients": judge.clipped_gradients,
        "data/skipped_rows": judge.skipped_rows,
    }

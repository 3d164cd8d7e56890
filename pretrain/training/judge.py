"""Which updates are applied: what is judged from numbers that every rank has, so all decide alike.

A step takes the next rows of the data. Its update is applied, or skipped for a named reason:

    named             the recipe names the step in data.skip_steps; its rows are not trained on
    non_finite_loss   the loss over all ranks and micro-batches is no finite number
    loss_spike        it lies above the median + deviations x MAD of the last finite losses
    gradient          the loss is finite and the norm of the gradient is not

The loss is judged before the backward pass that would complete the update, the gradient's norm by
DeepSpeed before weights are touched (engine.py). After a skip the run goes on with the next rows,
with weights, moments and the place in the schedule as if the step's update had never been tried:
`step` counts rows taken, `updates` what was applied.

    judge = Judge(SpikesConfig(loss_deviations=5, history=4), skip_steps=[(7, 9)])
    judge.of_loss(2.0)      # None: apply it
    judge.of_loss(nan)      # "non_finite_loss"
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pretrain.settings.mistakes import AgreedError
from pretrain.settings.optimizer_config import SpikesConfig

REASONS = {
    "named": "the recipe names it in data.skip_steps",
    "non_finite_loss": "the loss is not a finite number",
    "loss_spike": "the loss is a spike",
    "gradient": "the gradient's norm is not a finite number",
}
LEAST_MAD = 1e-3  # of the median: losses that hardly differ make no spike of rounding


class Judge:
    """The judgement of a run and its counts; its state travels with checkpoints."""

    def __init__(self, spikes: SpikesConfig, *, skip_steps: Sequence[tuple[int, int]] = ()) -> None:
        """skip_steps: first and last step of each stretch that is not trained on, from 1."""
        self.spikes = spikes
        self.skip_steps = merged(skip_steps)
        self.updates = 0  # applied
        self.skipped = dict.fromkeys(REASONS, 0)
        self.skipped_rows = 0
        self.clipped_gradients = 0
        self.in_a_row = 0  # skipped since the last applied update, those named left out
        self._losses: deque[float] = deque(maxlen=spikes.history)
        self._limit_nats = math.inf  # that the last finite loss was compared with

    def is_named(self, step: int) -> bool:
        """Whether the recipe names `step`, so that its rows are not trained on."""
        return any(first <= step <= last for first, last in self.skip_steps)

    def of_loss(self, nats: float) -> str | None:
        """Why an update with this loss is skipped, None where it is not; the loss is remembered."""
        if not math.isfinite(nats):
            return "non_finite_loss"
        self._limit_nats = self.limit_nats()
        self._losses.append(nats)
        return "loss_spike" if nats > self._limit_nats else None

    def limit_nats(self) -> float:
        """The largest loss that is no spike now; infinite until `history` losses are known."""
        if self.spikes.loss_deviations == 0 or len(self._losses) < self.spikes.history:
            return math.inf
        median = statistics.median(self._losses)
        mad = statistics.median(abs(loss - median) for loss in self._losses)
        return median + self.spikes.loss_deviations * max(mad, LEAST_MAD * abs(median))

    def in_words(self, reason: str) -> str:
        """Why the last update was skipped, for a reader of the log."""
        limit = f", above {self._limit_nats:.4f} nats" if reason == "loss_spike" else ""
        return REASONS[reason] + limit

    def count(self, *, skipped: str | None, rows: int, clipped: bool = False) -> None:
        """Count a step that took `rows` rows: applied, or skipped for a reason of REASONS."""
        if skipped is None:
            self.updates += 1
            self.clipped_gradients += clipped
            self.in_a_row = 0
            return
        self.skipped[skipped] += 1
        self.skipped_rows += rows
        self.in_a_row += skipped != "named"

    def stop_if_hopeless(self, step: int) -> None:
        """Raise AgreedError, the same on every rank, where too many updates in a row were skipped.

        Weights are still those of the last applied update, and so is every checkpoint since.
        """
        if self.in_a_row < self.spikes.stop_after:
            return
        counts = ", ".join(f"{n} {reason}" for reason, n in self.skipped.items() if n)
        raise AgreedError(
            f"step {step}: {self.in_a_row} updates in a row were skipped (of the whole run: "
            f"{counts}). Either these rows are bad or the weights are: go on from a checkpoint "
            f"well before step {step - self.in_a_row + 1} with these steps in data.skip_steps, or "
            "with a lower optimizer.lr. spikes.stop_after says how many in a row are allowed."
        )

    def state(self, step: int) -> dict[str, Any]:
        """What the run after `step` steps must know of those before, as plain JSON values."""
        return {
            "updates": self.updates,
            "skipped": dict(self.skipped),
            "skipped_rows": self.skipped_rows,
            "clipped_gradients": self.clipped_gradients,
            "in_a_row": self.in_a_row,
            "losses": list(self._losses),
            "skip_steps": [list(stretch) for stretch in _until(self.skip_steps, step)],
        }

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        """Go on from what `state` gave after `step` steps.

        Raises ValueError where it is no such state, or where the recipe names other steps among
        those that are done.
        """
        try:
            done = [(int(first), int(last)) for first, last in state["skip_steps"]]
            self.updates = int(state["updates"])
            self.skipped = {reason: int(state["skipped"][reason]) for reason in REASONS}
            self.skipped_rows = int(state["skipped_rows"])
            self.clipped_gradients = int(state["clipped_gradients"])
            self.in_a_row = int(state["in_a_row"])
            self._losses.extend(float(loss) for loss in state["losses"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"the checkpoint of step {step} does not say which updates were applied "
                f"({type(error).__name__}: {error}). Resume from another one: --resume PATH."
            ) from error
        named = _until(self.skip_steps, step)
        if done != named:
            raise ValueError(
                f"data.skip_steps names {_in_words(named)} of the first {step} steps, which are "
                f"done with {_in_words(done)} skipped by name. Resume from a checkpoint before the "
                "steps that differ, or leave data.skip_steps of the steps that are done as it was."
            )


def merged(stretches: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same steps as ascending stretches that neither touch nor overlap."""
    whole: list[tuple[int, int]] = []
    for first, last in sorted(stretches):
        if whole and first <= whole[-1][1] + 1:
            whole[-1] = (whole[-1][0], max(last, whole[-1][1]))
        else:
            whole.append((first, last))
    return whole


def _until(stretches: Sequence[tuple[int, int]], step: int) -> list[tuple[int, int]]:
    return [(first, min(last, step)) for first, last in stretches if first <= step]


def _in_words(stretches: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{first}-{last}" for first, last in stretches) or "none"

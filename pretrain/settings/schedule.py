"""The learning rate as a pure function of the update: nothing to save, nothing to restore.

Update 0 has rate 0 where there is a warm-up, as the published code has it (Du et al. 2022; GLM spec
of the released recipes); its linear decay runs below zero after decay_steps, ours never passes the
end value.

Example: lr 1e-3, 100 decay steps, warm-up 10 %: lr(0) = 0, lr(5) = 5e-4, lr(10) = 1e-3, lr(100) =
end.
"""

import math

from pretrain.settings.optimizer_config import ScheduleConfig


def learning_rate(update: int, *, peak: float, steps: int, schedule: ScheduleConfig) -> float:
    """Rate used by update number `update` (from 0) of a run of `steps` updates, peak rate
    `peak`."""
    decay_steps = schedule.decay_steps or steps
    warmup_steps = schedule.warmup_ratio * decay_steps
    if update < warmup_steps:
        return peak * update / warmup_steps
    end = schedule.end_ratio * peak
    if schedule.shape == "constant":
        return peak
    if schedule.shape == "wsd":
        decay_from = decay_steps * (1 - schedule.wsd_decay_ratio)
        return end + (peak - end) * (1 - _progress(update, decay_from, decay_steps))
    progress = _progress(update, warmup_steps, decay_steps)
    if schedule.shape == "linear":
        return end + (peak - end) * (1 - progress)
    return end + (peak - end) * 0.5 * (1 + math.cos(math.pi * progress))


def _progress(update: float, start: float, stop: float) -> float:
    """Share of [start, stop] that lies behind `update`, kept in 0..1 (a decay that has ended stays
    ended)."""
    if stop <= start:
        return float(update >= stop)
    return min(1.0, max(0.0, (update - start) / (stop - start)))

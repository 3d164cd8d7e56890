"""A comparison of runs as one picture: their curves, and how far each came by what differs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretrain.comparing.runs import HELD_OUT, LOSS, Curve, Run, differing
from pretrain.settings.dotted import short

SMOOTHED_STEPS = 20
MOST_POINTS = 1000  # of a curve


def draw(runs: Sequence[Run], picture: Path) -> None:
    """Training loss, smoothed, with the held-out points, and beside it the best held-out loss of
    each run, as a PNG. Runs without a step are left out of it."""
    from matplotlib.figure import Figure  # no window and no backend: the figure draws itself

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    curves, best = figure.subplots(1, 2)
    labels = _labels(runs)
    for number, run in enumerate(runs):
        colour = f"C{number % 10}"
        style = ("-", "--", ":", "-.")[number // 10 % 4]
        if LOSS in run.curves:
            curves.plot(
                *_columns(_thinned(_smoothed(run.curves[LOSS]))),
                style, color=colour, label=labels[number], linewidth=1,
            )  # fmt: skip
        if HELD_OUT in run.curves:
            curves.plot(*_columns(_thinned(run.curves[HELD_OUT])), "o", color=colour, markersize=3)
    curves.set(
        xlabel="step", ylabel="nats", title=f"loss, {SMOOTHED_STEPS}-step mean; dots: held out"
    )
    if any(LOSS in run.curves for run in runs):
        curves.legend(fontsize=7)
    _draw_best(best, runs, labels)
    for axes in (curves, best):
        axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=150)


def _draw_best(axes: Any, runs: Sequence[Run], labels: Sequence[str]) -> None:
    """The best held-out loss over the one number that differs, or run by run."""
    keys = differing(runs)
    shown = [(number, run, run.best()) for number, run in enumerate(runs)]
    found = [(number, run, best[1]) for number, run, best in shown if best]
    axes.set(title="best held-out loss", ylabel="nats")
    values = _numbers([run.settings.get(keys[0]) for _, run, _ in found] if len(keys) == 1 else [])
    if values:
        axes.set(xlabel=keys[0])
        if min(values) > 0 and max(values) / min(values) >= 10:
            axes.set_xscale("log")
        for (number, _, nats), value in zip(found, values, strict=True):
            axes.plot([value], [nats], "o", color=f"C{number % 10}")
        return
    for place, (number, _, nats) in enumerate(found):
        axes.plot([nats], [place], "o", color=f"C{number % 10}")
    axes.set_yticks(range(len(found)), [labels[number] for number, _, _ in found], fontsize=7)
    axes.set(xlabel="nats", ylabel="")
    axes.invert_yaxis()


def _numbers(values: Sequence[Any]) -> list[float]:
    """`values` where all are numbers, else none."""
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return numbers if len(numbers) == len(values) else []


def _labels(runs: Sequence[Run]) -> list[str]:
    """What differs, of each run; its name where nothing does or the text would be long."""
    keys = short(differing(runs))
    said = [", ".join(f"{label} {run.settings.get(key)}" for key, label in keys.items())
            for run in runs]  # fmt: skip
    return [
        text if keys and run.settings and len(text) <= 60 else run.name
        for run, text in zip(runs, said, strict=True)
    ]


def _columns(curve: Curve) -> tuple[list[int], list[float]]:
    return [step for step, _ in curve], [value for _, value in curve]


def _thinned(curve: Curve) -> Curve:
    every = -(-len(curve) // MOST_POINTS) or 1
    return [*curve[::every], *curve[-1:]]


def _smoothed(curve: Curve) -> Curve:
    """The mean of each value and those before it, at most SMOOTHED_STEPS."""
    smoothed, total = [], 0.0
    for place, (step, value) in enumerate(curve):
        total += value - (curve[place - SMOOTHED_STEPS][1] if place >= SMOOTHED_STEPS else 0.0)
        smoothed.append((step, total / min(place + 1, SMOOTHED_STEPS)))
    return smoothed

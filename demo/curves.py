"""The loss curves of a finished demo as one picture."""

import json
from pathlib import Path
from typing import Any

SHOWN = {"glm_token": "single words", "glm_document": "long stretches"}  # term -> its blanks
SMOOTHED_STEPS = 20


def draw_curves(metrics: Path, picture: Path) -> None:
    """Loss by kind of blank over the steps, smoothed, with the held-out points, as a PNG.

    metrics: the metrics.jsonl of a run; kinds of blanks without a target in it are left out.
    """
    from matplotlib.figure import Figure  # no window and no backend: the figure draws itself

    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for number, (term, blanks) in enumerate(SHOWN.items()):
        steps, losses = _column(records, f"loss/{term}_nats")
        if not steps:
            continue
        axes.plot(steps, _smoothed(losses), color=f"C{number}", label=f"{blanks}, training")
        held_out = _column(records, f"validation/{term}_nats")
        axes.plot(*held_out, "o", color=f"C{number}", label=f"{blanks}, held out")
    axes.set(xlabel="step", ylabel="nats per target (its end counted)", xmargin=0.01)
    axes.set_title(f"Blanks written again, {SMOOTHED_STEPS}-step mean", loc="left")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(picture, dpi=150)


def _column(records: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    found = [(r["step"], r[name]) for r in records if r.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _smoothed(values: list[float]) -> list[float]:
    """The mean of each value and those before it, at most SMOOTHED_STEPS."""
    windows = (values[max(0, i - SMOOTHED_STEPS + 1) : i + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]

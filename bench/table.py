"""Rows of a benchmark: their arithmetic, their JSON, and the table a person reads.

A ratio is ours / peer and larger is better: rates are compared, never times.

    row = rate_row("step_S_1rank", "transformers GPT-2", ours, peer, (tokens, tokens), "tokens/s")
    as_json([row], date, versions)   # [{"bench": "step_S_1rank", "ours": 3155.0, ...}]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.timing import Times

KEYS = ("bench", "ours", "peer", "peer_value", "ratio", "unit", "date", "versions")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison. goal: the least ratio wanted; None where the row only explains another.

    ratio_of_least, ratio_of_cpu: the ratio of the fastest rounds, and by CPU time; None where that
    says nothing.
    """

    bench: str
    ours: float
    peer: str
    peer_value: float
    unit: str
    goal: float | None = None
    ratio_of_least: float | None = None
    ratio_of_cpu: float | None = None

    @property
    def ratio(self) -> float:
        """ours / peer_value."""
        return self.ours / self.peer_value


def rate_row(
    bench: str,
    peer: str,
    times: tuple[Times, Times],
    work: tuple[float, float],
    unit: str,
    goal: float | None = None,
) -> Row:
    """Our rate beside that of a peer: work / median time.

    times, work: ours and the peer's; work is what one round does, in the unit's numerator.
    """
    (ours, theirs), (our_work, their_work) = times, work
    return Row(
        bench=bench,
        ours=our_work / ours.median_s,
        peer=peer,
        peer_value=their_work / theirs.median_s,
        unit=unit,
        goal=goal,
        ratio_of_least=(our_work / ours.least_s) / (their_work / theirs.least_s),
        ratio_of_cpu=(our_work / ours.median_cpu_s) / (their_work / theirs.median_cpu_s),
    )


def as_json(rows: Sequence[Row], date: str, versions: dict[str, str]) -> list[dict[str, Any]]:
    """What stands in bench/results/*.json, with the keys KEYS."""
    return [
        {name: getattr(row, name) for name in KEYS[:6]} | {"date": date, "versions": versions}
        for row in rows
    ]


def as_text(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table; "goal" is the least ratio wanted."""
    heads = ("bench", "peer", "ours", "peer's", "unit", "ratio", "best rounds", "CPU time", "goal")
    lines = [heads, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |"
        for line in lines
    ]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts)


def _cells(row: Row) -> tuple[str, ...]:
    goal = "" if row.goal is None else f"{row.goal:g} {'met' if row.ratio >= row.goal else 'NOT'}"
    return (
        row.bench,
        row.peer,
        _short(row.ours),
        _short(row.peer_value),
        row.unit,
        f"{row.ratio:.3g}",
        "" if row.ratio_of_least is None else f"{row.ratio_of_least:.3g}",
        "" if row.ratio_of_cpu is None else f"{row.ratio_of_cpu:.3g}",
        goal,
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"

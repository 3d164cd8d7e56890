"""Measurements as a Markdown table, the contestants of a case under each other."""

from collections.abc import Sequence

from kernels.benchmark.measure import Row

HEADS = (
    "case", "contestant", "forward ms", "with backward ms", "forward TFLOP/s", "both TFLOP/s",
    "of peak", "forward GB/s",
)  # fmt: skip


def as_table(rows: Sequence[Row]) -> str:
    """What was left out stands below the table, each reason once."""
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [_line(row) for row in rows if row.left_out is None]
    reasons: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.left_out is not None:
            key = (row.contestant, row.left_out)
            reasons[key] = reasons.get(key, 0) + 1
    lines += [""] * bool(reasons)
    lines += [
        f"Left out of {count} cases: {name}, because {reason}."
        for (name, reason), count in reasons.items()
    ]
    return "\n".join(lines)


def _line(row: Row) -> str:
    peak = "" if row.peak_ratio is None else f"{100 * row.peak_ratio:.1f} %"
    cells = [
        row.case,
        row.contestant,
        _number(row.forward_ms),
        _number(row.both_ms),
        _number(row.forward_tflops),
        _number(row.both_tflops),
        peak,
        _number(row.forward_gbps),
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"

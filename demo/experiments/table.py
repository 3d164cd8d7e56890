"""What the runs of an experiment say, side by side, as a Markdown table."""

from collections.abc import Mapping
from typing import Any

COLUMNS = (
    ("PPL", "perplexity_per_token", 2),
    ("nats a sentence", "nats_per_sentence_iw", 1),
    ("-ELBO", "nats_per_sentence_elbo", 1),
    ("rec", "reconstruction_nats", 1),
    ("KL", "kl_nats", 2),
    ("MI", "mutual_information_nats", 2),
    ("AU", "active_units", 0),
    ("shuffled z", "shuffled_z_extra_nats", 1),
    ("GLM", "glm_nats", 3),
)


def table(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a run; columns that no run has are left out.

    reports: name of a run -> its numbers, some of those in COLUMNS.
    """
    columns = [c for c in COLUMNS if any(r.get(c[1]) is not None for r in reports.values())]
    lines = [
        "| run | " + " | ".join(head for head, _, _ in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, found in reports.items():
        cells = [_cell(found.get(key), digits) for _, key, digits in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"

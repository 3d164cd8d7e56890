"""Input that cannot be used, under a named reason, and what is done about it: stop, or count.

    refuse(Unusable("broken_json", "x.jsonl:7", "broken JSON (...). Correct the line."))
    raise Unusable("cut_off_file", "x.txt.gz", "it ends too early. Copy it again.")

A reader that can go on behind a bad line or row hands it to `refuse` and goes on if that returns.
One that cannot raises it: the rest of the source is left out, or the run ends. What is wrong with
the request rather than the text, and what may be whole tomorrow (a network), is no Unusable but a
plain ValueError, which always ends the run.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal


class Unusable(ValueError):
    """A line, a row or the rest of a source that cannot be read as asked for.

    reason: a short name in snake_case, under which it is counted; where: file and line, or row.
    """

    def __init__(self, reason: str, where: str, detail: str) -> None:
        super().__init__(f"{where}: {detail}")
        self.reason, self.where, self.detail = reason, where, detail


OnError = Literal["stop", "skip"]
Refuse = Callable[[Unusable], None]


def stop(error: Unusable) -> None:
    """End the run: --on-error stop."""
    raise error


@dataclass
class Skipping:
    """Counts what is refused and goes on: --on-error skip, for at most `limit` in all."""

    limit: int
    counts: Counter[str] = field(default_factory=Counter)

    def __call__(self, error: Unusable) -> None:
        self.counts[error.reason] += 1
        check_skipped(self.counts, self.limit, str(error))


def policy(on_error: OnError, max_skipped: int) -> Refuse:
    """What --on-error and --max-skipped ask for."""
    if max_skipped < 0:
        raise ValueError(f"--max-skipped must be at least 0, got {max_skipped}.")
    return Skipping(max_skipped) if on_error == "skip" else stop


def skipped_by(refuse: Refuse) -> Counter[str]:
    """What a policy has left out so far, by reason."""
    return refuse.counts if isinstance(refuse, Skipping) else Counter()


def check_skipped(counts: Counter[str], limit: int, last: str = "") -> None:
    """Raise ValueError naming all counts if together they exceed `limit`."""
    if counts.total() <= limit:
        return
    named = ", ".join(f"{n:,} {reason}" for reason, n in sorted(counts.items()))
    raise ValueError(
        f"more than --max-skipped {limit:,} lines, rows or files cannot be used ({named}). "
        f"{f'The last: {last} ' if last else ''}Correct the input, or raise --max-skipped."
    )

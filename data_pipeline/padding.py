"""How full rows get and what blanks become in them, said before a run: the plan of one window.

rows of 1,152 tokens: 0.31% padding (2,614 rows of 5,632 documents, the first of 4 windows)
cut: 1,204 documents longer than 512 tokens, 87 to fill rows
spans: 118,204
spans lost no room in row: 12
...
"""

from typing import Any

from data_pipeline.packing.plan import PackingConfig, PlanReport, num_windows, plan_window
from data_pipeline.protocols import Split, Transform
from data_pipeline.storage.shards import Shards
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

_SEED = 1234  # the numbers hardly depend on it


def padding(shards: Shards, packing: PackingConfig, blanks: BlankConfig) -> dict[str, Any]:
    """What the plan of the first window of `train` makes of its documents; JSON-able."""
    split = shards.splits["train"]
    transform = BlankTransform(
        blanks, shards.special, source_tokens=packing.source_tokens, vocab_size=shards.vocab_size
    )
    report = plan_window(split, transform, packing, seed=_SEED, epoch=0, window=0).report
    return numbers(report, packing, num_windows(split, packing))


def first_window_lines(
    split: Split, transform: Transform, packing: PackingConfig, *, seed: int
) -> list[str]:
    """What a run's first window loses to padding, cuts and blanks that found no place, in words.

    Plans that window, some 0.1 s of CPU time for 3 million tokens; a run's loader plans it again.
    """
    report = plan_window(split, transform, packing, seed=seed, epoch=0, window=0).report
    return describe(numbers(report, packing, num_windows(split, packing)))


def numbers(report: PlanReport, packing: PackingConfig, windows: int) -> dict[str, Any]:
    """The report of one of `windows` windows; JSON-able."""
    return {
        "row_tokens": packing.row_tokens,
        "source_tokens": packing.source_tokens,
        "padding_share": 1.0 - report.nonpadding_ratio,
        "rows": report.num_rows,
        "windows": windows,
        "documents": report.documents,
        "documents_long": report.documents_long,
        "documents_cut_to_fill": report.documents_cut_to_fill,
        "pieces": report.pieces,
        "pieces_all_prompt": report.pieces_all_prompt,
        "blanks": report.counts,
    }


def describe(packing: dict[str, Any]) -> list[str]:
    """The same for people, as lines of text."""
    blanks = packing["blanks"]
    targets = {k.removeprefix("targets_"): n for k, n in blanks.items() if k.startswith("targets_")}
    by_kind = ", ".join(f"{n:,} {kind}" for kind, n in targets.items() if n) or "none"
    return [
        f"rows of {packing['row_tokens']:,} tokens: {packing['padding_share']:.2%} padding "
        f"({packing['rows']:,} rows of {packing['documents']:,} documents, the first of "
        f"{packing['windows']:,} windows)",
        f"cut: {packing['documents_long']:,} documents longer than {packing['source_tokens']:,} "
        f"tokens, {packing['documents_cut_to_fill']:,} to fill rows",
        *(
            f"{name.replace('_', ' ')}: {number:,}"
            for name, number in blanks.items()
            if not name.startswith("targets_")
        ),
        f"targets: {by_kind}",
        f"pieces all prompt: {packing['pieces_all_prompt']:,} of {packing['pieces']:,}",
    ]

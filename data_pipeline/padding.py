"""How full rows of T tokens get: `python -m data_pipeline stats DIR --row-tokens T`."""

from typing import Any

from data_pipeline.plan import PackingConfig, num_windows, plan_window
from data_pipeline.shards import Shards
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

_SEED = 1234  # the share hardly depends on it


def padding(shards: Shards, packing: PackingConfig) -> dict[str, Any]:
    """What the plan of the first window of `train` makes of its documents; JSON-able.

    Blanks are those of the paper's base model: 15 % of the tokens.
    """
    split = shards.splits["train"]
    transform = BlankTransform(
        BlankConfig(),
        shards.special,
        source_tokens=packing.source_tokens,
        vocab_size=shards.vocab_size,
    )
    report = plan_window(split, transform, packing, seed=_SEED, epoch=0, window=0).report
    return {
        "row_tokens": packing.row_tokens,
        "source_tokens": packing.source_tokens,
        "padding_share": 1.0 - report.nonpadding_ratio,
        "rows": report.num_rows,
        "windows": num_windows(split, packing),
        "documents": report.documents,
        "documents_long": report.documents_long,
        "documents_cut_to_fill": report.documents_cut_to_fill,
    }


def describe_padding(numbers: dict[str, Any]) -> str:
    """The same for people, as lines of text."""
    return (
        f"rows of {numbers['row_tokens']:,} tokens: {numbers['padding_share']:.2%} padding "
        f"({numbers['rows']:,} rows of {numbers['documents']:,} documents, the first of "
        f"{numbers['windows']:,} windows)\n"
        f"cut: {numbers['documents_long']:,} documents longer than {numbers['source_tokens']:,} "
        f"tokens, {numbers['documents_cut_to_fill']:,} to fill rows"
    )

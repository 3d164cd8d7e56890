"""What folders of shards hold, as a table for people and an object for programs."""

from collections.abc import Mapping
from typing import Any

from data_pipeline.storage.manifest import Manifest, SplitEntry


def counts(manifest: Manifest) -> dict[str, Any]:
    """Documents, tokens, shards, what was skipped, in all and for each split; JSON-able."""
    encoder = manifest.encoder
    return {
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "shards": sum(len(s.shards) for s in manifest.splits.values()),
        "skipped": manifest.skipped,
        "cleaned": manifest.cleaned,
        "splits": {name: _split_counts(split) for name, split in manifest.splits.items()},
        "vocab_size": manifest.vocab_size,
        "dtype": manifest.dtype,
        "special": manifest.special.by_name(),
        "aliases": manifest.aliases,
        "tokenizer_fingerprint": manifest.tokenizer_fingerprint,
        "source": manifest.source,
        "licence": manifest.licence,
        "inputs": len(manifest.sources),
        "size_bytes": sum(f.size_bytes for f in manifest.files()),
        "encoder": encoder
        and {
            "tokens": encoder.tokens,
            "vocab_size": encoder.vocab_size,
            "dtype": encoder.dtype,
            "special": encoder.special.by_name(),
            "tokenizer_fingerprint": encoder.tokenizer_fingerprint,
            "longest_tokens": encoder.longest_tokens,
        },
    }


def table(manifest: Manifest) -> str:
    """The same for people, as lines of text."""
    rows = [("", "documents", "tokens", "shards", "tokens a document")]
    for name, split in manifest.splits.items():
        mean = f"{split.tokens / split.documents:,.1f}" if split.documents else "-"
        rows.append(
            (name, f"{split.documents:,}", f"{split.tokens:,}", f"{len(split.shards):,}", mean)
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))])
        for row in rows
    ]
    lines.append(f"vocabulary {manifest.vocab_size:,} ids, stored as {manifest.dtype}")
    if (encoder := manifest.encoder) is not None:
        longest = " and ".join(f"{n:,}" for n in map(max, zip(*encoder.longest_tokens.values())))
        lines.append(
            f"encoder: {encoder.tokens:,} tokens, vocabulary {encoder.vocab_size:,} ids, stored as "
            f"{encoder.dtype}; longest document {longest} tokens"
        )
    lines.append(f"skipped: {describe_counts(manifest.skipped)}")
    if manifest.cleaned:
        lines.append(f"cleaned: {describe_counts(manifest.cleaned)}")
    for name, text in (("source", manifest.source), ("licence", manifest.licence)):
        if text:
            lines.append(f"{name}: {text}")
    return "\n".join(lines)


def together(manifests: Mapping[str, Manifest]) -> dict[str, Any]:
    """What folders hold as the corpora of one run: tokens of `train`, by folder; JSON-able."""
    tokens = {folder: m.splits["train"].tokens for folder, m in manifests.items()}
    total = sum(tokens.values())
    return {
        "train_tokens": total,
        "train_tokens_ratio": {folder: n / max(total, 1) for folder, n in tokens.items()},
        "one_tokenizer": len({m.tokenizer_fingerprint for m in manifests.values()}) == 1,
    }


def describe_together(whole: dict[str, Any]) -> str:
    """The same for people, as lines of text."""
    lines = [f"together: {whole['train_tokens']:,} tokens to train on"]
    lines += [f"  {ratio:7.2%}  {folder}" for folder, ratio in whole["train_tokens_ratio"].items()]
    lines.append("  (weights in this relation make every corpus's epoch end at one time)")
    if not whole["one_tokenizer"]:
        lines.append("prepared with different tokenizers: one run cannot read them together")
    return "\n".join(lines)


def describe_counts(numbers: dict[str, int]) -> str:
    """{"blank": 2} -> "2 blank"; "nothing" if empty."""
    return ", ".join(f"{n:,} {reason}" for reason, n in numbers.items()) or "nothing"


def _split_counts(split: SplitEntry) -> dict[str, Any]:
    return {
        "documents": split.documents,
        "tokens": split.tokens,
        "shards": len(split.shards),
        "fingerprint": split.fingerprint,
    }

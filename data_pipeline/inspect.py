"""`python -m data_pipeline inspect`: training rows as a person wants to see them.

    inspect DIR --document 17 --kind sentence       a document, blanked as in epoch 0
    inspect DIR --row 3                             a packed row as the model gets it
    inspect DIR --text "To be or not to be"         a text of one's own

A document is blanked by the hash of (seed, epoch, document), so that what is shown is what training
with these settings sees, unless it was cut once more there to fill a row.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from data_pipeline import hashing
from data_pipeline.memory import MemorySplit
from data_pipeline.packing.cut import Stretches, cut_documents, read_documents
from data_pipeline.packing.pack import pack_rows
from data_pipeline.packing.plan import PackingConfig, num_windows, plan_window
from data_pipeline.protocols import Split
from data_pipeline.row_picture import draw_row
from data_pipeline.rows import KINDS
from data_pipeline.storage.shards import Shards, open_shards
from data_pipeline.tokenizing.sentences import ends_in_tokens
from data_pipeline.tokenizing.tokenizer import Tokenizer
from data_pipeline.transforms.blank import BlankConfig, BlankPlan, BlankTransform


def run(
    folder: str | Path,
    *,
    text: str | None = None,
    document: int = 0,
    piece: int = 0,
    row: int | None = None,
    split: str = "train",
    epoch: int = 0,
    seed: int = 1234,
    kind: str | None = None,
    source_tokens: int = 512,
    row_tokens: int = 1152,
    blank: BlankConfig | None = None,
    picture_tokens: int = 64,
) -> str:
    """The picture of one row of the shards in `folder`, or of `text` with their tokenizer.

    document, piece: which document, and which of its pieces where it is longer than source_tokens.
    row: a packed row of the epoch instead. kind: blank every text this way. blank: all settings.
    picture_tokens: the longest row whose mask is drawn.
    Raises ValueError for what does not exist, and for what is no folder of shards.
    """
    shards = open_shards(folder)
    packing = PackingConfig(source_tokens=source_tokens, row_tokens=row_tokens)
    config = blank or BlankConfig()
    transform = BlankTransform(
        config if kind is None else only(kind, config),
        shards.special,
        source_tokens=source_tokens,
        vocab_size=shards.vocab_size,
    )
    tokenizer = shards.tokenizer()
    drawn = {"seed": seed, "epoch": epoch, "picture_tokens": picture_tokens}
    if row is not None:
        rows_of = _split_of(shards, split)
        return inspect_row(rows_of, transform, packing, tokenizer, row=row, **drawn)
    if text is not None:
        source, document = split_of_text(text, tokenizer), 0
    else:
        source = _split_of(shards, split)
    return inspect_document(
        source, transform, packing, tokenizer, document=document, piece=piece, **drawn
    )


def inspect_document(
    split: Split,
    transform: BlankTransform,
    packing: PackingConfig,
    tokenizer: Tokenizer,
    *,
    document: int,
    piece: int = 0,
    seed: int,
    epoch: int = 0,
    picture_tokens: int = 64,
) -> str:
    """The row that a document, or one piece of a long one, becomes."""
    if not 0 <= document < split.num_documents:
        raise ValueError(
            f"document {document} does not exist, the split has {split.num_documents} (from 0 on)."
        )
    documents = read_documents(split, np.array([document]))
    stretches = cut_documents(documents, np.array([packing.source_tokens]))
    if not 0 <= piece < len(stretches):
        raise ValueError(
            f"piece {piece} does not exist, the document is cut into {len(stretches)} (from 0 on)."
        )
    pieces = stretches.take(np.array([piece])).pieces()
    keys_N = hashing.key(seed, epoch, pieces.document_N, pieces.start_N)
    plan = transform.draw(pieces, keys_N, np.array([packing.row_tokens]))
    tokens = split.tokens(pieces.document_N, pieces.start_N, pieces.stop_N)
    rows = transform.build(tokens, plan)
    packed = pack_rows(rows, np.array([1]), int(rows.lengths_N[0]))
    captions = _captions(stretches.take(np.array([piece])), plan)
    return draw_row(packed, 0, tokenizer.pieces, captions=captions, picture_tokens=picture_tokens)


def inspect_row(
    split: Split,
    transform: BlankTransform,
    packing: PackingConfig,
    tokenizer: Tokenizer,
    *,
    row: int,
    seed: int,
    epoch: int = 0,
    picture_tokens: int = 64,
) -> str:
    """Packed row number `row` of an epoch, as the model gets it."""
    left = row
    for window in range(num_windows(split, packing)):
        plan = plan_window(split, transform, packing, seed=seed, epoch=epoch, window=window)
        assert isinstance(plan.plan, BlankPlan)
        if 0 <= left < plan.num_rows:
            chosen = plan.order[plan.row_offsets_R1[left] : plan.row_offsets_R1[left + 1]]
            captions = _captions(plan.stretches.take(chosen), plan.plan.take(chosen))
            packed = plan.build(np.array([left]))
            return draw_row(
                packed, 0, tokenizer.pieces, captions=captions, picture_tokens=picture_tokens
            )
        left -= plan.num_rows
    raise ValueError(f"row {row} does not exist, the epoch has {row - left} (from 0 on).")


def only(kind: str, config: BlankConfig) -> BlankConfig:
    """The same settings with every text blanked in one way, one of KINDS but the first."""
    if kind not in KINDS[1:]:
        raise ValueError(f"kind must be one of {', '.join(KINDS[1:])}, got {kind}.")
    mixed = "token" if kind in ("single", "whole") else kind
    shares = {f"{name}_prob": float(name == mixed) for name in ("token", "sentence", "document")}
    single, whole = float(kind == "single"), float(kind == "whole")
    return replace(config, **shares, single_span_prob=single, whole_prob=whole)


def split_of_text(text: str, tokenizer: Tokenizer) -> MemorySplit:
    """One document in memory, tokenized and cut into sentences as `prepare` does it."""
    encoded = tokenizer.encode_with_offsets([text])
    if not len(encoded.ids):
        raise ValueError("the text holds no token. Give one with words in it.")
    sentence_ends, _ = ends_in_tokens([text], encoded)
    return MemorySplit.from_documents([encoded.ids], sentence_ends=[sentence_ends])


def _split_of(shards: Shards, name: str) -> Split:
    if name not in shards.splits:
        raise ValueError(f"split must be one of {', '.join(shards.splits)}, got {name}.")
    return shards.splits[name]


def _captions(stretches: Stretches, plan: BlankPlan) -> list[str]:
    """A line of numbers above each document."""
    pieces, documents = stretches.pieces(), stretches.documents
    length_N = documents.lengths_N[stretches.owner_N]
    captions = []
    for i in range(len(pieces)):
        numbers = {
            "document": pieces.document_N[i],
            "tokens": f"[{pieces.start_N[i]}, {pieces.stop_N[i]}) of {length_N[i]}",
            "prompt": pieces.prompt_N[i],
            "kind": KINDS[plan.kind_N[i]] + (", suffix" if plan.suffix_N[i] else ""),
            "n": plan.source_lengths_N[i],
            "blanks": plan.num_spans_N[i],
            "lost": plan.spans_lost_N[i] + plan.spans_unplaced_N[i],
            "sep": plan.sep_N[i],
            "targets": plan.num_targets_N[i],
            "row": plan.row_lengths_N[i],
        }
        if_any = ("prompt", "lost")
        shown = (
            f"{name} {value}" for name, value in numbers.items() if name not in if_any or value
        )
        captions.append(" | ".join(shown))
    return captions

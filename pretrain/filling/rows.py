"""Rows of texts whose blanks hold given tokens, built by the transform that training uses.

The text "a [MASK] c" with the tokens of " b" in its blank (M = [MASK]):

    ids        CLS a M c eos | sop b
    targets    CLS a M c eos | b   eop

To ask for the next token of a blank, give it one placeholder more than is written: what stands
behind the place that is read is not seen from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_pipeline.rows import KINDS, Rows
from data_pipeline.tokenizing.tokenizer import Tokenizer
from data_pipeline.transforms.blank import BlankConfig, BlankTransform, plan_from_spans
from pretrain.models.backbone import Backbone

_KIND_OF_MARK = {"mask": "token", "smask": "sentence", "gmask": "document"}


@dataclass(frozen=True)
class WrittenText:
    """A text cut into k + 1 segments, and what stands in the k blanks between them (not empty)."""

    segments: Sequence[NDArray[np.integer]]
    marks: Sequence[str]  # mask, smask or gmask
    contents: Sequence[NDArray[np.integer]]
    ends_document: bool  # eos follows

    def tokens(self) -> NDArray[np.int32]:
        """The text with its blanks written, without CLS and eos."""
        parts = [self.segments[0]]
        for content, segment in zip(self.contents, self.segments[1:], strict=True):
            parts += [content, segment]
        return np.concatenate(parts).astype(np.int32)

    def spans(self) -> list[tuple[int, int]]:
        """[start, stop) of each blank among the tokens, CLS being token 0."""
        spans, start = [], 1
        for segment, content in zip(self.segments, self.contents):
            start += len(segment)
            spans.append((start, start + len(content)))
            start += len(content)
        return spans

    def mask_positions(self) -> list[int]:
        """Where each mask token stands in part A."""
        lengths = [len(segment) + 1 for segment in self.segments[:-1]]
        return np.cumsum(lengths, dtype=np.int64).tolist()


def transform_of(backbone: Backbone, tokenizer: Tokenizer, blanks: BlankConfig) -> BlankTransform:
    """The transform of a trained model, reading whole blanks ([dBLOCK] replaces nothing)."""
    return BlankTransform(
        replace(blanks, block_mask_prob=0.0),
        tokenizer.special,
        source_tokens=source_tokens(backbone),
        vocab_size=tokenizer.vocab_size,
    )


def source_tokens(backbone: Backbone) -> int:
    """Tokens of the longest text the model was built for: the inverse of `num_positions`."""
    return backbone.num_positions - int(backbone.shape.block_positions)


def usable_ids(backbone: Backbone, tokenizer: Tokenizer) -> Tensor:
    """True for ids that may stand in a text, not special or padding of the vocabulary: (V,)."""
    usable_V = torch.arange(backbone.vocab_size) < tokenizer.vocab_size
    usable_V[list(tokenizer.special.by_name().values())] = False
    return usable_V.to(backbone.embedding.token_table.device)


def blank_rows(
    transform: BlankTransform, texts: Sequence[WrittenText], *, suffix: bool = False
) -> Rows:
    """The rows of N texts, blanks in text order.

    suffix: each text has one blank, at its end, that runs to the last token and has no eop.
    """
    tokens = [text.tokens() for text in texts]
    plan = plan_from_spans(
        [text.spans() for text in texts],
        source_lengths=[
            1 + len(ids) + text.ends_document for ids, text in zip(tokens, texts, strict=True)
        ],
        ends_document=[text.ends_document for text in texts],
        suffix=suffix,
    )
    rows = transform.build(np.concatenate(tokens), plan)
    if transform.config.span_marks == "mask":
        _mark_by_kind(rows, transform, texts)
    return rows


def _mark_by_kind(rows: Rows, transform: BlankTransform, texts: Sequence[WrittenText]) -> None:
    """A plan knows one kind of blank per text; here every blank has its own."""
    begin_N = np.cumsum(rows.lengths_N) - rows.lengths_N
    for begin, text in zip(begin_N, texts):
        for position, mark in zip(text.mask_positions(), text.marks):
            kind = KINDS.index(_KIND_OF_MARK[mark])
            rows.ids[begin + position] = transform.marks.mask_of_kind[kind]

"""Blanks filled by a model: texts with [MASK], [sMASK] and [gMASK] in, whole texts out.

    fill(backbone, tokenizer, ["The [MASK] of war."])[0].filled

Blanks of a text are filled from left to right, each as training wrote it: sop at the place of its
mask, the block position counting from 1, eop at its end. A text that ends with [gMASK] has its
other blanks filled first and is then continued (the suffix form; eos ends it). Rows are built by
the BlankTransform that trained the model, so that its ablations hold here too, and read with a
cache. A blank gets at least one token, and never a special one. GLM (Du et al. 2022), sections 2.1
and 2.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from data_pipeline.tokenizing.tokenizer import Tokenizer
from data_pipeline.transforms.blank import BlankConfig
from pretrain.filling.beam import search_blanks
from pretrain.filling.constraints import Rules
from pretrain.filling.draft import Draft, begin_blanks
from pretrain.filling.reading import AnewReader, CachedReader, Reader, Scores
from pretrain.filling.rows import source_tokens, transform_of, usable_ids
from pretrain.filling.sampling import FillSettings, choose_tokens
from pretrain.filling.text import BlankedText, parse
from pretrain.models.backbone import Backbone


@dataclass(frozen=True)
class FilledBlank:
    """What was written into one blank."""

    text: str
    ids: list[int]
    log_probs: list[float]  # nats of each token over the whole vocabulary; that of its end is last
    complete: bool  # whether the model ended it; else it was cut at max_tokens


@dataclass(frozen=True)
class Filled:
    """A text, the same with its blanks filled, and each filling."""

    text: str
    filled: str
    blanks: list[FilledBlank]


class Writer:
    """Writes the blanks of many drafts, one token of each at a time."""

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        settings: FillSettings,
        blanks: BlankConfig,
        scores: Scores | None,
    ) -> None:
        self.backbone, self.settings, self.scores = backbone, settings, scores
        self.special = tokenizer.special
        self.transform = transform_of(backbone, tokenizer, blanks)
        self.usable_V = usable_ids(backbone, tokenizer)
        # Token n of a blank stands at block position n + 1, its sop at 1; both must lie inside the
        # table, since the blanks behind it are read with them.
        self.max_tokens = min(settings.max_tokens, backbone.num_positions - 2)
        if settings.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be at most {self.max_tokens}, the longest blank that the "
                f"position table of this model reaches, got {settings.min_tokens}."
            )

    def write(self, drafts: Sequence[Draft]) -> None:
        """Write all blanks of all drafts, which are either all suffixes or none."""
        drafts = [draft for draft in drafts if not draft.done]
        by_beams = self.settings.strategy == "beam"
        num_rows = self.settings.num_beams if by_beams else 1
        step = max(1, self.settings.batch_texts // num_rows)
        for first in range(0, len(drafts), step):
            batch = drafts[first : first + step]
            if by_beams:
                self._search(batch)
            else:
                self._write_along(batch)

    def _write_along(self, drafts: Sequence[Draft]) -> None:
        """Write one token after the other, greedily or drawn."""
        rules, reader = self._rules(drafts), self._reader(len(drafts))
        begin_blanks(self.transform, drafts, rules.max_tokens)
        rows = None
        while drafts:
            logits_NV = reader(drafts, rows=rows)
            chosen_N = choose_tokens(
                rules.penalised(logits_NV, drafts),
                rules.allowed(drafts),
                self.settings,
                [draft.generator for draft in drafts],
            )
            places_N1 = chosen_N[:, None].to(logits_NV.device)
            log_probs_N = logits_NV.log_softmax(dim=-1).gather(1, places_N1)[:, 0].tolist()
            for draft, token, log_prob in zip(drafts, chosen_N.tolist(), log_probs_N):
                rules.take(draft, token, log_prob)
            rows = _open_rows(drafts)
            drafts = [drafts[row] for row in rows]
            begun = [draft for draft in drafts if draft.between_blanks]
            begin_blanks(self.transform, begun, rules.max_tokens)

    def _search(self, drafts: Sequence[Draft]) -> None:
        """Search the best filling of the first blank of each, then of the second, ..."""
        rules = self._rules(drafts)
        while drafts:
            begin_blanks(self.transform, drafts, rules.max_tokens)
            reader = self._reader(len(drafts) * self.settings.num_beams)
            search_blanks(drafts, reader, rules)
            drafts = [draft for draft in drafts if not draft.done]

    def _reader(self, num_rows: int) -> Reader:
        if self.scores is not None:
            return AnewReader(self.backbone, self.scores)
        return CachedReader(self.backbone, num_rows)

    def _rules(self, drafts: Sequence[Draft]) -> Rules:
        special = self.special
        ends = (special.eop, special.eos) if drafts[0].is_suffix else (special.eop,)
        return Rules(self.settings, self.usable_V, ends, self.max_tokens)


def _open_rows(drafts: Sequence[Draft]) -> list[int]:
    """The drafts that are not done; where one is, the last open one takes its place.

    So few rows of a cache move, however many drafts end.
    """
    rows = list(range(len(drafts)))
    for row in reversed(range(len(drafts))):
        if drafts[row].done:
            last = rows.pop()
            if row < len(rows):
                rows[row] = last
    return rows


@torch.no_grad()
def fill(
    backbone: Backbone,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    settings: FillSettings | None = None,
    *,
    blanks: BlankConfig | None = None,
    scores: Scores | None = None,
) -> list[Filled]:
    """Every text with its [MASK], [sMASK] and [gMASK] filled.

    blanks: how the model was trained, by default BlankConfig(). scores: how the model is asked, by
    default with a cache; where weights are sharded, a call through the engine with whole rows,
    which every rank then makes equally often. The model is put into evaluation mode and left as it
    was.
    Raises ValueError for a text without a blank or too long for the model.
    """
    settings, blanks = settings or FillSettings(), blanks or BlankConfig()
    parsed = [parse(text, tokenizer) for text in texts]
    for text in parsed:
        _check_length(text, source_tokens(backbone))
    writer = Writer(backbone, tokenizer, settings, blanks, scores)
    was_training = backbone.training
    backbone.eval()
    try:
        drafts = _written_drafts(parsed, writer)
    finally:
        backbone.train(was_training)
    return [_filled(text, steps, tokenizer) for text, steps in zip(parsed, drafts)]


def _written_drafts(texts: Sequence[BlankedText], writer: Writer) -> list[list[Draft]]:
    """Each text with its blanks filled and, where it ends with [gMASK], its continuation."""
    seed = writer.settings.seed
    drafts = [[_first_draft(text, seed, number)] for number, text in enumerate(texts)]
    writer.write([first for (first,) in drafts])
    for text, steps in zip(texts, drafts):
        if text.continues:
            (first,) = steps
            _check_filled(text, len(first.tokens()), source_tokens(writer.backbone))
            segments = [first.tokens(), np.zeros(0, np.int32)]
            steps.append(Draft(segments, ["gmask"], first.generator, is_suffix=True))
    writer.write([steps[1] for steps in drafts if len(steps) > 1])
    return drafts


def _first_draft(text: BlankedText, seed: int, number: int) -> Draft:
    """The text without the [gMASK] it may end with, which continues what is filled before it."""
    num_blanks = len(text.marks) - text.continues
    return Draft(
        segments=list(text.segments[: num_blanks + 1]),
        marks=list(text.marks[:num_blanks]),
        generator=torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63),
        ends_document=not text.continues,
    )


def _check_length(text: BlankedText, most_tokens: int) -> None:
    num_tokens = 1 + sum(map(len, text.segments)) + len(text.marks) + (not text.continues)
    if num_tokens > most_tokens:
        raise ValueError(
            f"the text {text.text[:60]!r}... has {num_tokens} tokens with its blanks, and this "
            f"model reads at most {most_tokens}. Shorten it, or train with a larger source_tokens."
        )


def _check_filled(text: BlankedText, num_tokens: int, most_tokens: int) -> None:
    if num_tokens + 2 > most_tokens:  # with CLS and [gMASK]
        raise ValueError(
            f"the text {text.text[:60]!r}... has {num_tokens + 2} tokens once its blanks are "
            f"filled, and this model reads at most {most_tokens}: there is no room to go on from "
            "it. Lower --max-tokens, or shorten the text."
        )


def _filled(text: BlankedText, drafts: Sequence[Draft], tokenizer: Tokenizer) -> Filled:
    blanks = [
        FilledBlank(tokenizer.decode(ids), ids, log_probs, complete)
        for draft in drafts
        for ids, log_probs, complete in zip(draft.written, draft.log_probs, draft.complete)
    ]
    return Filled(text.text, tokenizer.decode(drafts[-1].tokens()), blanks)

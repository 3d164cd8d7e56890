"""Blanks filled by a model: texts with [MASK], [sMASK] and [gMASK] in, whole texts out.

    fill(backbone, tokenizer, ["The [MASK] of war."])[0].filled

Blanks of a text are filled from left to right, each as training wrote it: sop at the place of its
mask, the block position counting from 1, eop at its end. A text that ends with [gMASK] has its
other blanks filled first and is then continued (the suffix form; eos ends it). Rows are built by
the BlankTransform that trained the model, so that its ablations hold here too. A blank gets at
least one token, and never a special one. GLM (Du et al. 2022), sections 2.1 and 2.2.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_pipeline.tokenizer import Tokenizer
from data_pipeline.transforms.blank import BlankConfig
from kernels.visibility import Visibility
from pretrain.filling.rows import WrittenText, blank_rows, source_tokens, transform_of, usable_ids
from pretrain.filling.sampling import FillSettings, choose_tokens
from pretrain.filling.text import BlankedText, parse
from pretrain.filling.unpacked import tensors_of, unpacked
from pretrain.models.backbone import Backbone, check_positions

Scores = Callable[[Mapping[str, Tensor]], Tensor]


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


@dataclass
class Draft:
    """A text while its blanks are being written, from left to right."""

    segments: list[NDArray[np.int32]]
    marks: list[str]
    generator: torch.Generator
    is_suffix: bool = False
    ends_document: bool = False
    written: list[list[int]] = field(default_factory=list)  # of each blank that was begun
    log_probs: list[list[float]] = field(default_factory=list)
    complete: list[bool] = field(default_factory=list)  # of each blank that is done

    @property
    def done(self) -> bool:
        return len(self.complete) == len(self.marks)

    @property
    def current(self) -> list[int]:
        """The tokens of the blank that is being written."""
        if len(self.written) == len(self.complete):
            self.written.append([])
            self.log_probs.append([])
        return self.written[-1]

    def with_placeholders(self) -> WrittenText:
        """The text with one more token in the current blank, and one in each that is to come."""
        num_begun = len(self.complete) + 1
        blanks = [*self.written[: num_begun - 1], [*self.current, 0]]
        blanks += [[0]] * (len(self.marks) - num_begun)
        return self._text(blanks)

    def tokens(self) -> NDArray[np.int32]:
        """The finished text."""
        return self._text(self.written).tokens()

    def _text(self, blanks: Sequence[Sequence[int]]) -> WrittenText:
        contents = [np.array(ids, np.int32) for ids in blanks]
        return WrittenText(self.segments, self.marks, contents, self.ends_document)


class Writer:
    """Writes the blanks of many drafts, one token of each at a time, by asking the model anew."""

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        settings: FillSettings,
        blanks: BlankConfig,
        scores: Scores,
    ) -> None:
        self.backbone, self.settings, self.scores = backbone, settings, scores
        self.special = tokenizer.special
        self.transform = transform_of(backbone, tokenizer, blanks)
        self.usable_V = usable_ids(backbone, tokenizer)
        # Token n of a blank stands at block position n + 1, its sop at 1; both must lie inside the
        # table, since the blanks behind it are read with them.
        self.max_tokens = min(settings.max_tokens, backbone.num_positions - 2)

    def write(self, drafts: Sequence[Draft]) -> None:
        """Write all blanks of all drafts, which are either all suffixes or none."""
        for first in range(0, len(drafts), self.settings.batch_texts):
            batch = drafts[first : first + self.settings.batch_texts]
            while open_drafts := [draft for draft in batch if not draft.done]:
                self._write_one_token(open_drafts)

    def _write_one_token(self, drafts: Sequence[Draft]) -> None:
        logits_NV = self._next_logits(drafts)
        allowed_NV = self.usable_V.repeat(len(drafts), 1)
        for row, draft in enumerate(drafts):
            allowed_NV[row, self._ends(draft)] = bool(draft.current)
        chosen_N = choose_tokens(
            logits_NV, allowed_NV, self.settings, [d.generator for d in drafts]
        )
        log_probs_N = logits_NV.log_softmax(dim=-1).cpu().gather(1, chosen_N[:, None])
        for draft, token, log_prob in zip(drafts, chosen_N.tolist(), log_probs_N[:, 0].tolist()):
            self._take(draft, token, log_prob)

    def _take(self, draft: Draft, token: int, log_prob: float) -> None:
        blank, ended = draft.current, token in self._ends(draft)
        draft.log_probs[-1].append(log_prob)
        if not ended:
            blank.append(token)
        if ended or len(blank) == self.max_tokens:
            draft.complete.append(ended)

    def _ends(self, draft: Draft) -> list[int]:
        return [self.special.eop, self.special.eos] if draft.is_suffix else [self.special.eop]

    def _next_logits(self, drafts: Sequence[Draft]) -> Tensor:
        """Scores of the next token of each draft's current blank: fp32 (N, V)."""
        texts = [draft.with_placeholders() for draft in drafts]
        rows = blank_rows(self.transform, texts, suffix=drafts[0].is_suffix)
        # Part B: each finished blank behind its sop, then sop and what the current one has so far.
        written = [sum(len(ids) + 1 for ids in d.written) for d in drafts]
        last_N = torch.from_numpy(rows.sep_N) + torch.tensor(written) - 1
        inputs = _cut_behind(tensors_of(unpacked(rows)), last_N) | {"last": last_N}
        check_positions(inputs["positions"], self.backbone.num_positions)
        return self.scores({name: t.to(self.usable_V.device) for name, t in inputs.items()})


def _cut_behind(inputs: dict[str, Tensor], last_N: Tensor) -> dict[str, Tensor]:
    """`inputs` with what stands behind position `last` of each row turned into padding."""
    num_columns = int(last_N.max()) + 1
    inside_NT = torch.arange(num_columns) <= last_N[:, None]
    cut = {name: values[..., :num_columns] for name, values in inputs.items()}
    cut["document"] = cut["document"].masked_fill(~inside_NT, -1)
    cut["positions"] = cut["positions"] * inside_NT[:, None]
    return cut | {name: cut[name] * inside_NT for name in ("ids", "lo", "hi")}


def next_scores(backbone: Backbone, inputs: Mapping[str, Tensor]) -> Tensor:
    """Scores, fp32 (N, V), of what follows position `last` (N,) of each row of `inputs`.

    inputs: those of unpacked.tensors_of, and `last`, all on the device of the weights.
    """
    visibility = Visibility(inputs["lo"], inputs["hi"], inputs["document"])
    hidden_NTD = backbone(inputs["ids"], inputs["positions"], visibility)
    row_N = torch.arange(len(hidden_NTD), device=hidden_NTD.device)
    return backbone.logits(hidden_NTD[row_N, inputs["last"]]).float()


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
    default next_scores(backbone, ...); where weights are sharded, a call through the engine, which
    every rank then makes equally often. The model is put into evaluation mode and left as it was.
    Raises ValueError for a text without a blank or too long for the model.
    """
    settings, blanks = settings or FillSettings(), blanks or BlankConfig()
    parsed = [parse(text, tokenizer) for text in texts]
    for text in parsed:
        _check_length(text, source_tokens(backbone))
    ask = scores or partial(next_scores, backbone)
    writer = Writer(backbone, tokenizer, settings, blanks, ask)
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
        generator=torch.Generator().manual_seed(seed * 1_000_003 + number),
        ends_document=not text.continues,
    )


def _check_length(text: BlankedText, most_tokens: int) -> None:
    num_tokens = 1 + sum(map(len, text.segments)) + len(text.marks) + (not text.continues)
    if num_tokens > most_tokens:
        raise ValueError(
            f"the text {text.text[:60]!r}... has {num_tokens} tokens with its blanks, and this "
            f"model reads at most {most_tokens}. Shorten it, or train with a larger source_tokens."
        )


def _filled(text: BlankedText, drafts: Sequence[Draft], tokenizer: Tokenizer) -> Filled:
    blanks = [
        FilledBlank(tokenizer.decode(ids).strip(), ids, log_probs, complete)
        for draft in drafts
        for ids, log_probs, complete in zip(draft.written, draft.log_probs, draft.complete)
    ]
    return Filled(text.text, tokenizer.decode(drafts[-1].tokens()), blanks)

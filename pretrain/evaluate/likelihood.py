"""How well a model writes what was blanked out: exact sums of nats, and the truth of single blanks.

    nats = nats_per_target(backbone, validation_batches(...), end_id=tokenizer.special.eop)
    nats["total"].mean, nats["total_without_end"].mean, nats["token"].count
    score_blanks(backbone, tokenizer, [("The [MASK] of war.", ["price"])])[0][0].prob

A mean is always one sum over one count. Sums are kept in float64 on the CPU.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from data_pipeline.rows import KINDS
from data_pipeline.tokenizing.tokenizer import Tokenizer
from data_pipeline.transforms.blank import BlankConfig
from kernels.visibility import Visibility
from pretrain.filling.rows import WrittenText, blank_rows, transform_of, usable_ids
from pretrain.filling.text import BlankedText, parse
from pretrain.filling.unpacked import hidden_states, unpacked
from pretrain.models.backbone import Backbone
from pretrain.objectives.glm import GlmObjective, PackedBatch
from pretrain.objectives.loss import target_losses


class Nats(NamedTuple):
    """A sum of weighted losses in nats and the sum of the weights."""

    sum: float
    count: float

    @property
    def mean(self) -> float:
        """Nats per target; nan without any."""
        return self.sum / self.count if self.count else math.nan


@torch.no_grad()
def nats_per_target(
    backbone: Backbone, batches: Iterable[PackedBatch], *, end_id: int
) -> dict[str, Nats]:
    """Nats over all targets of `batches`: `total` and each kind of blank that occurs.

    NAME_without_end leaves out the targets that are `end_id` (eop), which are easy: they make a
    loss look smaller than that of the words. The model must be in evaluation mode.
    """
    device = backbone.embedding.token_table.device
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))
    objective = GlmObjective(BlankConfig())
    for batch in batches:
        inputs = {name: t.to(device) for name, t in objective.inputs(batch).items()}
        visibility = Visibility(inputs["lo"], inputs["hi"], inputs["document"])
        hidden_BTD = backbone(inputs["ids"], inputs["positions"], visibility)
        losses_N = target_losses(backbone, hidden_BTD, inputs["target_index"], inputs["targets"])
        weighted_N2 = torch.stack((losses_N.double() * inputs["weights"], inputs["weights"]), 1)
        weighted_N2, targets_N, kind_N = (
            t.cpu() for t in (weighted_N2, inputs["targets"], inputs["kind"])
        )
        for number, kind in enumerate(("total", *KINDS[1:])):
            chosen_N = (kind_N == number) | (number == 0)
            sums[kind] += weighted_N2[chosen_N].sum(0)
            sums[f"{kind}_without_end"] += weighted_N2[chosen_N & (targets_N != end_id)].sum(0)
    nats = {name: Nats(*pair.tolist()) for name, pair in sums.items()}
    return {name: value for name, value in nats.items() if value.count or "total" in name}


@dataclass(frozen=True)
class Candidate:
    """A token and its probability."""

    piece: str
    prob: float


@dataclass(frozen=True)
class TokenScore:
    """What a model says of one token of the truth, having read those before it."""

    piece: str
    prob: float
    rank: int  # 1 where no token is more probable
    candidates: list[Candidate]  # the most probable tokens that may stand in a text, best first


@dataclass(frozen=True)
class TruthScore:
    """What a model says of the true filling of one blank."""

    truth: str
    tokens: list[TokenScore]
    end_prob: float  # that the blank ends where the truth ends

    @property
    def nats(self) -> float:
        """Sum over the truth's tokens, its end left out."""
        return -sum(math.log(token.prob) if token.prob else -math.inf for token in self.tokens)

    @property
    def prob(self) -> float:
        """Probability of all its tokens, its end left out."""
        return math.exp(-self.nats)


@torch.no_grad()
def score_blanks(
    backbone: Backbone,
    tokenizer: Tokenizer,
    texts: Sequence[tuple[str, Sequence[str]]],
    *,
    blanks: BlankConfig | None = None,
    num_candidates: int = 3,
) -> list[list[TruthScore]]:
    """The truth of every blank of every text, read as training reads it: earlier blanks are known.

    texts: (text with [MASK] or [sMASK], what stands in each of its blanks). The model must be in
    evaluation mode. Raises ValueError where blanks and truths differ in number, or a text is too
    long.
    """
    parsed = [parse(text, tokenizer) for text, _ in texts]
    written = [_written(one, truths, tokenizer) for one, (_, truths) in zip(parsed, texts)]
    rows = blank_rows(transform_of(backbone, tokenizer, blanks or BlankConfig()), written)
    packed = unpacked(rows)
    target_BT = torch.from_numpy(packed.weights > 0)
    hidden_ND = hidden_states(backbone, packed)[target_BT.to(backbone.embedding.token_table.device)]
    probs_NV = backbone.logits(hidden_ND).float().softmax(dim=-1)
    usable_V = usable_ids(backbone, tokenizer)
    best = probs_NV.masked_fill(~usable_V, 0.0).topk(num_candidates, dim=-1)
    targets_N = torch.from_numpy(packed.targets).long()[target_BT]
    scores = _token_scores(probs_NV, best, targets_N, tokenizer)
    return _by_blank(scores, [truths for _, truths in texts], written)


def _written(text: BlankedText, truths: Sequence[str], tokenizer: Tokenizer) -> WrittenText:
    if len(truths) != len(text.marks):
        raise ValueError(
            f"{text.text!r} has {len(text.marks)} blanks, got {len(truths)} truths for them. "
            f"Give one for each blank, in text order."
        )
    contents = [text.encode_truth(n, truth, tokenizer) for n, truth in enumerate(truths)]
    return WrittenText(text.segments, text.marks, contents, ends_document=True)


def _token_scores(
    probs_NV: Tensor, best: torch.return_types.topk, targets_N: Tensor, tokenizer: Tokenizer
) -> list[TokenScore]:
    truth_N1 = probs_NV.gather(1, targets_N.to(probs_NV.device)[:, None])
    rank_N = (probs_NV > truth_N1).sum(dim=-1) + 1
    columns = (targets_N, truth_N1[:, 0], rank_N, best.indices, best.values)
    return [
        TokenScore(
            piece=tokenizer.pieces([target])[0],
            prob=prob,
            rank=rank,
            candidates=[Candidate(*pair) for pair in zip(tokenizer.pieces(ids), values)],
        )
        for target, prob, rank, ids, values in zip(*(column.tolist() for column in columns))
    ]


def _by_blank(
    scores: Sequence[TokenScore],
    truths: Sequence[Sequence[str]],
    written: Sequence[WrittenText],
) -> list[list[TruthScore]]:
    """Targets of each blank are its tokens and its end, in text order."""
    remaining = iter(scores)
    by_text = []
    for names, text in zip(truths, written):
        blanks = []
        for name, content in zip(names, text.contents):
            tokens = [next(remaining) for _ in content]
            blanks.append(TruthScore(name, tokens, end_prob=next(remaining).prob))
        by_text.append(blanks)
    return by_text

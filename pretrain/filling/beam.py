"""Beam search over the fillings of a blank: several are followed at once, the best one is kept.

A filling is ranked by

    sum of log p(token | all before it) / (number of tokens, its end counted) ^ length_penalty

One that was cut at max_tokens counts only where none has ended: the end it lacks costs nothing.
Blanks of a text are filled one after the other, each search going on from the best filling of the
blanks before. With as many beams as there are prefixes it finds the best filling there is. Rank as
in the published summarisation of GLM (Du et al. 2022, section 3.2: beam 5, length penalty 0.7, no
repeated 3-gram, at least 55 tokens).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.filling.constraints import Rules
from pretrain.filling.draft import Draft
from pretrain.filling.reading import Reader


@dataclass
class Beam:
    """A draft and the sum of the log-probs that rank its current blank."""

    draft: Draft
    total: float
    row: int = 0  # of the last reading

    def rank(self, length_penalty: float) -> tuple[bool, float]:
        """Whether the filling has ended, and its score; larger is better."""
        score = self.total / len(self.draft.log_probs[-1]) ** length_penalty
        return self.draft.complete[-1], score


@dataclass
class Search:
    """The search for one draft's current blank."""

    draft: Draft
    beams: list[Beam]
    best: Beam | None = None

    def offer(self, beam: Beam, length_penalty: float) -> None:
        """Keep a finished filling if none is better."""
        if self.best is None or beam.rank(length_penalty) > self.best.rank(length_penalty):
            self.best = beam

    def stop_if_decided(self, rules: Rules) -> None:
        """Drop the beams when no continuation of theirs can outrank the best filling.

        Log-probs are negative: a total only falls, and its rank is best at the greatest length.
        """
        if self.best is None or not self.beams:
            return
        penalty = rules.settings.length_penalty
        reachable = max(beam.total for beam in self.beams) / rules.max_tokens**penalty
        if self.best.rank(penalty) >= (True, reachable):
            self.beams = []


def search_blanks(drafts: Sequence[Draft], reader: Reader, rules: Rules) -> None:
    """Write the current blank of each draft.

    reader: a new one, for len(drafts) x num_beams rows.
    """
    searches = [Search(draft, [Beam(draft.branch(), 0.0, row)]) for row, draft in enumerate(drafts)]
    rows: list[int] | None = None
    shared = 0
    while beams := [beam for search in searches for beam in search.beams]:
        logits_NV = reader([beam.draft for beam in beams], rows=rows, shared=shared)
        log_probs_NV, ranked_NV = _scored(logits_NV, beams, rules)
        counts, first = [len(search.beams) for search in searches], 0
        for search, count in zip(searches, counts):
            mine = slice(first, first + count)
            if count:
                _advance(search, log_probs_NV[mine], ranked_NV[mine], first, rules)
            first += count
        rows = [beam.row for search in searches for beam in search.beams]
        # While every text keeps its rows, rows that change places are those of one text.
        same_rows = counts == [len(search.beams) for search in searches]
        shared = min(draft.sop for draft in drafts) if same_rows else 0
    for search in searches:
        assert search.best is not None, "a search ends with a filling"
        search.draft.adopt(search.best.draft)


def _scored(logits_NV: Tensor, beams: Sequence[Beam], rules: Rules) -> tuple[Tensor, Tensor]:
    """Log-probs of the next token as the model has them, and as they rank (-inf: not allowed)."""
    drafts = [beam.draft for beam in beams]
    log_probs_NV = logits_NV.log_softmax(dim=-1)
    ranked_NV = rules.penalised(logits_NV, drafts).log_softmax(dim=-1)
    return log_probs_NV, ranked_NV.masked_fill(~rules.allowed(drafts), float("-inf"))


def _advance(
    search: Search, log_probs_NV: Tensor, ranked_NV: Tensor, first_row: int, rules: Rules
) -> None:
    """Replace the beams of one search by their best continuations."""
    settings, old = rules.settings, search.beams
    before_N1 = torch.tensor([[beam.total] for beam in old], device=ranked_NV.device)
    totals_NV = ranked_NV + before_N1
    # So many that, if all ends are among them, num_beams others are left.
    num_candidates = min(settings.num_beams * (1 + len(rules.end_ids)), totals_NV.numel())
    totals, places = totals_NV.flatten().topk(num_candidates)
    log_probs = log_probs_NV.flatten()[places].tolist()
    search.beams = []
    for total, place, log_prob in zip(totals.tolist(), places.tolist(), log_probs):
        if total == float("-inf") or len(search.beams) == settings.num_beams:
            break
        row, token = divmod(place, ranked_NV.shape[1])
        beam = Beam(old[row].draft.branch(), total, first_row + row)
        rules.take(beam.draft, token, log_prob)
        if beam.draft.between_blanks:
            search.offer(beam, settings.length_penalty)
        else:
            search.beams.append(beam)
    search.stop_if_decided(rules)

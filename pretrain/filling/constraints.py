"""What a blank may not become: too short, or the same words over and over.

Both rules look at the filling of one blank alone, so that it may repeat words of the text around
it. Repetition penalty: Keskar et al. 2019 (CTRL), section 4.1. No repeated n-grams: Paulus et al.
2018, section 2.5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain.filling.draft import Draft
from pretrain.filling.sampling import FillSettings


@dataclass(frozen=True)
class Rules:
    """What may be written into a blank."""

    settings: FillSettings
    usable_V: Tensor  # the ids that may stand in a text
    end_ids: tuple[int, ...]  # eop; for a continuation eos as well
    max_tokens: int  # settings.max_tokens, as far as the position table reaches

    def allowed(self, drafts: Sequence[Draft]) -> Tensor:
        """True for the ids that may come next in each draft: bool (N, V).

        A blank may end once it has settings.min_tokens tokens, and where no other id is left.
        """
        allowed_NV = self.usable_V.repeat(len(drafts), 1)
        for row, draft in enumerate(drafts):
            may_end = len(draft.current) >= self.settings.min_tokens
            if repeats := repeating_ids(draft.current, self.settings.no_repeat_ngram):
                allowed_NV[row, repeats] = False
                may_end = may_end or not bool(allowed_NV[row].any())
            if may_end:
                allowed_NV[row, list(self.end_ids)] = True
        return allowed_NV

    def penalised(self, logits_NV: Tensor, drafts: Sequence[Draft]) -> Tensor:
        """Scores with those of the tokens that each blank already holds made smaller: (N, V).

        A positive score is divided by the repetition penalty, a negative one multiplied by it.
        """
        penalty = self.settings.repetition_penalty
        if penalty == 1.0:
            return logits_NV
        out_NV = logits_NV.clone()
        for row, draft in enumerate(drafts):
            ids = sorted(set(draft.current))
            scores = logits_NV[row, ids]
            out_NV[row, ids] = torch.where(scores > 0, scores / penalty, scores * penalty)
        return out_NV

    def take(self, draft: Draft, token: int, log_prob: float) -> None:
        """Write `token` into the current blank, or end the blank with it."""
        draft.take(token, log_prob, ends=token in self.end_ids, max_tokens=self.max_tokens)


def repeating_ids(written: Sequence[int], ngram: int) -> list[int]:
    """The ids that would write an n-gram of `written` a second time; none where ngram is 0."""
    if not ngram or len(written) < ngram:
        return []
    context = list(written[len(written) - ngram + 1 :])
    last_start = len(written) - ngram
    return [
        written[start + ngram - 1]
        for start in range(last_start + 1)
        if list(written[start : start + ngram - 1]) == context
    ]

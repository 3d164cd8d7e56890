"""Which token comes next, given the scores of all: the best, or one drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

STRATEGIES = ("greedy", "sample", "beam")


@dataclass(frozen=True, kw_only=True)
class FillSettings:
    """How blanks are filled."""

    strategy: Literal["greedy", "sample", "beam"] = "greedy"
    """The most probable token each time, one drawn at random, or the best filling found by a search
    that follows several at once."""
    temperature: float = 1.0
    """Scores are divided by it before drawing; below 1 is bolder, above 1 more varied."""
    top_k: int = 0
    """Draw among this many most probable tokens only; 0 is all."""
    top_p: float = 1.0
    """Draw among the fewest most probable tokens that together reach this probability; 1 is all."""
    num_beams: int = 5
    """Fillings of a blank that a beam search follows at once."""
    length_penalty: float = 0.7
    """A beam search ranks fillings by the sum of the log-probs of their tokens, the end counted,
    over their number to this power (published: 0.7): 0 is the sum, 1 the mean; larger favours
    longer ones."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that a blank already holds become less probable; 1 does nothing."""
    no_repeat_ngram: int = 0
    """No sequence of this many tokens occurs twice in a blank; 0 forbids none."""
    min_tokens: int = 1
    """Shortest filling of one blank, in tokens."""
    seed: int = 0
    """Seed of the draws; each text has a stream of its own, whatever else is in its batch."""
    max_tokens: int = 64
    """Longest filling of one blank, in tokens; a longer one is cut and marked as incomplete."""
    batch_texts: int = 32
    """Texts that go through the model together."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"strategy must be one of {', '.join(STRATEGIES)}, got {self.strategy!r}."
            )
        if not self.temperature > 0:
            raise ValueError(
                f"temperature must be above 0, got {self.temperature}. For no randomness use "
                f"--strategy greedy."
            )
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (all tokens) or more, got {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}.")
        if self.length_penalty < 0:
            raise ValueError(f"length_penalty must be 0 or more, got {self.length_penalty}.")
        if self.repetition_penalty < 1:
            raise ValueError(
                f"repetition_penalty must be at least 1 (none), got {self.repetition_penalty}."
            )
        if self.no_repeat_ngram < 0:
            raise ValueError(
                f"no_repeat_ngram must be 0 (none) or more, got {self.no_repeat_ngram}."
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie in 0..2^63 - 1, got {self.seed}.")
        for name in ("max_tokens", "min_tokens", "batch_texts", "num_beams"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must not pass max_tokens = {self.max_tokens}, got {self.min_tokens}."
            )


def choose_tokens(
    logits_NV: Tensor,
    allowed_NV: Tensor,
    settings: FillSettings,
    generators: Sequence[torch.Generator],
) -> Tensor:
    """One id for each of N texts, among those that `allowed_NV` admits: int64 (N,) on the CPU.

    generators: a CPU generator for each text; greedy choice leaves them alone.
    """
    scores_NV = logits_NV.float().masked_fill(~allowed_NV, float("-inf"))
    if settings.strategy == "greedy":
        return scores_NV.argmax(dim=-1).cpu()
    probs_NV = kept_probs(scores_NV / settings.temperature, settings.top_k, settings.top_p).cpu()
    drawn = [
        torch.multinomial(probs_V, 1, generator=generator)
        for probs_V, generator in zip(probs_NV, generators, strict=True)
    ]
    return torch.cat(drawn)


def kept_probs(scores_NV: Tensor, top_k: int, top_p: float) -> Tensor:
    """Probabilities after top-k and then top-p, summing to 1: (N, V).

    The most probable token is always kept. Among equal scores top-k keeps the lower ids.
    """
    sorted_NV, order_NV = scores_NV.sort(dim=-1, descending=True, stable=True)
    if top_k:
        sorted_NV[:, top_k:] = float("-inf")
    probs_NV = sorted_NV.softmax(dim=-1)
    before_NV = probs_NV.cumsum(dim=-1) - probs_NV  # probability of all that is more probable
    probs_NV = probs_NV.masked_fill(before_NV >= top_p, 0.0)
    probs_NV = probs_NV / probs_NV.sum(dim=-1, keepdim=True)
    return torch.zeros_like(probs_NV).scatter_(-1, order_NV, probs_NV)

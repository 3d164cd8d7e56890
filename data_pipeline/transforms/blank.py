"""Blank infilling as GLM trains it: the transform that draws plans and builds rows.

    transform = BlankTransform(BlankConfig(), special, source_tokens=512, vocab_size=30592)
    plan = transform.draw(pieces, keys_N, max_row_tokens_N)    no token read, all lengths known
    rows = transform.build(tokens, plan.take(some))            the rows of some of the pieces

Both steps are pure. Source: GLM (Du et al. 2022) and its published code; docs/objectives.md lists
where and why this differs from that code.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.rows import Pieces, Rows
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank_build import build_rows, marks_of
from data_pipeline.transforms.blank_config import BlankConfig
from data_pipeline.transforms.blank_draw import draw_plan
from data_pipeline.transforms.blank_plan import BlankPlan, plan_from_spans
from data_pipeline.transforms.span_lengths import SpanLengths

__all__ = ["BlankConfig", "BlankPlan", "BlankTransform", "plan_from_spans"]


class BlankTransform:
    """Draws and builds blank-infilling rows of texts of at most `source_tokens` tokens.

    vocab_size: ids in use before and, as the attribute, with the sentinels that come behind them.
    keeps_sources: whether rows carry the texts before they were blanked, for an encoder.
    """

    reads_encoder = False

    def __init__(
        self,
        config: BlankConfig,
        special: SpecialIds,
        *,
        source_tokens: int,
        vocab_size: int,
        keeps_sources: bool = False,
    ) -> None:
        self.config = config
        self.keeps_sources = keeps_sources
        self.source_tokens = source_tokens
        self.marks = marks_of(config, special, source_tokens=source_tokens, vocab_size=vocab_size)
        self.vocab_size = vocab_size + 2 * self.marks.num_sentinels
        self._lengths = SpanLengths(config.poisson_lambda, config.max_span)

    def draw(
        self, pieces: Pieces, keys_N: NDArray[np.uint64], max_row_tokens_N: NDArray[np.int64]
    ) -> BlankPlan:
        """The blanks of N pieces; a row they would overfill loses blanks (counted), never tokens.

        keys_N: hash keys of the pieces (hashing.key); max_row_tokens_N: longest row of each.
        Raises ValueError for an empty piece or one longer than its row may be.
        """
        return draw_plan(pieces, keys_N, max_row_tokens_N, self.config, self._lengths)

    def build(self, tokens: NDArray[np.integer], plan: BlankPlan) -> Rows:
        """The rows of the plan's pieces. tokens: their stored tokens, without CLS and eos.

        Raises ValueError if there are not as many tokens as the plan says.
        """
        return build_rows(tokens, plan, self.marks, keeps_sources=self.keeps_sources)

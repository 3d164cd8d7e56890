"""Filling with a cache gives, token for token, what reading every row anew gives."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from data_pipeline.transforms.blank import BlankConfig
from pretrain.filling.fill import fill
from pretrain.filling.reading import next_scores
from pretrain.filling.sampling import FillSettings

TEXTS = [
    "a [MASK]",
    "c d e f g [MASK] h i [sMASK]",
    "[MASK] x [MASK] y [gMASK] z [MASK]",
    "q [gMASK]",
    "r [MASK] s [MASK] t u v w [gMASK]",
    "k [MASK][MASK] l",
]
STRATEGIES = {
    "greedy": FillSettings(max_tokens=6),
    "greedy, one token each": FillSettings(max_tokens=1),
    "sample": FillSettings(strategy="sample", temperature=3.0, seed=3, max_tokens=6),
    "top-k and top-p": FillSettings(
        strategy="sample", temperature=9.0, top_k=9, top_p=0.9, max_tokens=7
    ),
    "beam": FillSettings(strategy="beam", num_beams=3, max_tokens=6),
    "rules": FillSettings(min_tokens=3, max_tokens=7, repetition_penalty=1.5, no_repeat_ngram=2),
}
ABLATIONS = {
    "as published": BlankConfig(),
    "no block positions": BlankConfig(block_positions="none"),
    "sentinels": BlankConfig(span_marks="sentinels"),
}


def ids_of(filled):
    return [[blank.ids for blank in one.blanks] for one in filled]


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_equal_with_and_without_a_cache(untrained, words, strategy, ablation):
    settings, blanks = STRATEGIES[strategy], ABLATIONS[ablation]
    # Sentinels stand behind the vocabulary, in the 91 spare rows of the table.
    cached = fill(untrained, words, TEXTS, settings, blanks=blanks)
    anew = fill(
        untrained, words, TEXTS, settings, blanks=blanks, scores=partial(next_scores, untrained)
    )
    assert ids_of(cached) == ids_of(anew)
    for one, other in zip(cached, anew, strict=True):
        for a, b in zip(one.blanks, other.blanks, strict=True):
            assert a.complete == b.complete
            assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_mixed_lengths_together_equal_one_by_one(untrained, words, strategy):
    settings = STRATEGIES[strategy]
    together = fill(untrained, words, TEXTS, settings)
    few = fill(untrained, words, TEXTS, replace(settings, batch_texts=4))
    assert ids_of(together) == ids_of(few)
    if settings.strategy != "sample":  # the stream of a text follows its number
        alone = [fill(untrained, words, [text], settings)[0] for text in TEXTS]
        assert ids_of(together) == ids_of(alone)


def test_every_token_is_read_once(untrained, words):
    """30 tokens of a continuation: the text once, then a token at a time."""
    widths = []
    handle = untrained.register_forward_pre_hook(lambda _m, inputs: widths.append(inputs[0].shape))
    fill(untrained, words, ["a b c [gMASK]"], FillSettings(min_tokens=20, max_tokens=20))
    handle.remove()
    assert widths == [torch.Size((1, 6))] + [torch.Size((1, 1))] * 19


def test_a_minimum_beyond_the_position_table_is_refused(untrained, words):
    with pytest.raises(ValueError, match=r"min_tokens must be at most 31, .* got 32"):
        fill(untrained, words, ["a [MASK]"], FillSettings(min_tokens=32))

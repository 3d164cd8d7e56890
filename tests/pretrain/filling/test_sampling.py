"""Choosing a token: greedy, top-k, top-p and temperature, on numbers one can check by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.filling.sampling import FillSettings, choose_tokens, kept_probs

PROBS = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
EVERYTHING = torch.ones(1, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("top_k", "top_p", "expected"),
    [
        (0, 1.0, [0.1, 0.4, 0.2, 0.3]),
        (1, 1.0, [0, 1, 0, 0]),
        (2, 1.0, [0, 4 / 7, 0, 3 / 7]),
        (9, 1.0, [0.1, 0.4, 0.2, 0.3]),
        (0, 0.39, [0, 1, 0, 0]),
        (0, 0.41, [0, 4 / 7, 0, 3 / 7]),
        (0, 0.71, [0, 4 / 9, 2 / 9, 3 / 9]),
        (2, 0.5, [0, 1, 0, 0]),  # after top-k the first holds 4/7
        (0, 1e-9, [0, 1, 0, 0]),
    ],
)
def test_what_is_kept(top_k, top_p, expected):
    kept = kept_probs(PROBS.log(), top_k, top_p)
    assert torch.allclose(kept, torch.tensor([expected]).float(), atol=1e-6)


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=9),
    st.integers(0, 10),
    st.floats(0.01, 1.0),
)
def test_the_kept_sum_to_one_and_are_the_best(scores, top_k, top_p):
    scores_NV = torch.tensor([scores])
    kept = kept_probs(scores_NV, top_k, top_p)
    assert kept.sum().item() == pytest.approx(1, abs=1e-5)
    if top_k:
        assert (kept > 0).sum() <= top_k
    assert scores_NV[kept > 0].min() >= scores_NV[kept == 0].max() if (kept == 0).any() else True


def test_greedy_takes_the_best_that_is_allowed():
    allowed = torch.tensor([[True, False, True, True]])
    assert choose_tokens(PROBS.log(), allowed, FillSettings(), []).tolist() == [3]


def test_draws_follow_the_probabilities():
    settings = FillSettings(strategy="sample", temperature=0.5)
    generators = [torch.Generator().manual_seed(seed) for seed in range(4000)]
    chosen = choose_tokens(
        PROBS.log().expand(4000, 4), EVERYTHING.expand(4000, 4), settings, generators
    )
    shares = chosen.bincount(minlength=4) / 4000
    expected = PROBS[0].square() / PROBS.square().sum()  # temperature 1/2 squares them
    assert (shares - expected).abs().max() < 0.03  # 4 standard errors


def test_what_is_not_allowed_is_never_drawn():
    allowed = torch.tensor([[True, False, True, False]]).expand(200, 4)
    settings = FillSettings(strategy="sample", temperature=100.0, top_p=0.99)
    generators = [torch.Generator().manual_seed(seed) for seed in range(200)]
    chosen = choose_tokens(PROBS.log().expand(200, 4), allowed, settings, generators)
    assert set(chosen.tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strategy": "best"}, "strategy must be one of greedy, sample, beam, got 'best'"),
        ({"num_beams": 0}, "num_beams must be at least 1"),
        ({"length_penalty": -1.0}, r"length_penalty must be 0 or more, got -1\.0"),
        ({"repetition_penalty": 0.5}, r"repetition_penalty must be at least 1 \(none\)"),
        ({"no_repeat_ngram": -1}, r"no_repeat_ngram must be 0 \(none\) or more"),
        ({"min_tokens": 0}, "min_tokens must be at least 1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens must not pass max_tokens = 8, got 9"),
        ({"temperature": 0.0}, r"temperature must be above 0, got 0\.0"),
        ({"top_k": -1}, "top_k must be 0"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\]"),
        ({"top_p": 1.1}, r"top_p must lie in \(0, 1\]"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"batch_texts": 0}, "batch_texts must be at least 1"),
        ({"seed": 2**63}, r"seed must lie in 0\.\.2\^63 - 1, got 9223372036854775808"),
        ({"seed": -1}, r"seed must lie in 0\.\.2\^63 - 1, got -1"),
    ],
)
def test_a_wrong_setting_says_what_is_allowed(wrong, message):
    with pytest.raises(ValueError, match=message):
        FillSettings(**wrong)

"""Settings that contradict themselves are refused with the value and what is allowed."""

import pytest

from data_pipeline.transforms.blank import BlankConfig


def test_the_defaults_are_the_base_model_of_the_paper():
    config = BlankConfig()
    assert (config.token_prob, config.sentence_prob, config.document_prob) == (1.0, 0.0, 0.0)
    assert (config.mask_ratio, config.poisson_lambda, config.max_span) == (0.15, 3.0, 39)
    assert (config.min_generation_ratio, config.infill_prob) == (0.5, 0.5)
    assert config.block_mask_prob == config.single_span_prob == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"token_prob": 0.5}, r"must be 1, got 0.5 \(0.5 \+ 0 \+ 0\)"),
        ({"token_prob": 1.5}, r"token_prob must lie in \[0, 1\], got 1.5"),
        ({"token_prob": 1.2, "document_prob": -0.2}, r"token_prob must lie in \[0, 1\]"),
        ({"single_span_prob": -0.1}, r"single_span_prob must lie in \[0, 1\], got -0.1"),
        ({"infill_prob": 2}, r"infill_prob must lie in \[0, 1\], got 2"),
        ({"block_mask_prob": 1.1}, r"block_mask_prob must lie in \[0, 1\], got 1.1"),
        ({"mask_ratio": 0.0}, r"mask_ratio must lie in \(0, 1\), got 0.0"),
        ({"mask_ratio": 1.5}, r"mask_ratio must lie in \(0, 1\), got 1.5"),
        ({"sentence_ratio": 1.0}, r"sentence_ratio must lie in \(0, 1\), got 1.0"),
        ({"min_generation_ratio": 0.0}, r"min_generation_ratio must lie in \(0, 1\), got 0.0"),
        ({"poisson_lambda": 0.0}, "poisson_lambda must be above 0, got 0.0"),
        ({"poisson_lambda": float("nan")}, "poisson_lambda must be above 0, got nan"),
        ({"max_span": 0}, "max_span must be at least 1 token, got 0"),
        ({"direction": "unidirectional"}, "got document_prob 0 and single_span_prob 0"),
        ({"direction": "sideways"}, "direction must be one of bidirectional, unidirectional"),
        ({"span_order": True}, "span_order must be one of shuffled, text, got True"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        BlankConfig(**settings)


def test_single_spans_and_unidirectional_rows_exclude_each_other():
    settings = {"token_prob": 0, "document_prob": 1, "direction": "unidirectional"}
    assert BlankConfig(**settings).direction == "unidirectional"
    with pytest.raises(ValueError, match=r"single_span_prob 0\.1"):
        BlankConfig(**settings, single_span_prob=0.1)


def test_shares_may_miss_one_by_rounding():
    assert BlankConfig(token_prob=0.1 + 0.2, sentence_prob=0.4, document_prob=0.3)


def test_the_most_blanks_of_a_text_follow_the_larger_ratio():
    assert BlankConfig().max_spans(512) == 76
    assert BlankConfig(sentence_ratio=0.5).max_spans(512) == 256
    assert BlankConfig(mask_ratio=0.25).max_spans(512) == 128
    assert BlankConfig().max_spans(3) == 1

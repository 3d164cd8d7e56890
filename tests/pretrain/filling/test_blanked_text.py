"""Texts as people write them: where the marks are, and to whom the spaces belong."""

import pytest
import sentencepiece

from data_pipeline.tokenizing.tokenizer import open_tokenizer
from pretrain.filling.text import parse


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A real sentencepiece model of a few words."""
    prefix = tmp_path_factory.mktemp("tokenizer") / "words"
    lines = ["the cat sat on the mat.", "a dog ran to the cat.", "the mat is on a dog."] * 50
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(prefix), vocab_size=60,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return open_tokenizer(f"{prefix}.model")


def joined(text, truths, tokenizer):
    """The ids of a blanked text with its truths put back."""
    parsed = parse(text, tokenizer)
    ids = list(parsed.segments[0])
    for number, truth in enumerate(truths):
        ids += [*parsed.encode_truth(number, truth, tokenizer), *parsed.segments[number + 1]]
    return ids


def test_marks_and_segments_are_told_apart(words):
    parsed = parse("a [MASK] b c [sMASK][gMASK]", words)
    assert parsed.marks == ("mask", "smask", "gmask")
    assert [segment.tolist() for segment in parsed.segments] == [[0], [1, 2], [], []]
    assert parsed.spaces == (" ", " ", "")


@pytest.mark.parametrize(
    ("text", "truths"),
    [
        ("the cat [MASK] on the [MASK].", ["sat", "mat"]),
        ("[MASK] cat sat on the mat.", ["the"]),
        ("the cat sat [MASK]", ["on the mat."]),
        ("the [MASK] [MASK] on the mat.", ["cat", "sat"]),
        ("the cat[MASK] on the mat.", [" sat"]),
    ],
)
def test_putting_the_truth_back_gives_the_tokens_of_the_text(tokenizer, text, truths):
    whole = tokenizer.encode(["the cat sat on the mat."])[0].tolist()
    assert joined(text, truths, tokenizer) == whole


def test_only_a_gmask_at_the_end_continues(words):
    assert parse("a [gMASK]", words).continues
    assert parse("a [gMASK]  \n", words).continues
    assert not parse("a [gMASK] b", words).continues
    assert not parse("a [MASK]", words).continues


def test_a_text_without_a_blank_is_refused(words):
    with pytest.raises(ValueError, match=r"holds no blank: 'a b'. Write \[MASK\]"):
        parse("a b", words)


def test_an_empty_truth_is_refused(words):
    with pytest.raises(ValueError, match=r"blank 1 of 'a .MASK.' must not be empty"):
        parse("a [MASK]", words).encode_truth(0, " ", words)

"""Sentences end where a reader sees them end, whatever the tokens are."""

import re
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.tokenizing.backend import EncodedTexts
from data_pipeline.tokenizing.sentences import ends_in_tokens, sentence_ends
from data_pipeline.tokenizing.tokenizer import open_tokenizer


def split(text: str) -> list[str]:
    """The sentences of a text, the rest without a mark included, cut where tokens may be cut."""
    bounds = [0, *(end for _, end in sentence_ends(text))]
    if bounds[-1] < len(text):
        bounds.append(len(text))
    return [text[a:b] for a, b in pairwise(bounds)]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It is 3.14. Yes", ["It is 3.14.", " Yes"]),
        (
            "One. Two? Three! Four; five: six",
            ["One.", " Two?", " Three!", " Four;", " five:", " six"],
        ),
        ('"Why?" she said. (No.) [So!]', ['"Why?"', " she said.", " (No.)", " [So!]"]),
        ("“Go.” He went.", ["“Go.”", " He went."]),
        ("Wait... what?! Oh", ["Wait...", " what?!", " Oh"]),
        ("at 10:30 on a.b.c", ["at 10:30 on a.b.c"]),
        ("你好。你在吗？好！一；二：三", ["你好。", "你在吗？", "好！", "一；", "二：", "三"]),
        ("他说「走。」他走了。", ["他说「走。」", "他走了。"]),
        ("Well… yes…no", ["Well…", " yes…", "no"]),
        ("A title\nA line. Next\n\nEnd", ["A title\n", "A line.", " Next\n\n", "End"]),
        ("Stop.\n\nGo", ["Stop.\n\n", "Go"]),
        ("\n\nStart", ["\n\nStart"]),
        ("no mark at all", ["no mark at all"]),
        ("one\u2028still one", ["one\u2028still one"]),
    ],
)
def test_sentences_end_as_a_reader_sees(text, sentences):
    assert split(text) == sentences


def test_a_newline_ends_a_sentence_with_byte_level_bpe(byte_bpe_folder):
    # The token of a newline reads "\u010a" there, so its string would say nothing.
    text = "A title\nthe river rose. Pi is 3.14 。the bank"
    encoded = open_tokenizer(byte_bpe_folder).encode_with_offsets([text])
    counts, _ = ends_in_tokens([text], encoded)
    assert [text[encoded.ends[c - 1] - 1] for c in counts] == ["\n", ".", "。", "k"]


def test_a_newline_that_is_no_token_ends_a_sentence(wordpiece_folder):
    text = "the river\nrose in night"
    encoded = open_tokenizer(wordpiece_folder).encode_with_offsets([text])
    assert ends_in_tokens([text], encoded)[0].tolist() == [2, 5]


def test_a_token_over_a_mark_belongs_before_it_and_one_over_a_newline_behind():
    #        tokens: "a.b"      " "       "\nc"
    text, starts, ends = 'x." \nc', np.array([0, 1, 4]), np.array([1, 4, 6])
    assert ends_in_tokens([text], one_text(starts, ends))[0].tolist() == [2, 3]


def one_text(starts, ends) -> EncodedTexts:
    return EncodedTexts(np.zeros(len(starts), np.int32), np.array([0, len(starts)]), starts, ends)


def test_no_tokens_have_no_sentences():
    none = np.zeros(0, np.int64)
    assert ends_in_tokens(["..."], one_text(none, none))[0].tolist() == []


def test_texts_together_have_the_sentences_of_each_alone(model_file):
    texts = ["the river.", "", "rose.\n\n", "in night", "a. b!\n", "\nthe old one"]
    tokenizer = open_tokenizer(model_file)
    together, counts = ends_in_tokens(texts, tokenizer.encode_with_offsets(texts))
    alone = [ends_in_tokens([t], tokenizer.encode_with_offsets([t]))[0].tolist() for t in texts]
    assert [p.tolist() for p in np.split(together, np.cumsum(counts)[:-1])] == alone
    assert counts.tolist() == [1, 0, 1, 1, 2, 1]


@given(st.text(alphabet='ab .?!:\n"。…)', max_size=60))
def test_every_character_is_a_token_and_ends_rise_to_the_last(text):
    starts = np.arange(len(text))
    counts, _ = ends_in_tokens([text], one_text(starts, starts + 1))
    if not text:
        assert not len(counts)
        return
    assert (np.diff(counts) > 0).all() and counts[0] >= 1 and counts[-1] == len(text)
    for stretch in np.split(np.array(list(text)), counts[:-1]):
        assert not re.search(r"[.?!:]\s+\S|\n\s*\S", "".join(stretch).strip())


@pytest.mark.parametrize("unit", [".", ".)", "!?", "\u3002", "\n", ")", ". "])
def test_marks_without_end_take_linear_time(unit):
    """A row of dots of a table of contents, 400,000 long: quadratic would be minutes."""
    start = time.process_time()
    sentence_ends(unit * (400_000 // len(unit)) + "a")
    assert time.process_time() - start < 10

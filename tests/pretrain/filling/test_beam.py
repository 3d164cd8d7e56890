"""Beam search over a vocabulary of three words, against all fillings and against a plain search."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from pretrain.evaluate.likelihood import score_blanks
from pretrain.filling.constraints import repeating_ids
from pretrain.filling.fill import fill
from pretrain.filling.sampling import FillSettings
from pretrain.models.backbone import Backbone
from pretrain.models.shape import BackboneShape

WORDS = "abc"
LONGEST = 4


class ThreeWords:
    """The vocabulary a, b, c."""

    vocab_size = len(WORDS) + len(SPECIALS)
    special = SpecialIds(**{name: len(WORDS) + number for number, name in enumerate(SPECIALS)})

    def encode(self, texts):
        return [np.array([WORDS.index(w) for w in text.split()], np.int32) for text in texts]

    def encode_continuation(self, text):
        return self.encode([text])[0]

    def pieces(self, ids):
        return [[*WORDS, *SPECIALS][i] for i in ids]

    def decode(self, ids):
        return " ".join(self.pieces(ids))


TOKENIZER = ThreeWords()


def random_backbone(seed: int) -> Backbone:
    shape = BackboneShape(
        num_layers=2, hidden_size=16, num_heads=2, init_std=0.4, dropout_prob=0.0,
        attention_dropout_prob=0.0,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    return Backbone(shape, vocab_size=128, num_positions=20, generator=generator).eval()


def log_probs_of_all(backbone, text):
    """Filling -> its log-probs (its end last), each read whole, as training reads it."""
    fillings = [
        " ".join(w) for n in range(1, LONGEST + 1) for w in itertools.product(WORDS, repeat=n)
    ]
    scored = score_blanks(backbone, TOKENIZER, [(text, [f]) for f in fillings])
    return {
        tuple(filling.split()): [math.log(t.prob) for t in score.tokens]
        + [math.log(score.end_prob)]
        for filling, (score,) in zip(fillings, scored)
    }


def ranked(log_probs, length_penalty, *, min_tokens=1, ngram=0):
    """Every filling that may be written, with what ranks it; the longest are cut, not ended."""
    ranks = {}
    for words, scores in log_probs.items():
        used = scores[:-1] if len(words) == LONGEST else scores
        grams = [words[i : i + ngram] for i in range(len(words) - ngram + 1)] if ngram else []
        if len(words) >= min_tokens and len(set(grams)) == len(grams):
            ended = len(words) < LONGEST
            ranks[words] = (ended, sum(used) / len(used) ** length_penalty)
    return ranks


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "rules",
    [
        {"length_penalty": 0.0},
        {"length_penalty": 0.7},
        {"length_penalty": 1.0},
        {"length_penalty": 3.0},
        {"length_penalty": 0.0, "min_tokens": 3},
        {"length_penalty": 0.0, "min_tokens": 4},
        {"length_penalty": 1.0, "no_repeat_ngram": 1},
        {"length_penalty": 2.0, "no_repeat_ngram": 2},
    ],
)
def test_with_beams_enough_the_best_of_all_fillings_is_found(seed, rules):
    backbone, text = random_backbone(seed), "a [MASK] b c"
    settings = FillSettings(strategy="beam", num_beams=81, max_tokens=LONGEST, **rules)
    (filled,) = fill(backbone, TOKENIZER, [text], settings)
    names = {"min_tokens": "min_tokens", "no_repeat_ngram": "ngram"}
    limits = {names[k]: v for k, v in rules.items() if k in names}
    ranks = ranked(log_probs_of_all(backbone, text), rules["length_penalty"], **limits)
    best = max(ranks, key=ranks.__getitem__)
    (blank,) = filled.blanks
    assert tuple(blank.text.split()) == best
    got = sum(blank.log_probs) / len(blank.log_probs) ** rules["length_penalty"]
    assert got == pytest.approx(ranks[best][1], abs=1e-5)
    assert blank.complete == (len(best) < LONGEST)


def plain_beam_search(log_probs, num_beams, length_penalty):
    """The same search over the table of all fillings, without early stopping."""
    beams, finished = [((), 0.0)], []
    while beams:
        candidates = []
        for words, total in beams:
            if words:
                candidates.append((total + log_probs[words][-1], words, True))
            for word in WORDS:
                longer = (*words, word)
                step = log_probs[longer][len(words)]
                candidates.append((total + step, longer, False))
        beams = []
        for total, words, ended in sorted(candidates, reverse=True)[: 2 * num_beams]:
            if len(beams) == num_beams:
                break
            if ended or len(words) == LONGEST:
                finished.append((ended, total / (len(words) + ended) ** length_penalty, words))
            else:
                beams.append((words, total))
    return max(finished)[2]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_beams", [1, 2, 3])
def test_few_beams_find_what_a_plain_search_finds(seed, num_beams):
    backbone, text = random_backbone(seed), "b [MASK] c"
    log_probs = log_probs_of_all(backbone, text)
    for length_penalty in (0.0, 0.7, 2.0):
        settings = FillSettings(
            strategy="beam", num_beams=num_beams, length_penalty=length_penalty, max_tokens=LONGEST
        )
        (filled,) = fill(backbone, TOKENIZER, [text], settings)
        expected = plain_beam_search(log_probs, num_beams, length_penalty)
        assert tuple(filled.blanks[0].text.split()) == expected


def test_a_trained_model_fills_what_is_missing(alphabet, words):
    settings = FillSettings(strategy="beam", max_tokens=8)
    texts = ["a b [MASK] d e [MASK] h i j", "r s t [gMASK]"]
    filled = fill(alphabet, words, texts, settings)
    assert [f.filled for f in filled] == ["a b c d e f g h i j", "r s t u v w x y z"]


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 4))
@settings(deadline=None)
def test_repeating_ids_are_those_that_write_an_ngram_twice(written, ngram):
    grams = {tuple(written[i : i + ngram]) for i in range(len(written) - ngram + 1)}
    expected = {
        new for new in range(4) if len(written) >= ngram - 1
        and tuple([*written, new][-ngram:]) in grams and len(written) >= ngram
    }  # fmt: skip
    assert set(repeating_ids(written, ngram)) == expected


def test_no_ngram_is_written_twice(untrained, words):
    settings = FillSettings(max_tokens=25, min_tokens=25, no_repeat_ngram=2)
    (filled,) = fill(untrained, words, ["a b [gMASK]"], settings)
    (blank,) = filled.blanks
    pairs = list(itertools.pairwise(blank.ids))
    assert len(blank.ids) == 25 and len(set(pairs)) == len(pairs)


def test_a_blank_ends_where_no_word_is_left():
    """Three words, each once at most: nothing can stand in the fourth place."""
    settings = FillSettings(max_tokens=9, min_tokens=9, no_repeat_ngram=1)
    (filled,) = fill(random_backbone(0), TOKENIZER, ["a [MASK] b"], settings)
    (blank,) = filled.blanks
    assert sorted(blank.text.split()) == ["a", "b", "c"] and blank.complete


def test_repetition_penalty_acts_on_the_words_of_the_blank(untrained, words):
    """A model that wants c, and d a little less; 2 / 1.5 < 1.5 < 2, and -1 x 1.5 < -1.2 < -1."""

    def asked(high, low):
        def scores(inputs):
            out = torch.full((len(inputs["ids"]), 128), -9.0)
            out[:, 2], out[:, 3] = high, low
            return out

        settings = FillSettings(max_tokens=2, repetition_penalty=1.5)
        (filled,) = fill(untrained, words, ["c [MASK] d"], settings, scores=scores)
        return filled.blanks[0].text

    assert asked(2.0, 1.5) == asked(-1.0, -1.2) == "c d"
    assert asked(2.0, 1.3) == asked(-1.0, -1.6) == "c c"

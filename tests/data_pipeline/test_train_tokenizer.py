"""A model is trained the same way each time, loses nothing, and errors say what would work."""

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.preparing.train_tokenizer import (
    TokenizerSettings,
    chunks,
    sampled,
    train_tokenizer,
)
from data_pipeline.tokenizing.special import SPECIALS
from data_pipeline.tokenizing.tokenizer import open_tokenizer


def train(corpus_file, path, vocab_size=350, **changes) -> bytes:
    settings = {"input": [str(corpus_file)], "output": str(path), "vocab_size": vocab_size}
    train_tokenizer(TokenizerSettings(**settings | changes))
    return path.read_bytes()


def test_the_same_corpus_gives_the_same_bytes(corpus_file, tmp_path):
    assert train(corpus_file, tmp_path / "a") == train(corpus_file, tmp_path / "b")


def test_specials_are_the_first_ids_in_order(corpus_file, tmp_path):
    train(corpus_file, tmp_path / "m", 350)
    tokenizer = open_tokenizer(tmp_path / "m")
    assert list(tokenizer.special.by_name().values()) == list(range(len(SPECIALS)))
    assert tokenizer.vocab_size == 350


def test_a_newline_is_one_piece(model_file):
    assert open_tokenizer(model_file).pieces(open_tokenizer(model_file).encode(["a\n\nb"])[0])[
        1:3
    ] == ["\\n", "\\n"]


def test_too_large_a_vocabulary_names_the_largest_that_works(corpus_file, tmp_path):
    with pytest.raises(ValueError, match=r"largest possible is (\d+)") as caught:
        train(corpus_file, tmp_path / "m", 5000)
    largest = int(re.search(r"largest possible is (\d+)", str(caught.value))[1])
    train(corpus_file, tmp_path / "m", largest)
    with pytest.raises(ValueError, match="largest possible"):
        train(corpus_file, tmp_path / "n", largest + 1)


def test_too_small_a_vocabulary_names_the_smallest_that_works(tmp_path):
    (tmp_path / "x.txt").write_text("".join(chr(0x4E00 + n) for n in range(500)) + "\n")
    with pytest.raises(ValueError, match=r"smallest possible is 7\d\d"):
        train(tmp_path / "x.txt", tmp_path / "m", 300, character_coverage=1.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vocab_size": 100}, "--vocab-size must be at least 269, got 100"),
        ({"character_coverage": 0.5}, r"--character-coverage must lie in \[0.98, 1\], got 0.5"),
    ],
)
def test_settings_outside_their_range_are_refused(corpus_file, tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        train(corpus_file, tmp_path / "m", **changes)


def test_an_empty_corpus_is_an_error(tmp_path):
    (tmp_path / "x.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="nothing to train on"):
        train(tmp_path / "x.txt", tmp_path / "m")


def test_a_model_that_exists_is_not_replaced(corpus_file, tmp_path):
    (tmp_path / "m").write_text("mine")
    with pytest.raises(ValueError, match=r"exists\. Choose another name"):
        train(corpus_file, tmp_path / "m")
    assert (tmp_path / "m").read_text() == "mine"


@given(st.text(alphabet="ab \n\u4f60", max_size=60), st.integers(1, 3))
def test_chunks_are_the_text_again(text, times):
    text = text * 200 * times
    pieces = list(chunks(text))
    assert all(len(p.encode()) <= 4096 for p in pieces)
    joined = "".join(pieces).replace(" ", "").replace("\n", "")
    assert joined == text.replace(" ", "").replace("\n", "")


def test_a_sample_stays_below_its_size_and_does_not_follow_the_order():
    texts = [f"text number {n}" for n in range(5000)]
    sample = sampled(texts, 10_000)
    assert 4_000 < sum(map(len, sample)) <= 10_000
    shuffled = random.Random(1).sample(texts, len(texts))
    assert set(sampled(shuffled, 10_000)) == set(sample)
    assert sampled(texts, 1 << 20) == texts


def test_a_line_of_millions_of_characters_is_cut_in_linear_time():
    import time

    start = time.process_time()
    pieces = list(chunks("d\u00e9j\u00e0 vu " * 1_000_000))
    assert time.process_time() - start < 5 and max(len(p.encode()) for p in pieces) <= 4096


def test_rows_that_cannot_be_used_are_left_out_where_asked(corpus_file, tmp_path):
    rows = [json.dumps({"text": line}) for line in corpus_file.read_text().splitlines()]
    (tmp_path / "x.jsonl").write_text("\n".join([*rows, "{", '{"text": null}']))
    with pytest.raises(ValueError, match=r"x\.jsonl:301: broken JSON"):
        train(tmp_path / "x.jsonl", tmp_path / "m")
    assert train(tmp_path / "x.jsonl", tmp_path / "m", on_error="skip") == train(
        corpus_file, tmp_path / "n"
    )
    with pytest.raises(ValueError, match="more than --max-skipped 1 "):
        train(tmp_path / "x.jsonl", tmp_path / "o", on_error="skip", max_skipped=1)

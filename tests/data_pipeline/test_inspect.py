"""`inspect` shows what training sees: the same draw, the same packed row, or one's own text."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline import inspect
from data_pipeline.packing.plan import PackingConfig, num_windows, plan_window
from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.preparing.train_tokenizer import TokenizerSettings, train_tokenizer
from data_pipeline.rows import KINDS
from data_pipeline.storage.shards import Shards, open_shards
from data_pipeline.transforms.blank import BlankConfig, BlankTransform


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Shards of 40 lines, the first of them long, by a tokenizer trained on them."""
    home = tmp_path_factory.mktemp("inspect")
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("aeioubdglmnprst"), 4)) for _ in range(60)]
    sentences = [" ".join(rng.choice(words, 8)) + "." for _ in range(20 + 39 * 3)]
    lines = [" ".join(sentences[:20])] + [" ".join(sentences[i : i + 3]) for i in range(20, 137, 3)]
    text, model = home / "text.txt", home / "tokenizer.model"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    train_tokenizer(TokenizerSettings(input=[str(text)], output=str(model), vocab_size=300))
    prepare(PrepareSettings(input=[str(text)], tokenizer=str(model), output=str(home / "shards")))
    return home / "shards"


@pytest.fixture(scope="module")
def shards(folder) -> Shards:
    return open_shards(folder)


def tokens_of(drawn: str) -> list[str]:
    """The token column of a picture, without the rule between parts A and B."""
    lines = [line.split() for line in drawn.splitlines()]
    return [line[1] for line in lines if len(line) > 4 and line[0].isdigit() and "of" not in line]


def test_a_document_is_drawn_as_training_draws_it(folder, shards):
    packing = PackingConfig(cut="long")
    transform = BlankTransform(
        BlankConfig(), shards.special, source_tokens=512, vocab_size=shards.vocab_size
    )
    plan = plan_window(shards.splits["train"], transform, packing, seed=7, epoch=2, window=0)
    numbers = plan.stretches.documents.number_N[plan.stretches.owner_N]
    of_five = plan.plan.take(np.flatnonzero(numbers == 5))
    rows = transform.build(
        shards.splits["train"].tokens(np.array([5]), np.array([0]), of_five.source_lengths_N - 2),
        of_five,
    )
    drawn = inspect.run(folder, document=5, seed=7, epoch=2)
    assert tokens_of(drawn) == shards.tokenizer().pieces(rows.ids)
    assert drawn != inspect.run(folder, document=5, seed=8, epoch=2)
    assert drawn != inspect.run(folder, document=5, seed=7, epoch=1)


def test_the_caption_counts_what_the_table_shows(folder):
    drawn = inspect.run(folder, document=5, kind="single", seed=3)
    caption, heading = drawn.splitlines()[:2]
    assert caption.startswith("document 5 | tokens [0, ")
    assert "| kind single | " in caption
    assert "| blanks 1 | " in caption
    assert "lost" not in caption
    assert heading.split()[:7] == ["i", "token", "target", "loss", "pos", "block", "sees"]
    assert f"| row {len(tokens_of(drawn))}" in caption
    assert f"| targets {drawn.count(' single ') - 1} |" in caption


@pytest.mark.parametrize("kind", KINDS[1:])
def test_every_text_can_be_blanked_in_one_way(folder, kind):
    drawn = inspect.run(folder, document=3, kind=kind)
    assert f"| kind {kind}" in drawn.splitlines()[0]
    mask = {"sentence": "[sMASK]", "document": "[gMASK]", "whole": "[gMASK]"}.get(kind, "[MASK]")
    assert mask in tokens_of(drawn)


def test_settings_of_blanks_reach_the_row(folder):
    blank = BlankConfig(token_prob=0, document_prob=1, direction="unidirectional")
    drawn = inspect.run(folder, document=3, blank=blank)
    assert "| kind document, suffix |" in drawn
    assert "| sep 3 |" in drawn


def test_a_long_document_is_shown_piece_by_piece(folder, shards):
    first = inspect.run(folder, document=0, source_tokens=64)
    second = inspect.run(folder, document=0, piece=1, source_tokens=64)
    length = shards.splits["train"].lengths(np.array([0]))[0]
    stop = int(first.split("[0, ")[1].split(")")[0])
    assert f"| tokens [0, {stop}) of {length} |" in first
    assert f"| tokens [{stop}, " in second
    with pytest.raises(ValueError, match="piece 99 does not exist, the document is cut into"):
        inspect.run(folder, document=0, piece=99, source_tokens=64)
    with pytest.raises(ValueError, match="piece -1 does not exist"):
        inspect.run(folder, document=0, piece=-1, source_tokens=64)


def test_a_packed_row_is_drawn_as_the_model_gets_it(folder, shards):
    packing = PackingConfig(source_tokens=64, row_tokens=144)
    transform = BlankTransform(
        BlankConfig(), shards.special, source_tokens=64, vocab_size=shards.vocab_size
    )
    split = shards.splits["train"]
    assert num_windows(split, packing) == 1
    plan = plan_window(split, transform, packing, seed=7, epoch=0, window=0)
    packed = plan.build(np.array([2]))
    drawn = inspect.run(folder, row=2, seed=7, source_tokens=64, row_tokens=144)
    inside = packed.document[0] >= 0
    assert tokens_of(drawn) == shards.tokenizer().pieces(packed.ids[0, inside])
    assert drawn.count("| kind token | ") == packed.document.max() + 1
    with pytest.raises(ValueError, match=f"row 9999 .* has {plan.num_rows} "):
        inspect.run(folder, row=9999, source_tokens=64, row_tokens=144, seed=7)
    with pytest.raises(ValueError, match="row -1 does not exist"):
        inspect.run(folder, row=-1, source_tokens=64, row_tokens=144, seed=7)


def test_a_text_of_ones_own_is_tokenized_with_the_folders_tokenizer(folder, shards):
    text = "the people have seen peace. the states are new."
    drawn = inspect.run(folder, text=text, kind="sentence")
    tokenizer = shards.tokenizer()
    ids = tokenizer.encode([text])[0]
    assert f"tokens [0, {len(ids)}) of {len(ids)} " in drawn
    assert "[sMASK]" in tokens_of(drawn)
    assert "| blanks 1 |" in drawn  # one of the two sentences


def test_what_does_not_exist_is_named(folder, tmp_path):
    with pytest.raises(ValueError, match="document 40 does not exist, the split has 40"):
        inspect.run(folder, document=40)
    with pytest.raises(ValueError, match="document -1 does not exist"):
        inspect.run(folder, document=-1)
    with pytest.raises(ValueError, match="split must be one of train, validation, got test"):
        inspect.run(folder, split="test")
    with pytest.raises(ValueError, match=r"kind must be one of token, .* got word"):
        inspect.run(folder, kind="word")
    with pytest.raises(ValueError, match="holds no token"):
        inspect.run(folder, text="")
    with pytest.raises(ValueError, match="no finished folder of shards"):
        inspect.run(tmp_path)


def test_lost_blanks_are_shown(folder):
    # 9 of 64 tokens are to be blanked, and the row has room for one blank
    drawn = inspect.run(folder, text="na " * 200, source_tokens=64, row_tokens=66, seed=2)
    numbers = dict(part.rsplit(" ", 1) for part in drawn.splitlines()[0].split(" | ")[2:])
    assert (numbers["n"], numbers["blanks"]) == ("64", "1")
    assert int(numbers["lost"]) >= 1
    assert numbers["row"] == "66"

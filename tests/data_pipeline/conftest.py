"""Small vocabularies of three kinds, made once, and a corpus to prepare."""

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import settings

from data_pipeline.preparing.train_tokenizer import TokenizerSettings, train_tokenizer

# Other processes may be busy on the machine: no example has a deadline.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

_TEXT = """
    the river rose in night and carried small bridge away by morning village had gathered on bank
    to look at gap a carpenter measured distance twice with length of rope he said that oak would
    last longer than pine nobody argued before winter new stood wider old one children ran across
    it until their mothers called them home
"""
WORDS = sorted(_TEXT.split())


def sentences(count: int) -> list[str]:
    """Sentences of common words, always the same."""
    rng = random.Random(5)
    return [
        " ".join(rng.choices(WORDS, k=rng.randint(3, 14))).capitalize() + rng.choice(".?!")
        for _ in range(count)
    ]


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory) -> Path:
    """300 documents, one a line, of one to three sentences."""
    rng = random.Random(7)
    lines = [" ".join(rng.sample(sentences(60), rng.randint(1, 3))) for _ in range(300)]
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def model_file(corpus_file, tmp_path_factory) -> Path:
    """A sentencepiece model of 370 pieces made by train-tokenizer."""
    path = tmp_path_factory.mktemp("model") / "tokenizer.model"
    train_tokenizer(TokenizerSettings(input=[str(corpus_file)], output=str(path), vocab_size=370))
    return path


@pytest.fixture(scope="session")
def byte_bpe_folder(corpus_file, tmp_path_factory) -> Path:
    """vocab.json and merges.txt in the layout of GPT-2, 300 pieces and <|endoftext|>."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train([str(corpus_file)], trainer)
    folder = tmp_path_factory.mktemp("byte_bpe")
    tokenizer.model.save(str(folder))
    return folder


@pytest.fixture(scope="session")
def wordpiece_folder(tmp_path_factory) -> Path:
    """vocab.txt in the layout of BERT: its five specials, letters, marks and the words above."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *".,?![]<>|"]
    pieces += ["##" + c for c in letters] + sorted(set(WORDS) - set(letters))
    folder = tmp_path_factory.mktemp("wordpiece")
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def write_jsonl(tmp_path):
    """Writes rows as JSON Lines and gives the path."""

    def write(rows: list[object], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def mixed_folder(tmp_path_factory) -> Path:
    """Files of five kinds, 90 kB, with lines that repeat inside files and between them."""
    rng = random.Random(11)

    def lines(count: int) -> list[str]:
        return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(count)]

    folder = tmp_path_factory.mktemp("mixed")
    common = lines(80)
    plain = [*lines(900), *common, *common]
    (folder / "a.txt").write_text("\r\n".join(rng.sample(plain, len(plain))))
    rows = [json.dumps({"text": text}) for text in [*lines(300), *common]]
    (folder / "b.jsonl").write_text("\n".join(rows))
    (folder / "c.txt").write_text("\n\n".join(common))
    (folder / "d.txt.gz").write_bytes(gzip.compress("\n".join(lines(300)).encode()))
    (folder / "e.csv").write_text("\n".join(["text", *lines(50)]))
    return folder

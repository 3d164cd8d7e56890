"""A few shards to train on, made once."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

SYLLABLES = ("ba", "ko", "ri", "tu", "sel", "mor", "an", "di", "fe", "lon")


def words(count: int, seed: int) -> str:
    """`count` invented words in sentences; frequent words are short, as in a language."""
    rng = random.Random(seed)
    said = []
    for number in range(count):
        word = "".join(rng.choices(SYLLABLES, k=rng.choice((1, 1, 2, 2, 3))))
        said.append(word + ("." if number % 9 == 8 else ""))
    return " ".join(said)


@pytest.fixture(scope="session")
def small_shards(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 documents of 200 words, prepared as a user would, in a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("some data")
    lines = [words(200, seed) for seed in range(40)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def data_pipeline(*arguments: str) -> None:
        command = [sys.executable, "-m", "data_pipeline", *arguments]
        subprocess.run(command, cwd=repository, check=True, capture_output=True)

    text, model, shards = (str(folder / n) for n in ("text.txt", "a.model", "shards"))
    data_pipeline("train-tokenizer", "--input", text, "--vocab-size", "330", "--output", model)
    data_pipeline(
        "prepare", "--input", text, "--tokenizer", model, "--validation", "0.1", "--output", shards
    )  # fmt: skip
    return Path(shards)

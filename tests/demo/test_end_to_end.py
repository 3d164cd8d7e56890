"""`python -m demo` from text to report in a clone, with a short training on invented text."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = 12
ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "st", "tr", "kl", "sh")
VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")


def invented_text(num_words: int, seed: int) -> str:
    """Sentences of words from a fixed vocabulary of 4,000, frequent ones first."""
    fixed = random.Random(0)
    vocabulary = [
        "".join(fixed.choice(ONSETS) + fixed.choice(VOWELS) for _ in range(fixed.randint(2, 4)))
        for _ in range(4000)
    ]
    rng = random.Random(seed)
    words = [vocabulary[int(4000 * rng.random() ** 3)] for _ in range(num_words)]
    return " ".join(w + ("." if n % 16 == 15 else "") for n, w in enumerate(words)) + "\n"


@pytest.fixture
def clone(repository: Path, tmp_path: Path) -> Path:
    """The rooms in a folder with a space in its name, the demo's text already there."""
    root = tmp_path / "a clone"
    for name in ("demo", "launch", "pretrain", "kernels", "data_pipeline"):
        shutil.copytree(
            repository / name, root / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(repository / "ds_config.json", root)
    texts = root / "runs/demo/corpus"
    texts.mkdir(parents=True)
    for number in range(40):
        (texts / f"{number:02d}.txt").write_text(invented_text(1500, number), encoding="utf-8")
    return root


def run_demo(clone: Path) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-m", "demo", "--steps", str(STEPS)],
        cwd=clone,
        env={**inherited, "CC": "false", "CXX": "false"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.ranks
def test_the_demo_reports_what_it_promised_and_then_skips_it(clone: Path) -> None:
    first = run_demo(clone)
    assert first.returncode == 0, first.stdout + first.stderr
    assert (clone / "runs/demo/tokenizer.model").is_file()
    report = json.loads((clone / "runs/demo/report.json").read_text())
    assert report["steps"] == STEPS
    assert 0 <= report["padding_share"] < 0.1
    assert report["tokens_per_s"] > 0
    for name in ("heldout_nats_per_blank_token", "heldout_nats_per_blank_token_without_end"):
        nats = report[name]
        assert nats["bigram"] < nats["unigram"] + 0.5
        assert 0 < nats["model"] < 8  # log of the vocabulary is 7.6
    assert len(report["filled"]) == 6
    assert all("[MASK]" in f["text"] and "[MASK]" not in f["filled"] for f in report["filled"])
    second = run_demo(clone)
    assert second.returncode == 0
    assert second.stderr.count("done before, skipped") == 5
    assert first.stdout.endswith(second.stdout)

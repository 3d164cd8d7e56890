"""What the demo measures of its latent space: only this file, and what it calls, needs torch."""

from pathlib import Path
from typing import Any

import torch

from demo.report import read_steps
from demo.vae_report import summary
from pretrain.evaluate.command import EvaluateSettings, evaluate_latent
from pretrain.latent.moves import analogy, between, decoded, encoded
from pretrain.latent.opened import open_latent
from pretrain.latent.texts import given_texts
from pretrain.latent.writing import WriteSettings
from pretrain.recording.run_folder import RunFolder

NUM_TEXTS = 2000  # held-out sentences; the ceiling of mutual information is the log of it
SAMPLES = 20  # draws of z a sentence, of the importance-weighted bound
NUM_POINTS = 6  # of the interpolation, its ends included


def measured_report(
    run: Path, corpus: str, ends: tuple[str, str], abc: tuple[str, str, str]
) -> dict[str, Any]:
    """The report of a run folder, on the held-out sentences of the shards it was trained on.

    ends: sentences between which is interpolated. abc: a is to b as c is to what is written.
    """
    found = evaluate_latent(EvaluateSettings(latent=str(run), max_texts=NUM_TEXTS, samples=SAMPLES))
    interpolation, written = shown_texts(run, ends, abc)
    names = dict(zip(("a", "b", "c"), abc, strict=True)) | {"written": written}
    return summary(found, interpolation, names, read_steps(RunFolder(run).metrics), corpus)


def shown_texts(
    run: Path, ends: tuple[str, str], abc: tuple[str, str, str]
) -> tuple[list[str], str]:
    """What stands between two sentences, and what the analogy gives; written greedily."""
    latent = open_latent(run)
    first, last, a, b, c = encoded(latent, given_texts(latent, [*ends, *abc], "demo")).mu
    z_NZ = torch.stack([*between(first, last, NUM_POINTS), analogy(a, b, c)])
    texts = decoded(latent, z_NZ, WriteSettings())
    shown = [text.text(latent.tokenizer) for text in texts]
    return shown[:-1], shown[-1]

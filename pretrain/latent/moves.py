"""Texts to vectors and back, and what one does with vectors in between.

mu = encoded(run, given_texts(run, ["A man eats."], "--text")).mu
decoded(run, mu, WriteSettings())[0]                   # the text again, if z holds it
between(mu[0], mu[1], 5)                               # (5, Z), its ends are the two
analogy(a, b, c)                                       # z_B - z_A + z_C
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pretrain.latent.opened import LatentRun
from pretrain.latent.texts import Texts
from pretrain.latent.writing import (
    CachedReader,
    Vocabulary,
    WriteSettings,
    Written,
    blank_sheet,
    check_length,
    generators_of,
    write,
)
from pretrain.models.latent import Posterior

logger = logging.getLogger(__name__)


@torch.no_grad()
def encoded(run: LatentRun, texts: Texts, *, batch_texts: int = 32) -> Posterior:
    """q(z | x) of every text in its order: mu, logvar (N, Z) in fp32 on the CPU."""
    rows = texts.rows(run.whole_transform())
    size = run.objective.config.latent.size
    mu, logvar = (torch.zeros(len(rows), size) for _ in range(2))
    for index in rows.in_batches(batch_texts):
        inputs: Mapping[str, Tensor] = run.objective.inputs(rows.batch(index))
        on_device = {name: values.to(run.device) for name, values in inputs.items()}
        found = run.objective.encode(run.model, on_device)
        mu[index], logvar[index] = (values[:, 0].float().cpu() for values in found)
    return Posterior(mu, logvar)


@torch.no_grad()
def decoded(run: LatentRun, z_NZ: Tensor, settings: WriteSettings) -> list[Written]:
    """A text from each vector. Raises ValueError for vectors of another size."""
    size = run.objective.config.latent.size
    if z_NZ.ndim != 2 or z_NZ.shape[1] != size:
        raise ValueError(
            f"vectors must have {size} numbers each, as those of {run.path}, got "
            f"{' x '.join(map(str, z_NZ.shape))}."
        )
    longest = min(settings.max_tokens, run.source_tokens - 2)
    if longest < settings.max_tokens:
        logger.info(
            "latent: texts are written up to %d tokens instead of --max_tokens %d: the model has "
            "learned no longer ones",
            longest,
            settings.max_tokens,
        )
    sheet = blank_sheet(run.whole_transform(), max_tokens=longest)
    if run.objective.backbone_calls:
        check_length(longest, sheet, run.model.backbone.num_positions)
    vocabulary = Vocabulary.of(run.tokenizer, run.vocab_size)
    written = []
    for first in range(0, len(z_NZ), settings.batch_texts):
        some_NZ = z_NZ[first : first + settings.batch_texts].to(run.device)
        numbers = range(first, first + len(some_NZ))
        decoder = run.objective.decoder(run.model, some_NZ[:, None])
        reader = CachedReader(decoder, run.device)
        streams = generators_of(settings.seed, numbers)
        written += write(sheet, reader, vocabulary, settings, streams)
    return written


def prior_draws(num: int, size: int, seed: int) -> Tensor:
    """z ~ N(0, I): (num, Z); the first ones do not depend on `num`."""
    streams = generators_of(seed, range(num), "vectors")
    return torch.stack([torch.randn(size, generator=stream) for stream in streams])


def between(first_Z: Tensor, last_Z: Tensor, steps: int) -> Tensor:
    """`steps` points of the straight line between two vectors, both ends exactly: (steps, Z)."""
    if steps < 2:
        raise ValueError(f"--steps must be at least 2, the two ends, got {steps}.")
    t_S1 = torch.linspace(0, 1, steps, dtype=torch.float64)[:, None]
    return ((1 - t_S1) * first_Z + t_S1 * last_Z).to(first_Z.dtype)


def analogy(a_Z: Tensor, b_Z: Tensor, c_Z: Tensor, degree: float = 1.0) -> Tensor:
    """What is to c as b is to a: c + degree (b - a), summed in float64."""
    a, b, c = (z.double() for z in (a_Z, b_Z, c_Z))
    return (c + degree * (b - a)).to(a_Z.dtype)


def vectors(values: Any, source: str) -> Tensor:
    """Vectors (N, Z) from what a JSON file holds: lists of numbers, or what `encode --json` prints.

    Raises ValueError, naming `source`, where it is something else.
    """
    rows: Any = values.get("texts") if isinstance(values, dict) else values
    try:
        lists = [row["z"] if isinstance(row, dict) else row for row in rows]
        found = torch.tensor(lists, dtype=torch.float32)
    except (TypeError, KeyError, ValueError, RuntimeError):
        found = torch.zeros(0)
    if found.ndim != 2 or not len(found) or not bool(found.isfinite().all()):
        raise ValueError(
            f"{source} holds no vectors. Give a JSON list of lists of finite numbers, all of one "
            "length, or what `latent encode --json` printed."
        )
    return found

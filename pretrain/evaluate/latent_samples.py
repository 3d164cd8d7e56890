"""What a latent space gives back while it is trained: held-out texts written again from their z,
texts from z ~ N(0, I), and where the held-out texts lie (TensorBoard's projector).

All ranks ask the engine the same questions, so that none waits for a forward pass that another one
does not make; rank 0 records.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_pipeline.protocols import Split
from data_pipeline.tokenizing.special import Vocabulary as Ids
from data_pipeline.tokenizing.tokenizer import Tokenizer
from pretrain.latent.moves import prior_draws
from pretrain.latent.rows import TextRows, whole_transform
from pretrain.latent.writing import (
    AnewReader,
    Vocabulary,
    WriteSettings,
    blank_sheet,
    generators_of,
    write,
)
from pretrain.objectives.latent import LatentObjective
from pretrain.objectives.loss import ObjectiveModel
from pretrain.training.setup import Setup

MAX_TOKENS = 40  # of a text that is written: each of them gathers all parameters
PROJECTED_TEXTS = 256
LABEL_CHARACTERS = 80


class Means:
    """Asks a sharded model for the posterior means of texts, in an objective's place: (B, Z)."""

    def __init__(self, objective: LatentObjective) -> None:
        self.objective = objective

    def loss_terms(self, model: ObjectiveModel, inputs: Mapping[str, Tensor]) -> Tensor:
        """mu of the one text of each row, in fp32."""
        return self.objective.encode(model, inputs).mu[:, 0].float()


class WriteOn:
    """Asks a sharded model for the next token of texts beside their z: (N, V)."""

    def __init__(self, objective: LatentObjective) -> None:
        self.objective = objective

    def loss_terms(self, model: ObjectiveModel, columns: Mapping[str, Tensor]) -> Tensor:
        """Scores behind the last column, read anew each time."""
        return self.objective.decoder(model, columns["z"][:, None]).next_scores(columns)


class LatentSamples(NamedTuple):
    """What is shown of a latent space at an evaluation."""

    reconstructions: str  # Markdown
    prior: str  # Markdown
    mu_NZ: Tensor  # of held-out texts, on the CPU
    labels: list[str]  # how each of them begins


@torch.no_grad()
def latent_samples(setup: Setup, objective: LatentObjective, split: Split) -> LatentSamples:
    """Of the first texts of `split`; a collective."""
    config, tokenizer = setup.config, setup.shards.tokenizer()
    source_tokens, special = config.data.packing.source_tokens, setup.shards.special
    transform = whole_transform(
        objective, Ids(special, setup.shards.vocab_size), source_tokens=source_tokens
    )
    rows = TextRows(
        split,
        transform,
        seed=config.seed,
        source_tokens=source_tokens,
        num_documents=max(PROJECTED_TEXTS, config.evaluation.latent_texts),
    )
    number = min(config.evaluation.latent_texts, len(rows))
    setup.engine.module.eval()
    mu_NZ = _means(setup, objective, rows)
    z_NZ = torch.cat((mu_NZ[:number], prior_draws(number, mu_NZ.shape[1], config.seed)))
    sheet = blank_sheet(transform, max_tokens=min(MAX_TOKENS, source_tokens - 2))
    vocabulary = Vocabulary.of(tokenizer, setup.vocab_size)
    reader = AnewReader(_scores(setup, objective), z_NZ)
    streams = generators_of(config.seed, range(2 * number))
    texts = write(sheet, reader, vocabulary, WriteSettings(), streams)
    written = [one.text(tokenizer) for one in texts]
    setup.engine.module.train()
    labels = _labels(rows, tokenizer)
    pairs = zip(labels[:number], written[:number], strict=True)
    return LatentSamples(
        "\n".join(f"- {text} → **{again}**" for text, again in pairs),
        "\n".join(f"- **{text}**" for text in written[number:]),
        mu_NZ,
        labels,
    )


def _means(setup: Setup, objective: LatentObjective, rows: TextRows) -> Tensor:
    """mu of every text, in the order of the rows, the same on every rank."""
    question = Means(objective)
    mu_NZ = torch.zeros(len(rows), objective.config.latent.size)
    for index in rows.in_batches(max(8, setup.config.batch.micro_rows)):
        inputs = objective.inputs(rows.batch(index))
        found = setup.engine.forward(question, _sent(setup, inputs))
        mu_NZ[index] = setup.world.broadcast_tensor(found.contiguous()).cpu()
    return mu_NZ


def _scores(setup: Setup, objective: LatentObjective) -> Any:
    """How AnewReader asks: every rank goes by rank 0's scores."""
    question = WriteOn(objective)

    def scores(columns: Mapping[str, Tensor]) -> Tensor:
        found = setup.engine.forward(question, _sent(setup, columns))
        return setup.world.broadcast_tensor(found.contiguous())

    return scores


def _sent(setup: Setup, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.to(setup.world.device) for name, values in tensors.items()}


def _labels(rows: TextRows, tokenizer: Tokenizer) -> list[str]:
    """How each text begins, in one line."""
    texts: Sequence[str] = [
        tokenizer.decode(np.asarray(rows.tokens(number))) for number in range(len(rows))
    ]
    lines = [" ".join(text.split()) for text in texts]
    return [
        line if len(line) <= LABEL_CHARACTERS else f"{line[:LABEL_CHARACTERS]} ..."
        for line in lines
    ]

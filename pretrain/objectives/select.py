"""Which objectives a run has, from its config: the one place that knows them all by name."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from data_pipeline.hashing import mix_ints
from data_pipeline.tokenizing.special import Vocabulary
from pretrain.models.shape import BackboneShape
from pretrain.objectives.adavae import AdaVae
from pretrain.objectives.causal import CausalObjective
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.glm_vae import GlmVae
from pretrain.objectives.latent import LatentModel, LatentObjective
from pretrain.objectives.loss import Objective
from pretrain.objectives.lstm_vae import LstmVae
from pretrain.objectives.optimus import Optimus
from pretrain.settings.objectives_config import ObjectivesConfig


def objectives_of(
    config: ObjectivesConfig,
    *,
    steps: int,
    encoder: Vocabulary | None = None,
    word_table_V: Tensor | None = None,
) -> list[Objective]:
    """The objectives of a run of `steps` updates, in the order in which every step takes them.

    encoder: of a second tokenizer, where an encoder has its own (two_tokenizers.py).
    word_table_V: ids that begin a word or end a text, by which losses are told by words, too.
    """
    models: list[LatentModel] = [
        GlmVae(config.glm_vae),
        Optimus(config.optimus, encoder),
        AdaVae(config.adavae),
        LstmVae(config.lstm_vae),
    ]
    latent = [LatentObjective(m, steps=steps, word_table_V=word_table_V) for m in models]
    objectives: list[Objective] = [
        GlmObjective(config.glm.blanks, weight=config.glm.weight),
        *latent[:3],
        CausalObjective(weight=config.causal.weight, word_table_V=word_table_V),
        *latent[3:],
    ]
    return [objective for objective in objectives if objective.weight > 0]


def parts_of(
    objectives: Sequence[Objective],
    shape: BackboneShape,
    *,
    vocab_size: int,
    source_tokens: int,
    seed: int,
) -> dict[str, nn.Module]:
    """What the objectives add to a backbone of `shape`, by their names, each drawn from a generator
    of its own: an objective more or less changes no other weight."""
    parts = {}
    for objective in objectives:
        own = mix_ints(seed, *objective.name.encode()) >> 1
        part = objective.part(
            shape,
            torch.Generator().manual_seed(own),
            vocab_size=vocab_size,
            source_tokens=source_tokens,
        )
        if part is not None:
            parts[objective.name] = part
    return parts

"""Which objectives a run has, from its config: the one place that knows them all by name."""

from collections.abc import Sequence

import torch
from torch import nn

from data_pipeline.hashing import mix_ints
from data_pipeline.tokenizing.special import Vocabulary
from pretrain.config import ObjectivesConfig
from pretrain.models.shape import BackboneShape
from pretrain.objectives.adavae import AdaVae
from pretrain.objectives.causal import CausalObjective
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.glm_vae import GlmVae
from pretrain.objectives.latent import LatentObjective
from pretrain.objectives.loss import Objective
from pretrain.objectives.lstm_vae import LstmVae
from pretrain.objectives.optimus import Optimus


def objectives_of(
    config: ObjectivesConfig, *, steps: int, encoder: Vocabulary | None = None
) -> list[Objective]:
    """The objectives of a run of `steps` updates, in the order in which every step takes them.

    encoder: of a second tokenizer, where an encoder has its own (pretrain/two_tokenizers.py).
    """
    objectives: list[Objective] = [
        GlmObjective(config.glm.blanks, weight=config.glm.weight),
        LatentObjective(GlmVae(config.glm_vae), steps=steps),
        LatentObjective(Optimus(config.optimus, encoder), steps=steps),
        LatentObjective(AdaVae(config.adavae), steps=steps),
        CausalObjective(weight=config.causal.weight),
        LatentObjective(LstmVae(config.lstm_vae), steps=steps),
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

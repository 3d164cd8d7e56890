"""A trained model as a run folder or an exported folder gives it back, without DeepSpeed."""

from pathlib import Path
from typing import NamedTuple

import torch

from data_pipeline.tokenizing.special import Vocabulary
from data_pipeline.tokenizing.tokenizer import Tokenizer
from data_pipeline.transforms.blank import BlankConfig
from pretrain.checkpoints.weights import WeightFiles, copy_into, difference, shapes_of
from pretrain.models.backbone import Backbone, lay_out_for_decoding, num_positions
from pretrain.models.shape import BackboneShape, padded_vocabulary
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.select import objectives_of, parts_of
from pretrain.settings.config import Config

TOKEN_TABLE = "backbone.embedding.token_table"


class TrainedRun(NamedTuple):
    """What a folder alone gives back."""

    backbone: Backbone
    tokenizer: Tokenizer
    blanks: BlankConfig  # how it was trained


def backbone_of(
    weights: WeightFiles, shape: BackboneShape, *, num_positions: int, source: Path
) -> Backbone:
    """The backbone of `shape` with these weights in fp32, ready to be used.

    It lies on the GPU where there is one, and never twice in memory. Raises ValueError, naming
    `source` and the weights that differ, where they are not exactly those of the shape.
    """
    model = empty_model(weights, shape, num_positions=num_positions, source=source)
    model.to_empty(device="cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        lay_out_for_decoding(model)
    copy_into(model, weights)
    return model.backbone.eval()


def whole_model(
    weights: WeightFiles, config: Config, tokenizer: Tokenizer, encoder: Tokenizer | None
) -> ObjectiveModel:
    """The model of a run with the parts of all its objectives, on the meta device.

    encoder: the second tokenizer, where the run has one. Rows of tables are those of `weights`.
    """
    vocabulary = None if encoder is None else Vocabulary(encoder.special, encoder.vocab_size)
    objectives = objectives_of(config.objectives, steps=config.steps, encoder=vocabulary)
    source_tokens = config.data.packing.source_tokens
    rows = (weights.shapes.get(TOKEN_TABLE) or (padded_vocabulary(tokenizer.vocab_size),))[0]
    with torch.device("meta"):
        backbone = None
        if any(o.backbone_calls for o in objectives):
            positions = num_positions(config.model, source_tokens)
            backbone = Backbone(config.model, vocab_size=rows, num_positions=positions)
        parts = parts_of(
            objectives, config.model, vocab_size=rows, source_tokens=source_tokens, seed=0
        )
        return ObjectiveModel(backbone, parts)


def empty_model(
    weights: WeightFiles, shape: BackboneShape, *, num_positions: int, source: Path
) -> ObjectiveModel:
    """The model of `shape` on the meta device, found to have the names and sizes of `weights`."""
    vocab_size = (weights.shapes.get(TOKEN_TABLE) or (1,))[0]
    with torch.device("meta"):
        model = ObjectiveModel(Backbone(shape, vocab_size=vocab_size, num_positions=num_positions))
    # What objectives add to the backbone (parts.NAME) is of no use to who reads the backbone alone.
    held = {n: shape for n, shape in weights.shapes.items() if not n.startswith("parts.")}
    error = difference(shapes_of(model), held)
    if error:
        raise ValueError(f"the weights of {source} are not those of its config: {error}.")
    return model

"""A trained model as a run folder or an exported folder gives it back, without DeepSpeed."""

from pathlib import Path
from typing import NamedTuple

import torch

from data_pipeline.tokenizing.tokenizer import Tokenizer
from data_pipeline.transforms.blank import BlankConfig
from pretrain.models.backbone import Backbone, lay_out_for_decoding
from pretrain.models.shape import BackboneShape
from pretrain.objectives.loss import ObjectiveModel
from pretrain.weights import WeightFiles, copy_into, difference, shapes_of

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

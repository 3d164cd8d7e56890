"""Exported models: one folder with everything that using a model takes, read without DeepSpeed.

    run = load(Path("handed-over"))
    fill(run.backbone, run.tokenizer, ["The [MASK] of war."], blanks=run.blanks)

    config.json                        shape, sizes, blanks, where it comes from; sizes and hashes
    model-00001-of-00002.safetensors   weights by our names (pretrain/models/backbone.py)
    model.safetensors.index.json       which file holds which weight
    recipe.yaml                        of the run, without the folders of its machine
    tokenizer/                         as in a run folder, and so encoder_tokenizer/ where it has it
    README.md                          a model card to be completed

Written by export.py. Files are untrusted: names stay inside the folder, sizes and hashes
are compared with config.json before a weight is read.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_pipeline.tokenizing.tokenizer import open_tokenizer
from data_pipeline.transforms.blank import BlankConfig
from pretrain.checkpoints.checkpoint_files import measure
from pretrain.checkpoints.weights import WeightFiles
from pretrain.handing_over.trained import TrainedRun, backbone_of
from pretrain.models.shape import BackboneShape

FORMAT = 1
CONFIG, INDEX, CARD, TOKENIZER, RECIPE, ENCODER_TOKENIZER = (
    "config.json",
    "model.safetensors.index.json",
    "README.md",
    "tokenizer",
    "recipe.yaml",
    "encoder_tokenizer",
)
WITHOUT_LATENT = ("glm", "causal")
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True, kw_only=True)
class ExportedConfig:
    """config.json: what the weights are, and what they must look like on disk."""

    format: int
    model: BackboneShape
    vocab_size: int  # rows of the token table
    num_positions: int  # rows of each position table
    blanks: BlankConfig  # how it was trained
    dtype: str  # of the stored weights: fp32 or bf16
    run: str  # name of the run
    step: int  # updates applied
    files: Mapping[str, Mapping[str, Any]]  # shard -> {"size_bytes": int, "xxh3": hex}
    objectives: tuple[str, ...] = ("glm",)  # what it has learned

    @property
    def has_latent(self) -> bool:
        """Whether texts have vectors in it (pretrain/latent)."""
        return not set(self.objectives) <= set(WITHOUT_LATENT)

    def to_json(self) -> str:
        """The text of config.json."""
        return json.dumps(asdict(self), indent=1) + "\n"


def is_exported(folder: Path) -> bool:
    """Whether a folder looks like one that `export` wrote."""
    return (folder / INDEX).is_file() and (folder / CONFIG).is_file()


def load(folder: Path) -> TrainedRun:
    """The model of an exported folder in fp32, on the GPU where there is one.

    Raises ValueError where the folder or a file of it is missing, damaged or of another format.
    """
    config, weights = read_config(folder), open_weights(folder)
    if "glm" not in config.objectives:
        raise ValueError(
            f"{folder} has learned {', '.join(config.objectives)}, and fills no blanks. Models of "
            "objectives.glm do; `python -m pretrain latent` is for those with a latent space."
        )
    backbone = backbone_of(weights, config.model, num_positions=config.num_positions, source=folder)
    return TrainedRun(backbone, open_tokenizer(folder / TOKENIZER), config.blanks)


def read_config(folder: Path) -> ExportedConfig:
    """config.json of an exported folder; ValueError naming what is wrong with it."""
    raw = _json(folder / CONFIG)
    if raw.get("format") != FORMAT:
        raise ValueError(
            f"{folder / CONFIG} has format {raw.get('format')!r}, this version reads {FORMAT}. "
            "Use the version that wrote it, or export the run again."
        )
    try:
        values: dict[str, Any] = raw | {
            "model": BackboneShape(**raw["model"]),
            "blanks": BlankConfig(**raw["blanks"]),
            "objectives": tuple(map(str, raw.get("objectives", ["glm"]))),
        }
        config = ExportedConfig(**values)
        well_formed = all(
            set(entry) == {"size_bytes", "xxh3"} and _SHARD.fullmatch(name)
            for name, entry in config.files.items()
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{folder / CONFIG} is no config of an exported model: {error}.") from None
    if not well_formed:
        raise ValueError(f"{folder / CONFIG} lists files that `export` does not write.")
    return config


def open_weights(folder: Path) -> WeightFiles:
    """The weights of an exported folder, after checking sizes and hashes; ValueError for damage."""
    config = read_config(folder)
    for name, entry in config.files.items():
        path = folder / name
        if not path.is_file() or measure(path) != entry:
            raise ValueError(f"{path} is missing or not what was exported. Export the run again.")
    weights = WeightFiles.open(folder / name for name in config.files)
    indexed = _json(folder / INDEX).get("weight_map")
    if not isinstance(indexed, dict) or set(indexed) != set(weights.shapes):
        raise ValueError(f"{folder / INDEX} names other weights than the files hold.")
    return weights


def _json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{path} holds no JSON object.")
    return raw

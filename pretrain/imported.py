"""Weights of BERT and GPT-2 that a run begins with, compared with the shapes of its recipe.

    weights = imported_weights(config, needed)     # our names -> tensors, some of the run's

Tables may have more rows than those that are read (marks behind the last id, longer texts): the
rows beyond stay as they were drawn.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from pretrain.config import Config
from pretrain.convert_transformers import Imported, read_folder
from pretrain.models.shape import BackboneShape

TABLES = ("embedding.token_table", "embedding.position_table")
# Of a shape, what may differ: it changes no weight that is read, or only the rows of a table.
_FREE = (
    *("dropout_prob", "attention_dropout_prob", "init_std", "max_positions"),
    *("lora_rank", "prefix_slots"),  # begin as they are drawn
)


class _Import(NamedTuple):
    """A folder that the recipe names, and what it is to be."""

    setting: str
    folder: str
    kind: str
    shape: BackboneShape
    prefix: str  # of our names


def _imports(config: Config) -> list[_Import]:
    optimus, adavae = config.objectives.optimus, config.objectives.adavae
    encoder = "parts.optimus.encoder"
    named = [
        (optimus, "encoder_from", optimus.encoder_from, "bert", optimus.encoder, encoder),
        (optimus, "decoder_from", optimus.decoder_from, "gpt2", config.model, "backbone"),
        (adavae, "backbone_from", adavae.backbone_from, "gpt2", config.model, "backbone"),
    ]
    names = {id(optimus): "optimus", id(adavae): "adavae"}
    return [
        _Import(f"objectives.{names[id(objective)]}.{setting}", folder, *rest)
        for objective, setting, folder, *rest in named
        if folder is not None and objective.weight > 0
    ]


def imported_folders(config: Config) -> list[str]:
    """The folders whose weights the recipe begins with."""
    return [one.folder for one in _imports(config)]


def imported_weights(config: Config, needed: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """What the folders that the recipe names give: our names -> tensors; empty without any.

    needed: names and sizes of the run's weights. Raises ValueError for a folder that cannot be
    read, or whose model is not the recipe's.
    """
    weights: dict[str, Tensor] = {}
    for one in _imports(config):
        imported = read_folder(Path(one.folder))
        where = f"{one.setting} {one.folder}"
        _check(where, imported, one.kind, one.shape)
        weights |= {f"{one.prefix}.{name}": tensor for name, tensor in imported.weights.items()}
        if one.kind == "bert" and config.objectives.optimus.latent.pooling == "cls":
            dense = "parts.optimus.head.pooler.dense"
            weights |= {f"{dense}.{name}": t for name, t in imported.pooler.items()}
        _check_sizes(where, weights, needed)
    return weights


def _check(where: str, imported: Imported, kind: str, shape: BackboneShape) -> None:
    if imported.kind != kind:
        raise ValueError(f"{where}: holds a model of type {imported.kind}, must be {kind}.")
    found, wanted = asdict(imported.shape), asdict(shape)
    found["mlp_size"], wanted["mlp_size"] = (s.feed_forward_size for s in (imported.shape, shape))
    other = [k for k in wanted if k not in _FREE and found[k] != wanted[k]]
    if other:
        differing = ", ".join(f"{k} {found[k]} instead of {wanted[k]}" for k in other)
        raise ValueError(f"{where}: its shape is not the recipe's: {differing}.")


def _check_sizes(
    where: str, weights: Mapping[str, Tensor], needed: Mapping[str, tuple[int, ...]]
) -> None:
    for name, tensor in weights.items():
        size, wanted = tuple(tensor.shape), needed[name]
        if name.endswith(TABLES) and size[1:] == wanted[1:] and size[0] <= wanted[0]:
            continue
        if size != wanted:
            raise ValueError(
                f"{where}: {name} is {size}, the run's is {wanted}. Vocabulary and positions of "
                "the shards and the recipe must reach at least as far as the model's."
            )

"""Weights of BERT and GPT-2 that a run begins with, compared with the shapes of its recipe.

    weights = imported_weights(config, needed, shards)     # our names -> tensors, some of the run's

Tables may have more rows than those that are read (marks behind the last id, longer texts): the
rows beyond stay as they were drawn. Ids must mean the same words to the model and in the shards: as
many of them, and where the folder holds a tokenizer, the same.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from data_pipeline.storage.shards import Shards
from data_pipeline.tokenizing.tokenizer import Tokenizer, open_tokenizer
from pretrain.handing_over.convert_transformers import Imported, read_folder
from pretrain.models.latent_shape import Pooling
from pretrain.models.shape import BackboneShape
from pretrain.settings.config import Config
from pretrain.settings.two_tokenizers import reads_two

logger = logging.getLogger(__name__)

TABLES = ("embedding.token_table", "embedding.position_table")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
_PROBE = "The 3 Bridges' café, re-opened!"  # capitals, accents, marks: what normalisers differ in
# Of a shape, what may differ: it changes no weight that is read, or only the rows of a table.
_ADDED = ("lora_", "prefix_")  # begin as they are drawn
_FREE = (
    *("dropout_prob", "attention_dropout_prob", "init_std", "max_positions"),
    *("lora_rank", "prefix_slots"),
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


def imported_weights(
    config: Config, needed: Mapping[str, tuple[int, ...]], shards: Shards
) -> dict[str, Tensor]:
    """What the folders that the recipe names give: our names -> tensors; empty without any.

    needed: names and sizes of the run's weights. shards: those whose ids it reads. Raises
    ValueError for a folder that cannot be read, or whose model or tokenizer is another one.
    """
    weights: dict[str, Tensor] = {}
    imports = _imports(config)
    _check_beginnings(imports)
    for one in imports:
        imported = read_folder(Path(one.folder))
        where = f"{one.setting} {one.folder}"
        _check(where, imported, one.kind, one.shape)
        of_encoder = one.kind == "bert" and reads_two(config.objectives)
        tokenizer = shards.encoder_tokenizer() if of_encoder else shards.tokenizer()
        _check_vocabulary(where, Path(one.folder), imported.vocab_size, tokenizer)
        weights |= {f"{one.prefix}.{name}": tensor for name, tensor in imported.weights.items()}
        if one.kind == "bert":
            weights |= _pooler(where, imported, config.objectives.optimus.latent.pooling)
        _check_sizes(where, weights, needed)
        _check_complete(where, one.prefix, weights, needed)
    return weights


def _pooler(where: str, imported: Imported, pooling: Pooling) -> dict[str, Tensor]:
    """BERT's pooler where the recipe has one of its kind; said where only one of them has."""
    if pooling != "cls":
        if imported.pooler:
            logger.info("%s: its pooler is of no use with latent.pooling: %s", where, pooling)
        return {}
    if not imported.pooler:
        logger.info("%s: holds no pooler, the run's begins as it is drawn", where)
    return {f"parts.optimus.head.pooler.dense.{name}": t for name, t in imported.pooler.items()}


def _check_beginnings(imports: Sequence[_Import]) -> None:
    """Raise ValueError where two folders are to begin the same weights."""
    settings: dict[str, str] = {}
    for one in imports:
        if one.prefix in settings:
            raise ValueError(
                f"{settings[one.prefix]} and {one.setting} both say what the backbone begins with. "
                "Leave out one of them."
            )
        settings[one.prefix] = one.setting


def _check(where: str, imported: Imported, kind: str, shape: BackboneShape) -> None:
    if imported.kind != kind:
        raise ValueError(f"{where}: holds a model of type {imported.kind}, must be {kind}.")
    found, wanted = asdict(imported.shape), asdict(shape)
    found["mlp_size"], wanted["mlp_size"] = (s.feed_forward_size for s in (imported.shape, shape))
    other = [k for k in wanted if k not in _FREE and found[k] != wanted[k]]
    if other:
        differing = ", ".join(f"{k} {found[k]} instead of {wanted[k]}" for k in other)
        raise ValueError(f"{where}: its shape is not the recipe's: {differing}.")


def _check_vocabulary(where: str, folder: Path, num_ids: int, tokenizer: Tokenizer) -> None:
    if num_ids < tokenizer.num_pieces:
        raise ValueError(
            f"{where}: the model has {num_ids} ids, and the tokenizer of the shards has "
            f"{tokenizer.num_pieces} pieces. Prepare the shards with the model's tokenizer."
        )
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return
    theirs = open_tokenizer(folder, tokenizer.aliases or None)
    ids = np.arange(min(theirs.num_pieces, tokenizer.num_pieces))
    pieces = [one.pieces(ids) for one in (theirs, tokenizer)]
    other = next((i for i, (a, b) in enumerate(zip(*pieces)) if a != b), None)
    if other is not None:
        found = f"id {other} is {pieces[0][other]!r} there and {pieces[1][other]!r} in the shards"
    elif theirs.encode([_PROBE])[0].tolist() != tokenizer.encode([_PROBE])[0].tolist():
        found = f"{_PROBE!r} is read as {theirs.pieces(theirs.encode([_PROBE])[0])} there"
    else:
        return
    raise ValueError(
        f"{where}: its tokenizer is not that of the shards: {found}. Prepare the shards with the "
        "tokenizer in that folder."
    )


def _check_complete(
    where: str, prefix: str, weights: Mapping[str, Tensor], needed: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise ValueError where the folder lacks a weight of the model that it says it holds."""
    of_model = [name for name in needed if name.startswith(f"{prefix}.")]
    missing = [
        name
        for name in of_model
        if name not in weights and not name.rpartition(".")[2].startswith(_ADDED)
    ]
    if missing:
        raise ValueError(
            f"{where}: lacks {len(missing)} of the model's weights, the first is {missing[0]}. Is "
            "one of its model*.safetensors files missing?"
        )


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

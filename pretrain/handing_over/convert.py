"""Weights between our names and published layouts. Everything is checked: no name is left over.

Published GLM (THUDM/GLM): the same shapes and the same order of rows (qkv = all q, all k, all v),
other names, and for the large models one file per model-parallel rank:

    weights = from_published_glm(merge_model_parallel(shards))
    backbone.load_state_dict(weights)      # strict
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# Ours -> published; {i} stands for the number of a layer.
_GLM_NAMES = {
    "embedding.token_table": "word_embeddings.weight",
    "embedding.position_table": "transformer.position_embeddings.weight",
    "embedding.block_table": "transformer.block_position_embeddings.weight",
    "layers.{i}.attention_norm.weight": "transformer.layers.{i}.input_layernorm.weight",
    "layers.{i}.attention_norm.bias": "transformer.layers.{i}.input_layernorm.bias",
    "layers.{i}.attention.qkv.weight": "transformer.layers.{i}.attention.query_key_value.weight",
    "layers.{i}.attention.qkv.bias": "transformer.layers.{i}.attention.query_key_value.bias",
    "layers.{i}.attention.output.weight": "transformer.layers.{i}.attention.dense.weight",
    "layers.{i}.attention.output.bias": "transformer.layers.{i}.attention.dense.bias",
    "layers.{i}.mlp_norm.weight": "transformer.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.mlp_norm.bias": "transformer.layers.{i}.post_attention_layernorm.bias",
    "layers.{i}.mlp.up.weight": "transformer.layers.{i}.mlp.dense_h_to_4h.weight",
    "layers.{i}.mlp.up.bias": "transformer.layers.{i}.mlp.dense_h_to_4h.bias",
    "layers.{i}.mlp.down.weight": "transformer.layers.{i}.mlp.dense_4h_to_h.weight",
    "layers.{i}.mlp.down.bias": "transformer.layers.{i}.mlp.dense_4h_to_h.bias",
    "final_norm.weight": "transformer.final_layernorm.weight",
    "final_norm.bias": "transformer.final_layernorm.bias",
}
_OURS = {published: ours for ours, published in _GLM_NAMES.items()}
# How a model-parallel rank holds a weight, by the end of its published name; others are replicated.
_SPLIT_IN_THREE = ("query_key_value.weight", "query_key_value.bias")
_SPLIT_ROWS = ("word_embeddings.weight", "dense_h_to_4h.weight", "dense_h_to_4h.bias")
_SPLIT_COLUMNS = ("attention.dense.weight", "dense_4h_to_h.weight")


def from_published_glm(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of a Backbone from published GLM weights; ValueError for a name that GLM lacks."""
    return {_renamed(name, _OURS): weight for name, weight in weights.items()}


def to_published_glm(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published GLM weights from the state dict of a pre-LN Backbone."""
    return {_renamed(name, _GLM_NAMES): weight for name, weight in weights.items()}


def merge_model_parallel(shards: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """One set of published weights from the shards of all model-parallel ranks, in rank order.

    Raises ValueError when the shards name different weights or a replicated weight differs.
    """
    names = shards[0].keys()
    for rank, shard in enumerate(shards):
        if shard.keys() != names:
            differing = ", ".join(sorted(shard.keys() ^ names))
            raise ValueError(
                f"model-parallel shard {rank} names other weights than shard 0: {differing}. "
                f"Give all shards of one checkpoint."
            )
    return {name: _merged(name, [shard[name] for shard in shards]) for name in names}


def split_model_parallel(weights: Mapping[str, Tensor], num_ranks: int) -> list[dict[str, Tensor]]:
    """Published weights as `num_ranks` model-parallel ranks hold them: the inverse of merging."""
    parts = {name: _split(name, weight, num_ranks) for name, weight in weights.items()}
    return [{name: part[rank] for name, part in parts.items()} for rank in range(num_ranks)]


def _renamed(name: str, table: Mapping[str, str]) -> str:
    layer = re.search(r"(?<=layers\.)\d+", name)
    number = layer.group() if layer else ""
    pattern = name.replace(f"layers.{number}.", "layers.{i}.", 1) if layer else name
    if pattern not in table:
        raise ValueError(
            f"no weight of a GLM is called {name!r}. "
            f"Known are: {', '.join(table)}. Was this checkpoint written by another model?"
        )
    return table[pattern].replace("{i}", number)


def _merged(name: str, parts: list[Tensor]) -> Tensor:
    if name.endswith(_SPLIT_IN_THREE):
        thirds = [part.chunk(3, dim=0) for part in parts]
        return torch.cat([third[which] for which in range(3) for third in thirds])
    if name.endswith(_SPLIT_ROWS):
        return torch.cat(parts)
    if name.endswith(_SPLIT_COLUMNS):
        return torch.cat(parts, dim=1)
    if any(not torch.equal(part, parts[0]) for part in parts[1:]):
        raise ValueError(
            f"{name} is held whole by every model-parallel rank, but the shards differ. "
            f"Give the shards of one checkpoint, all of the same step."
        )
    return parts[0]


def _split(name: str, weight: Tensor, num_ranks: int) -> list[Tensor]:
    dim = 1 if name.endswith(_SPLIT_COLUMNS) else 0
    if name.endswith(_SPLIT_IN_THREE):
        thirds = [_even_parts(name, third, num_ranks, dim) for third in weight.chunk(3, dim=0)]
        return [torch.cat([third[rank] for third in thirds]) for rank in range(num_ranks)]
    if name.endswith(_SPLIT_ROWS + _SPLIT_COLUMNS):
        return _even_parts(name, weight, num_ranks, dim)
    return [weight] * num_ranks


def _even_parts(name: str, weight: Tensor, num_ranks: int, dim: int) -> list[Tensor]:
    if weight.shape[dim] % num_ranks:
        raise ValueError(
            f"{name} has {weight.shape[dim]} rows or columns to deal to {num_ranks} model-parallel "
            f"ranks; the number of ranks must divide it."
        )
    return list(weight.chunk(num_ranks, dim=dim))

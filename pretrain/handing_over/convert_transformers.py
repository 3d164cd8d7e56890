"""BERT and GPT-2 as transformers saves them, in our names; no transformers needed.

    bert = read_folder(Path("bert-base-cased"))        # config.json and model.safetensors
    encoder = Backbone(bert.shape, vocab_size=bert.vocab_size, num_positions=bert.num_positions)
    encoder.load_state_dict(bert.weights)              # strict
    bert.pooler["weight"]                              # tanh(W h + b) of the first token; BERT's

Everything is checked: a weight that is not known is an error, unless it belongs to a head that is
named below. q, k and v are laid one under the other; GPT-2's matrices are transposed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretrain.checkpoints.weights import WeightFiles
from pretrain.models.shape import BackboneShape

# Theirs -> ours; {i} stands for the number of a layer.
_BERT = {
    "embeddings.word_embeddings.weight": "embedding.token_table",
    "embeddings.position_embeddings.weight": "embedding.position_table",
    "embeddings.token_type_embeddings.weight": "embedding.type_table",
    "embeddings.LayerNorm.{p}": "embedding.norm_{p}",
    "encoder.layer.{i}.attention.output.dense.{p}": "layers.{i}.attention.output.{p}",
    "encoder.layer.{i}.attention.output.LayerNorm.{p}": "layers.{i}.attention_norm.{p}",
    "encoder.layer.{i}.intermediate.dense.{p}": "layers.{i}.mlp.up.{p}",
    "encoder.layer.{i}.output.dense.{p}": "layers.{i}.mlp.down.{p}",
    "encoder.layer.{i}.output.LayerNorm.{p}": "layers.{i}.mlp_norm.{p}",
    "pooler.dense.{p}": "pooler.{p}",
}
_GPT2 = {
    "wte.weight": "embedding.token_table",
    "wpe.weight": "embedding.position_table",
    "h.{i}.ln_1.{p}": "layers.{i}.attention_norm.{p}",
    "h.{i}.attn.c_attn.{p}": "layers.{i}.attention.qkv.{p}",
    "h.{i}.attn.c_proj.{p}": "layers.{i}.attention.output.{p}",
    "h.{i}.ln_2.{p}": "layers.{i}.mlp_norm.{p}",
    "h.{i}.mlp.c_fc.{p}": "layers.{i}.mlp.up.{p}",
    "h.{i}.mlp.c_proj.{p}": "layers.{i}.mlp.down.{p}",
    "ln_f.{p}": "final_norm.{p}",
}
# What a checkpoint may hold beside the model: buffers, and heads that our models do not have.
_LEFT_OUT = (
    r"embeddings\.position_ids",
    r"h\.\d+\.attn\.(bias|masked_bias)",
    r"lm_head\.weight",  # the token table again, which read_folder compares
    r"cls\..*",  # BERT's heads of masked words and next sentences
)
_THIRDS = ("query", "key", "value")


@dataclass(frozen=True)
class Imported:
    """A model read from a transformers folder."""

    kind: str  # bert or gpt2
    shape: BackboneShape
    vocab_size: int
    num_positions: int
    weights: dict[str, Tensor]  # state dict of a Backbone
    pooler: dict[str, Tensor]  # weight and bias of BERT's pooler; empty without


def from_bert(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of a Backbone, and pooler.weight and pooler.bias, from those of a BertModel.

    Raises ValueError for a name that BERT lacks, or a third of q, k and v that is missing.
    """
    renamed, thirds = {}, {}
    for name, weight in _own(weights, "bert.").items():
        third = re.fullmatch(r"encoder\.layer\.(\d+)\.attention\.self\.(\w+)\.(weight|bias)", name)
        if third and third[2] in _THIRDS:
            thirds.setdefault(f"layers.{third[1]}.attention.qkv.{third[3]}", {})[third[2]] = weight
        else:
            renamed[_renamed(name, _BERT, "BERT")] = weight
    for name, parts in thirds.items():
        if missing := set(_THIRDS) - parts.keys():
            raise ValueError(f"the weights of BERT lack {', '.join(sorted(missing))} for {name}.")
        renamed[name] = torch.cat([parts[third] for third in _THIRDS])
    return renamed


def from_gpt2(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of a Backbone from those of a GPT2Model or GPT2LMHeadModel.

    Raises ValueError for a name that GPT-2 lacks.
    """
    renamed = {}
    for name, weight in _own(weights, "transformer.").items():
        is_matrix = re.search(r"\.c_\w+\.weight$", name)  # Conv1D: (inputs, outputs)
        renamed[_renamed(name, _GPT2, "GPT-2")] = weight.t().contiguous() if is_matrix else weight
    return renamed


def read_folder(folder: Path) -> Imported:
    """The model of a transformers folder, with the shape that its config.json says.

    Raises ValueError where files are missing, the model is neither BERT nor GPT-2, or its config
    asks for something that our backbone does not compute.
    """
    config = _config(folder)
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ValueError(
            f"{folder} holds no model.safetensors. Pickled weights (.bin) are not read: save the "
            "model anew with transformers, save_pretrained(folder)."
        )
    stored = WeightFiles.open(files)
    weights = {name: stored.tensor(name).float() for name in stored.shapes}
    kind = config.get("model_type")
    if kind not in ("bert", "gpt2"):
        raise ValueError(f"{folder} holds a model of type {kind!r}; bert and gpt2 can be read.")
    try:
        shape = (_bert_shape if kind == "bert" else _gpt2_shape)(config, folder)
    except KeyError as error:
        raise ValueError(f"{folder / 'config.json'} does not say {error}.") from error
    renamed = (from_bert if kind == "bert" else from_gpt2)(weights)
    for name in ("embedding.token_table", "embedding.position_table"):
        if name not in renamed:
            raise ValueError(f"{folder} holds no weights of its {name}.")
    output = weights.get("lm_head.weight")
    if output is not None and not torch.equal(output, renamed["embedding.token_table"]):
        raise ValueError(
            f"{folder}: lm_head.weight is not the token table (tie_word_embeddings: false). Our "
            "backbone reads words off the token table."
        )
    pooler = {n.removeprefix("pooler."): w for n, w in renamed.items() if n.startswith("pooler.")}
    backbone = {name: w for name, w in renamed.items() if not name.startswith("pooler.")}
    ids, positions = (len(backbone[f"embedding.{t}_table"]) for t in ("token", "position"))
    return Imported(kind, shape, ids, positions, backbone, pooler)


def _bert_shape(config: Mapping[str, Any], folder: Path) -> BackboneShape:
    _check(config, folder, "position_embedding_type", ("absolute", None))
    return BackboneShape(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        num_heads=config["num_attention_heads"],
        mlp_size=_own_size(config["intermediate_size"], config["hidden_size"]),
        norm_order="post",
        gelu=_gelu(config, folder, "hidden_act"),
        norm_eps=config.get("layer_norm_eps", 1e-12),
        token_types=config.get("type_vocab_size", 2),
        embedding_norm=True,
        block_positions=False,
        dropout_prob=config.get("hidden_dropout_prob", 0.1),
        attention_dropout_prob=config.get("attention_probs_dropout_prob", 0.1),
        max_positions=config["max_position_embeddings"],
    )


def _gpt2_shape(config: Mapping[str, Any], folder: Path) -> BackboneShape:
    _check(config, folder, "scale_attn_by_inverse_layer_idx", (False, None))
    _check(config, folder, "scale_attn_weights", (True, None))
    return BackboneShape(
        num_layers=config["n_layer"],
        hidden_size=config["n_embd"],
        num_heads=config["n_head"],
        mlp_size=_own_size(config.get("n_inner"), config["n_embd"]),
        gelu=_gelu(config, folder, "activation_function"),
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        block_positions=False,
        dropout_prob=config.get("resid_pdrop", 0.1),
        attention_dropout_prob=config.get("attn_pdrop", 0.1),
        max_positions=config["n_positions"],
    )


def _own_size(inner: int | None, width: int) -> int | None:
    return None if inner in (None, 4 * width) else inner


def _gelu(config: Mapping[str, Any], folder: Path, name: str) -> Any:
    _check(config, folder, name, ("gelu", "gelu_new", "gelu_pytorch_tanh"))
    return "erf" if config[name] == "gelu" else "tanh"


def _check(config: Mapping[str, Any], folder: Path, name: str, allowed: tuple[Any, ...]) -> None:
    if config.get(name) not in allowed:
        choices = ", ".join(str(choice) for choice in allowed if choice is not None)
        raise ValueError(
            f"{folder / 'config.json'}: {name} is {config.get(name)!r}, which our backbone does "
            f"not compute; it can be {choices}."
        )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}. Give a transformers folder.") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object.")
    return config


def _own(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Without the prefix that a model with a head has, and without what is left out."""
    named = {name.removeprefix(prefix): weight for name, weight in weights.items()}
    return {n: w for n, w in named.items() if not any(re.fullmatch(p, n) for p in _LEFT_OUT)}


def _renamed(name: str, table: Mapping[str, str], model: str) -> str:
    layer = re.search(r"(?<=\.)\d+(?=\.)", name)
    number = layer.group() if layer else ""
    pattern = name.replace(f".{number}.", ".{i}.", 1) if layer else name
    stem, _, last = pattern.rpartition(".")
    for key, value in ((pattern, ""), (f"{stem}.{{p}}", last)):
        if key in table:
            return table[key].replace("{i}", number).replace("{p}", value)
    raise ValueError(
        f"no weight of {model} is called {name!r}. Was this checkpoint written by another model?"
    )

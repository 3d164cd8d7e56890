"""A run of Optimus begins with BERT and GPT-2 as transformers has saved them."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch

from pretrain.checkpoints.weights import shapes_of
from pretrain.handing_over.convert_transformers import read_folder
from pretrain.handing_over.imported import imported_weights
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.select import objectives_of, parts_of
from pretrain.settings.cli import parse_train
from pretrain.settings.config import Config
from pretrain.training.setup import make_backbone

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
# The folders hold no tokenizer to compare with; test_two_tokenizers.py has some that do.
SHARDS: Any = SimpleNamespace(tokenizer=lambda: SimpleNamespace(num_pieces=99))
ENCODER = (
    "{num_layers: 2, hidden_size: 16, num_heads: 2, mlp_size: 24, norm_order: post, gelu: erf, "
    "norm_eps: 1e-12, token_types: 2, embedding_norm: true, block_positions: false}"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A BERT of 99 and a GPT-2 of 120 ids."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    bert = BertConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=60,
    )  # fmt: skip
    BertModel(bert).save_pretrained(folder / "bert")
    gpt2 = GPT2Config(vocab_size=120, n_embd=32, n_layer=2, n_head=2, n_positions=70)
    GPT2Model(gpt2).save_pretrained(folder / "gpt2")
    return folder / "bert", folder / "gpt2"


def config_of(encoder: Path, decoder: Path, *flags: str) -> Config:
    argv = [
        *("--config", DEBUG, "--objectives.glm.weight=0", "--objectives.optimus.weight=1"),
        *("--model.block_positions=false", "--model.max_positions=72"),
        f"--objectives.optimus.encoder={ENCODER}",
        f"--objectives.optimus.encoder_from={encoder}",
        f"--objectives.optimus.decoder_from={decoder}",
        *flags,
    ]
    return parse_train(argv)[0]


def needed_by(config: Config) -> dict[str, tuple[int, ...]]:
    objectives = objectives_of(config.objectives, steps=1)
    parts = parts_of(objectives, config.model, vocab_size=128, source_tokens=64, seed=1)
    return shapes_of(ObjectiveModel(make_backbone(config, 128), parts))


def test_both_halves_and_the_pooler_are_read(folders: tuple[Path, Path]) -> None:
    config = config_of(*folders)
    needed = needed_by(config)
    weights = imported_weights(config, needed, SHARDS)
    drawn = sorted(needed.keys() - weights.keys())
    assert drawn == [
        "parts.optimus.head.posterior.weight",
        "parts.optimus.injector.embedding.weight",
        "parts.optimus.injector.memory.weight",
    ]
    bert, gpt2 = (read_folder(folder) for folder in folders)
    assert torch.equal(weights["parts.optimus.head.pooler.dense.bias"], bert.pooler["bias"])
    assert weights["backbone.embedding.token_table"].shape == (120, 32)
    assert torch.equal(weights["backbone.final_norm.weight"], gpt2.weights["final_norm.weight"])


def test_another_shape_is_named(folders: tuple[Path, Path]) -> None:
    bert, gpt2 = folders
    for config, said in (
        (config_of(gpt2, gpt2), "encoder_from .*: holds a model of type gpt2, must be bert"),
        (config_of(bert, gpt2, "--model.num_heads=4"), "decoder_from .*: num_heads 2 instead of 4"),
        (config_of(bert, gpt2, "--model.max_positions=66"), r"position_table is \(70, 32\)"),
    ):
        with pytest.raises(ValueError, match=said):
            imported_weights(config, needed_by(config), SHARDS)


def test_a_folder_that_lacks_weights_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """As one of which a file of two was not copied: nothing begins as drawn unsaid."""
    for number, (folder, dropped, named) in enumerate(
        (
            (folders[0], "encoder.layer.1.output.dense.bias", "layers.1.mlp.down.bias"),
            (folders[1], "h.0.ln_2.weight", "backbone.layers.0.mlp_norm.weight"),
        )
    ):
        half = tmp_path / folder.name
        shutil.copytree(folder, half)
        path = half / "model.safetensors"
        weights = safetensors.torch.load_file(path)
        del weights[dropped]
        safetensors.torch.save_file(weights, path)
        bert, gpt2 = (half if n == number else f for n, f in enumerate(folders))
        config = config_of(bert, gpt2)
        with pytest.raises(ValueError, match=rf"lacks 1 of the model's weights.*{named}"):
            imported_weights(config, needed_by(config), SHARDS)


def test_a_missing_pooler_is_said(
    folders: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bert = tmp_path / "bert"
    shutil.copytree(folders[0], bert)
    weights = safetensors.torch.load_file(bert / "model.safetensors")
    kept = {name: w for name, w in weights.items() if not name.startswith("pooler.")}
    safetensors.torch.save_file(kept, bert / "model.safetensors")
    config = config_of(bert, folders[1])
    with caplog.at_level("INFO"):
        read = imported_weights(config, needed_by(config), SHARDS)
    assert "holds no pooler" in caplog.text
    assert not any(".pooler." in name for name in read)


def test_a_backbone_begins_once(folders: tuple[Path, Path]) -> None:
    _, gpt2 = folders
    adavae = ("--objectives.adavae.weight=1", "--objectives.adavae.encoder_layers=1")
    config = config_of(*folders, *adavae, f"--objectives.adavae.backbone_from={gpt2}")
    with pytest.raises(ValueError, match=r"optimus.decoder_from and .*adavae.backbone_from both"):
        imported_weights(config, needed_by(config), SHARDS)


def test_without_the_objective_nothing_is_read(folders: tuple[Path, Path]) -> None:
    config = config_of(*folders, "--objectives.glm.weight=1", "--objectives.optimus.weight=0")
    assert imported_weights(config, {}, SHARDS) == {}

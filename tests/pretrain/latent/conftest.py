"""Run folders of small models with a latent space, as training leaves them, without training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.preparing.train_tokenizer import TokenizerSettings, train_tokenizer
from data_pipeline.storage.shards import open_shards
from pretrain.checkpoints.checkpoint_files import (
    FORMAT,
    MANIFEST,
    WEIGHTS,
    Manifest,
    folder_name,
    measure,
)
from pretrain.models.backbone import Backbone, num_positions
from pretrain.models.shape import padded_vocabulary
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.select import objectives_of, parts_of
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import parse_train
from pretrain.settings.two_tokenizers import encoder_vocabulary

DEBUG = str(Path(__file__).parents[3] / "launch" / "recipes" / "debug.yaml")
SMALL = "num_layers: 2, hidden_size: 32, num_heads: 2, dropout_prob: 0.0"
OPTIMUS = [
    "--model.block_positions=false",
    "--model.max_positions=80",
    "--objectives.glm.weight=0",
    "--objectives.optimus.weight=1",
    f"--objectives.optimus.encoder={{{SMALL}}}",
    "--objectives.optimus.latent={size: 6, pooling: cls, injection: both}",
    "--objectives.optimus.denoise_ratio=0.3",
]
MODELS: dict[str, list[str]] = {
    "glm": [],
    "optimus": OPTIMUS,
    "optimus_two": [*OPTIMUS, "--objectives.optimus.tokenizers=two", "--data.packing.cut=long"],
    "adavae": [
        "--model.block_positions=false",
        "--objectives.glm.weight=0",
        "--objectives.adavae.weight=1",
        "--objectives.adavae.encoder_layers=1",
        "--objectives.adavae.adapter_size=4",
        "--objectives.adavae.latent_size=6",
    ],
    "glm_vae": [
        "--objectives.glm_vae.weight=1",
        "--objectives.glm_vae.latent={size: 6, injection: both}",
        "--objectives.glm_vae.blanks={token_prob: 0.5, document_prob: 0.5, whole_prob: 0.3}",
    ],
    "glm_vae_prefix": [
        "--objectives.glm_vae.weight=1",
        "--objectives.glm_vae.latent={size: 6, injection: memory, slots: 2}",
        "--trains=prefix",
        "--model.prefix_slots=3",
    ],
    "lstm_vae": [
        "--objectives.glm.weight=0",
        "--objectives.lstm_vae.weight=1",
        "--objectives.lstm_vae.embedding_size=16",
        "--objectives.lstm_vae.hidden_size=24",
        "--objectives.lstm_vae.latent_size=6",
    ],
}


def write_run(name: str, flags: list[str], shards: Path, folder: Path, step: int = 7) -> None:
    """A run folder with one checkpoint, whose weights are drawn so wide that z matters."""
    common = [f"--data.shards={shards}", f"--name={name}", "--model.dropout_prob=0"]
    config, _ = parse_train(["--config", DEBUG, *common, *flags])
    run = RunFolder(folder)
    run.path.mkdir()
    run.describe(config, {})
    data = open_shards(shards)
    data.tokenizer().save(run.tokenizer)
    encoder = encoder_vocabulary(config.objectives, data)
    if encoder is not None:
        data.encoder_tokenizer().save(run.encoder_tokenizer)
    objectives = objectives_of(config.objectives, steps=config.steps, encoder=encoder)
    tokens, rows = config.data.packing.source_tokens, padded_vocabulary(data.vocab_size)
    backbone = None
    if any(o.backbone_calls for o in objectives):
        positions = num_positions(config.model, tokens)
        backbone = Backbone(config.model, vocab_size=rows, num_positions=positions)
    parts = parts_of(objectives, config.model, vocab_size=rows, source_tokens=tokens, seed=1)
    model = ObjectiveModel(backbone, parts)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.dim() > 1 else parameter.add_(0.02)
    saved = run.checkpoints / folder_name(step)
    saved.mkdir(parents=True)
    safetensors.torch.save_file(model.state_dict(), saved / WEIGHTS)
    files: dict[str, Any] = {WEIGHTS: measure(saved / WEIGHTS)}
    (saved / MANIFEST).write_text(Manifest(FORMAT, step, 1, {}, {}, files).text())


@pytest.fixture(scope="session")
def two_streams(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Path:
    """Shards of short texts under two tokenizers, the second of a smaller vocabulary."""
    folder = tmp_path_factory.mktemp("two")
    text, encoder = folder / "text.txt", folder / "encoder.model"
    lines = (shards.parent / "text.txt").read_text(encoding="utf-8").splitlines()
    text.write_text("\n".join(line.split(".")[0] + "." for line in lines), encoding="utf-8")
    train_tokenizer(TokenizerSettings(input=[str(text)], output=str(encoder), vocab_size=296))
    prepare(
        PrepareSettings(
            input=[str(text)],
            tokenizer=str(shards.parent / "tokenizer.model"),
            encoder_tokenizer=str(encoder),
            output=str(folder / "shards"),
            validation=0.1,
        )
    )
    return folder / "shards"


@pytest.fixture(scope="session")
def run_of(
    tmp_path_factory: pytest.TempPathFactory, shards: Path, request: pytest.FixtureRequest
) -> Callable[[str], Path]:
    """Gives the run folder of a model of MODELS."""
    root = tmp_path_factory.mktemp("runs")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            own = request.getfixturevalue("two_streams") if name == "optimus_two" else shards
            write_run(name, MODELS[name], own, root / name)
        return root / name

    return folder


@pytest.fixture(scope="session")
def model_flags() -> dict[str, list[str]]:
    """What tells each model from the debug recipe."""
    return MODELS


@pytest.fixture(scope="session")
def debug_recipe() -> str:
    """Path of the smallest recipe."""
    return DEBUG

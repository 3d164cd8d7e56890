"""A run handed over: `python -m pretrain export RUN --output FOLDER`.

Weights go from the checkpoint into shards tensor by tensor; what lies in memory is one shard at
most, and without --dtype not even that, since files are mapped. A checkpoint of any number of ranks
will do: it holds the weights whole. The folder is written as FOLDER.partial and becomes visible by
one rename. What it holds and how it is read: exported.py.
"""

import argparse
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
import torch

from data_pipeline.tokenizing.tokenizer import open_tokenizer
from pretrain.checkpoints.checkpoint_files import checked_weights, choose, measure, read_manifest
from pretrain.checkpoints.weights import WeightFiles, difference, shapes_of
from pretrain.handing_over import exported
from pretrain.handing_over.exported import ExportedConfig
from pretrain.handing_over.model_card import model_card, public_recipe
from pretrain.handing_over.trained import TOKEN_TABLE, whole_model
from pretrain.models.backbone import num_positions
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import config_from_yaml
from pretrain.settings.two_tokenizers import reads_two

logger = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MAX_SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """How a run is exported."""

    max_shard_bytes: int = MAX_SHARD_BYTES
    """Most bytes of weights in a file; a larger tensor has a file of its own."""
    dtype: str | None = None
    """fp32 or bf16; None leaves the weights as the checkpoint holds them."""

    def __post_init__(self) -> None:
        if self.max_shard_bytes < 1:
            raise ValueError(f"max_shard_bytes must be at least 1, got {self.max_shard_bytes}.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}.")


def export(
    run: Path, output: Path, settings: ExportSettings | None = None, *, step: int | None = None
) -> None:
    """Write the model of a run after `step` updates (None: the newest checkpoint) into `output`.

    Raises ValueError where `output` exists, or the run is missing, damaged or of another config.
    """
    if not run.is_dir():
        raise ValueError(f"{run}: no such run folder. Name one that `train` wrote, as runs/demo.")
    if output.exists() or output.is_symlink():
        raise ValueError(f"--output {output} exists already. Choose another folder, or remove it.")
    partial = output.with_name(f"{output.name}.partial")
    if partial.exists():
        logger.info("export: removing %s, left by an export that was cut off", partial)
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        num_files = _write(RunFolder(run), choose(run, step), partial, settings or ExportSettings())
        os.rename(partial, output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    logger.info("exported %s to %s: %d files of weights", run, output, num_files)


def _write(run: RunFolder, saved: Path, folder: Path, settings: ExportSettings) -> int:
    """Everything that an exported folder holds; the number of shards."""
    config, manifest = config_from_yaml(run.config), read_manifest(saved)
    tokenizer, encoder = open_tokenizer(run.tokenizer), None
    if reads_two(config.objectives):
        encoder = open_tokenizer(run.encoder_tokenizer)
    weights = WeightFiles.open([checked_weights(saved)])
    needed = shapes_of(whole_model(weights, config, tokenizer, encoder))
    if error := difference(needed, weights.shapes):
        raise ValueError(f"the weights of {saved} are not those of its config: {error}.")
    positions = num_positions(config.model, config.data.packing.source_tokens)
    dtype = DTYPES[settings.dtype] if settings.dtype else weights.tensor(next(iter(needed))).dtype
    if dtype not in DTYPES.values():
        raise ValueError(f"the weights of {saved} are {dtype}. Say how to store them: --dtype.")
    shards = planned_shards(weights.shapes, dtype.itemsize, settings.max_shard_bytes)
    files = {name: _write_shard(weights, names, dtype, folder / name) for name, names in shards}
    num_parameters = sum(torch.Size(shape).numel() for shape in weights.shapes.values())
    index = {
        "metadata": {"total_size": num_parameters * dtype.itemsize},
        "weight_map": {tensor: name for name, names in shards for tensor in names},
    }
    described = ExportedConfig(
        format=exported.FORMAT,
        model=config.model,
        vocab_size=(weights.shapes.get(TOKEN_TABLE) or (tokenizer.vocab_size,))[0],
        num_positions=positions,
        blanks=config.objectives.glm.blanks,
        dtype=next(name for name, value in DTYPES.items() if value == dtype),
        run=config.name,
        step=manifest.update,
        files=files,
        objectives=tuple(config.objectives.chosen),
    )
    card = model_card(
        described,
        config,
        num_parameters=num_parameters,
        data_fingerprint=str(manifest.state.get("data", {}).get("fingerprint", "unknown")),
        init_from=run.origin.read_text(encoding="utf-8").strip() if run.origin.is_file() else None,
    )
    tokenizer.save(folder / exported.TOKENIZER)
    if encoder is not None:
        encoder.save(folder / exported.ENCODER_TOKENIZER)
    (folder / exported.RECIPE).write_text(public_recipe(config), encoding="utf-8")
    (folder / exported.INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    (folder / exported.CONFIG).write_text(described.to_json(), encoding="utf-8")
    (folder / exported.CARD).write_text(card, encoding="utf-8")
    for name in files:
        # safetensors writes files that only their owner may read.
        shutil.copymode(folder / exported.CONFIG, folder / name)
    return len(shards)


def planned_shards(
    shapes: Mapping[str, tuple[int, ...]], bytes_per_value: int, max_shard_bytes: int
) -> list[tuple[str, list[str]]]:
    """Which tensors go into which file, in their order: (name of the file, names of tensors)."""
    shards: list[list[str]] = []
    free = 0
    for name, shape in shapes.items():
        size = torch.Size(shape).numel() * bytes_per_value
        if not shards or size > free:
            shards.append([])
            free = max_shard_bytes
        shards[-1].append(name)
        free -= size
    return [
        (f"model-{number:05}-of-{len(shards):05}.safetensors", names)
        for number, names in enumerate(shards, start=1)
    ]


def _write_shard(
    weights: WeightFiles, names: Sequence[str], dtype: torch.dtype, path: Path
) -> dict[str, Any]:
    """One file of weights; its size and hash."""
    tensors = {name: weights.tensor(name).to(dtype).contiguous() for name in names}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    return measure(path)


class _Parser(argparse.ArgumentParser):
    """Errors are ValueErrors, which `python -m pretrain` turns into one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"export: {message}")


def parser() -> argparse.ArgumentParser:
    """The arguments of `python -m pretrain export`."""
    made = _Parser(
        prog="pretrain export",
        description="Write the model of a run as one folder: sharded safetensors, config, "
        "tokenizer and a model card to be completed.",
    )
    made.add_argument("run", type=Path, metavar="RUN", help="run folder, as runs/demo")
    made.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="a new folder")
    made.add_argument("--checkpoint", type=int, metavar="STEP", help="default: the newest")
    made.add_argument(
        "--max-shard-bytes", type=int, default=MAX_SHARD_BYTES, metavar="N",
        help="most bytes of weights in a file; default %(default)s",
    )  # fmt: skip
    made.add_argument(
        "--dtype", choices=tuple(DTYPES), help="default: as the checkpoint holds the weights"
    )
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Export the run that the command line names."""
    arguments = parser().parse_args(argv)
    settings = ExportSettings(max_shard_bytes=arguments.max_shard_bytes, dtype=arguments.dtype)
    export(arguments.run, arguments.output, settings, step=arguments.checkpoint)

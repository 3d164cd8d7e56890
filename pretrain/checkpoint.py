"""Checkpoints that are complete or invisible, and the way back from them.

    checkpoints/step-00000120/
        *.pt                 DeepSpeed's shards of weights and optimizer, a set for each rank
        model.safetensors    the weights whole, for everybody who does not train on
        manifest.json        sizes, hashes, the trainer's state; written last
    checkpoints/latest       the name of the newest complete one

A checkpoint is written as step-N.partial, its manifest last, and becomes visible by one rename;
`latest` moves by another. Whatever a kill leaves behind is a .partial, which the next save removes.
DeepSpeed's shards are pickles: they are opened with weights_only=True, after the manifest's sizes
and hashes were compared. Reading without DeepSpeed: checkpoint_files.py.
"""

import json
import logging
import os
import pickle
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from pretrain.checkpoint_files import (
    FORMAT,
    MANIFEST,
    WEIGHTS,
    Manifest,
    complete,
    damage,
    folder_name,
    measure,
    read_manifest,
)
from pretrain.engine import Engine
from pretrain.world import World

logger = logging.getLogger(__name__)

# The only classes DeepSpeed's files may name besides tensors and plain values.
_KNOWN_CLASSES = [ZeroStageEnum, LossScaler, DynamicLossScaler, fragment_address]


def save(engine: Engine, root: Path, *, update: int, state: dict[str, Any], keep_last: int) -> Path:
    """Write a checkpoint of all ranks under `root`; a collective. Returns its folder.

    state: what the trainer needs besides weights and optimizer, as plain JSON values.
    """
    world = engine.world
    final, partial = root / folder_name(update), root / f"{folder_name(update)}.partial"
    if world.leads:
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob("step-*.partial"):
            logger.info("checkpoint: removing %s, left by a save that was cut off", leftover)
            shutil.rmtree(leftover)
        partial.mkdir()
    world.barrier()
    engine.deepspeed.save_checkpoint(str(root), tag=partial.name, save_latest=False)
    _save_weights(engine, partial / WEIGHTS)
    world.barrier()
    names = sorted(p.name for p in partial.iterdir())
    mine = {name: measure(partial / name) for name in _share(names, world)}
    files = {name: entry for part in world.gather(mine) for name, entry in part.items()}
    if world.leads:
        for script in root.glob(
            "zero_to_*.py"
        ):  # DeepSpeed's recovery scripts: no code beside weights
            script.unlink()
        manifest = Manifest(FORMAT, update, world.world_size, state, _versions(), files)
        _write_synced(partial / MANIFEST, json.dumps(asdict(manifest), indent=1, sort_keys=True))
        _sync(partial)
        if final.exists():
            shutil.rmtree(final)
        os.rename(partial, final)
        _point_latest(root, final.name)
        _prune(root, keep_last)
    world.barrier()
    return final


def load(engine: Engine, folder: Path) -> Manifest:
    """Weights, optimizer and the trainer's state from the complete checkpoint `folder`; a
    collective.

    Raises ValueError, the same on every rank, for a damaged file or another number of ranks.
    """
    world = engine.world
    manifest = read_manifest(folder)
    error = None
    if manifest.world_size != world.world_size:
        error = (
            f"{folder} was saved by {manifest.world_size} ranks, this run has {world.world_size}. "
            f"Resume with {manifest.world_size} ranks."
        )
    world.agree(error)
    world.agree(damage(folder, manifest, _share(sorted(manifest.files), world)))
    engine.deepspeed.checkpoint_engine = WeightsOnlyEngine()
    path, _ = engine.deepspeed.load_checkpoint(
        str(folder.parent), tag=folder.name, load_lr_scheduler_states=False
    )
    world.agree(None if path else f"{folder} could not be loaded by DeepSpeed (see its log).")
    return manifest


class WeightsOnlyEngine(TorchCheckpointEngine):
    """DeepSpeed's reader, allowed tensors, plain values and the few classes DeepSpeed itself
    writes."""

    def load(self, path: str, map_location: Any = None) -> Any:
        """The content of one of DeepSpeed's files; ValueError where it holds anything else."""
        try:
            with torch.serialization.safe_globals(_KNOWN_CLASSES):
                return torch.load(path, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{path} holds more than tensors and plain values, which this program does not "
                f"open: {reason}"
            ) from error


def _save_weights(engine: Engine, path: Path) -> None:
    whole = {name: tensor.contiguous() for name, tensor in engine.weights()}
    if engine.world.leads:
        safetensors.torch.save_file(whole, path)


def _share(names: list[str], world: World) -> list[str]:
    return names[world.rank :: world.world_size]


def _point_latest(root: Path, name: str) -> None:
    _write_synced(root / "latest.partial", name + "\n")
    os.replace(root / "latest.partial", root / "latest")
    _sync(root)


def _prune(root: Path, keep_last: int) -> None:
    for old in complete(root)[:-keep_last]:
        # The manifest goes first: a removal that is cut off leaves nothing that looks complete.
        (old / MANIFEST).unlink()
        shutil.rmtree(old)
        logger.info("checkpoint: removed %s (keep_last %d)", old.name, keep_last)


def _write_synced(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _versions() -> dict[str, str]:
    import deepspeed

    return {"torch": torch.__version__, "deepspeed": deepspeed.__version__}

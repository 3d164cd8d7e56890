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

import logging
import os
import pickle
import re
import shutil
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

_RANK_IN_NAME = re.compile(r"zero_pp_rank_(\d+)_")

# The only classes DeepSpeed's files may name besides tensors and plain values.
_KNOWN_CLASSES = [ZeroStageEnum, LossScaler, DynamicLossScaler, fragment_address]


def save(engine: Engine, root: Path, *, update: int, state: dict[str, Any], keep_last: int) -> Path:
    """Write a checkpoint of all ranks under `root`; a collective. Returns its folder.

    state: what the trainer needs besides weights and optimizer, as plain JSON values.
    """
    world = engine.world
    final, partial = root / folder_name(update), root / f"{folder_name(update)}.partial"
    world.on_leader(lambda: _begin(root, partial))
    engine.deepspeed.save_checkpoint(str(root), tag=partial.name, save_latest=False)
    _save_weights(engine, partial / WEIGHTS)
    # One list for all: what ranks see of a shared folder may differ for a while.
    names = world.on_leader(lambda: sorted(p.name for p in partial.iterdir()))
    mine = world.together(lambda: {n: measure(partial / n) for n in _share(names, world)})
    files = {name: entry for part in world.gather(mine) for name, entry in part.items()}
    manifest = Manifest(FORMAT, update, world.world_size, state, _versions(), files)
    world.on_leader(lambda: _complete(partial, final, manifest, keep_last))
    return final


def _begin(root: Path, partial: Path) -> None:
    """Make the folder to write into, and remove what earlier saves and removals left half done."""
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob("step-*"):
        if not (left / MANIFEST).is_file():
            logger.info("checkpoint: removing %s, left by a save that was cut off", left)
            shutil.rmtree(left)
    partial.mkdir()


def _complete(partial: Path, final: Path, manifest: Manifest, keep_last: int) -> None:
    """Make the checkpoint visible, and remove those that it replaces."""
    root = final.parent
    for script in root.glob("zero_to_*.py"):  # DeepSpeed's recovery scripts: no code beside weights
        script.unlink()
    _write_synced(partial / MANIFEST, manifest.text())
    _sync(partial)
    if final.exists():
        _remove(final, "it is saved anew")
    os.rename(partial, final)
    _write_synced(root / "latest.partial", final.name + "\n")
    os.replace(root / "latest.partial", root / "latest")
    _sync(root)
    for later in complete(root):
        if later.name > final.name:
            _remove(later, f"the run went on from before it, and now stands at {final.name}")
    for old in complete(root)[:-keep_last]:
        _remove(old, f"keep_last {keep_last}")


def _remove(folder: Path, why: str) -> None:
    # The manifest goes first: a removal that is cut off leaves nothing that looks complete.
    (folder / MANIFEST).unlink()
    shutil.rmtree(folder)
    logger.info("checkpoint: removed %s (%s)", folder.name, why)


def load(engine: Engine, folder: Path) -> Manifest:
    """Weights, optimizer and the trainer's state from the complete checkpoint `folder`; a
    collective.

    Raises ValueError, the same on every rank, for a damaged file or another number of ranks.
    """
    world = engine.world
    manifest = world.together(lambda: read_manifest(folder))
    error = None
    if manifest.world_size != world.world_size:
        error = (
            f"{folder} was saved by {manifest.world_size} ranks, this run has {world.world_size}. "
            f"Resume with {manifest.world_size} ranks."
        )
    world.agree(error)
    names = _share(sorted(manifest.files), world)
    world.agree(world.together(lambda: damage(folder, manifest, names)))
    engine.deepspeed.checkpoint_engine = WeightsOnlyEngine()
    path = world.together(
        lambda: engine.deepspeed.load_checkpoint(
            str(folder.parent), tag=folder.name, load_lr_scheduler_states=False
        )[0]
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
            named = re.search(r"GLOBAL ([\w.]+)", str(error))
            raise ValueError(
                f"{path} holds more than tensors and plain values"
                f"{f' ({named[1]})' if named else ''}: it was not written by this program, and is "
                "not opened. Resume from another checkpoint: --resume PATH."
            ) from None


def _save_weights(engine: Engine, path: Path) -> None:
    whole = {name: tensor.contiguous() for name, tensor in engine.weights()}
    engine.world.on_leader(lambda: safetensors.torch.save_file(whole, path))


def _share(names: list[str], world: World) -> list[str]:
    """The files that this rank wrote, as DeepSpeed names them; rank 0 takes those of no rank."""
    owners = {name: _RANK_IN_NAME.search(name) for name in names}
    return [
        name
        for name, found in owners.items()
        if (int(found[1]) if found and int(found[1]) < world.world_size else 0) == world.rank
    ]


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

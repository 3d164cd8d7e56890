"""Checkpoints that are complete or invisible, and the way back from them.

    checkpoints/step-00000120/  *.pt               DeepSpeed's shards of weights and optimizer, one
    set a rank
                                model.safetensors  the weights whole, for everybody who does not
                                train on manifest.json      sizes, hashes, the trainer's state;
                                written last
    checkpoints/latest          the name of the newest complete one

A checkpoint is written as step-N.partial, its manifest last, and becomes visible by one rename;
`latest` moves by another. Whatever a kill leaves behind is a .partial, which the next save removes.
Files are untrusted: names stay inside the folder, sizes and hashes are checked before anything is
read, and DeepSpeed's pickles are opened with weights_only=True.
"""

import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import xxhash
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from pretrain.engine import Engine
from pretrain.world import World

logger = logging.getLogger(__name__)

FORMAT = 1
WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8})")

# The only classes DeepSpeed's files may name besides tensors and plain values.
_KNOWN_CLASSES = [ZeroStageEnum, LossScaler, DynamicLossScaler, fragment_address]


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint says of itself."""

    format: int
    update: int  # updates applied before it was saved
    world_size: int  # ranks whose shards it holds
    state: dict[str, Any]  # the trainer's: data positions, fingerprints
    versions: dict[str, str]
    files: dict[str, dict[str, Any]]  # name -> {"size_bytes": int, "xxh3": hex}


def folder_name(update: int) -> str:
    """Name of the checkpoint folder after `update` updates."""
    return f"step-{update:08d}"


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
    mine = {name: _measure(partial / name) for name in _share(names, world)}
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


def find(root: Path, resume: str | None) -> Path | None:
    """The checkpoint folder that `--resume` names, or None for a fresh start.

    resume: None, "auto" (the newest complete checkpoint under `root`) or a path to a checkpoint
    folder or to the run folder that holds some. Raises ValueError where a path is wrong, or where a
    fresh start would write beside checkpoints that are already there.
    """
    if resume is None:
        if _complete(root):
            raise ValueError(
                f"{root} already holds checkpoints of this run. Go on from them with "
                "--resume auto, or choose another --name."
            )
        return None
    if resume == "auto":
        newest = _newest(root)
        if newest is None:
            logger.info("resume auto: no complete checkpoint under %s, starting from step 0", root)
        return newest
    path = Path(resume)
    if not path.is_dir():
        raise ValueError(f"--resume {resume}: no such folder. Give a checkpoint folder, or 'auto'.")
    newest = path if _NAME.fullmatch(path.name) else _newest(path / "checkpoints")
    if newest is None or not (newest / MANIFEST).is_file():
        raise ValueError(
            f"--resume {resume}: holds no complete checkpoint ({MANIFEST} is missing). "
            "Give a folder like RUN/checkpoints/step-00001000, a run folder, or 'auto'."
        )
    return newest.resolve()


def choose(run_folder: Path, step: int | None = None) -> Path:
    """The checkpoint of a run to read weights from: that of `step`, else the newest complete one.

    Raises ValueError where there is none.
    """
    root = run_folder / "checkpoints"
    found = _newest(root) if step is None else root / folder_name(step)
    if found is None or not (found / MANIFEST).is_file():
        have = ", ".join(p.name for p in _complete(root)) or "none"
        wanted = "a complete checkpoint" if step is None else folder_name(step)
        raise ValueError(f"{root} does not hold {wanted}. Complete ones there: {have}.")
    return found


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The whole weights of a complete checkpoint, on the CPU, after checking size and hash.

    Raises ValueError naming the file where it is damaged.
    """
    manifest = read_manifest(folder)
    error = damage(folder, manifest, [WEIGHTS])
    if error:
        raise ValueError(error)
    return safetensors.torch.load_file(folder / WEIGHTS)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a complete checkpoint; raises ValueError naming what is wrong with it."""
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        manifest = Manifest(**raw)
        well_formed = all(
            set(entry) == {"size_bytes", "xxh3"} and Path(name).name == name
            for name, entry in manifest.files.items()
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a checkpoint manifest: {error}.") from error
    if manifest.format != FORMAT:
        raise ValueError(
            f"{path} has checkpoint format {manifest.format}; this version reads {FORMAT}. "
            "Use the version that wrote it."
        )
    if not well_formed or WEIGHTS not in manifest.files:
        raise ValueError(
            f"{path} lists files that no checkpoint has; it was not written by this program."
        )
    return manifest


def damage(folder: Path, manifest: Manifest, names: Iterable[str]) -> str | None:
    """What is wrong with the files `names` of a checkpoint, as one sentence; None where nothing
    is."""
    for name in names:
        path, expected = folder / name, manifest.files.get(name)
        if expected is None or not path.is_file():
            return f"{path} is missing. Resume from another checkpoint: --resume PATH."
        size_bytes = path.stat().st_size
        if size_bytes != expected["size_bytes"]:
            return (
                f"{path} holds {size_bytes} bytes instead of {expected['size_bytes']}. "
                "Resume from another checkpoint: --resume PATH."
            )
        if _measure(path)["xxh3"] != expected["xxh3"]:
            return f"{path} is not what was saved. Resume from another checkpoint: --resume PATH."
    return None


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


def _measure(path: Path) -> dict[str, Any]:
    """Size and xxh3 of a file whose bytes are on the disk when this returns."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        while block := file.read(1 << 24):
            digest.update(block)
    return {"size_bytes": path.stat().st_size, "xxh3": digest.hexdigest()}


def _complete(root: Path) -> list[Path]:
    found = root.iterdir() if root.is_dir() else ()
    return sorted(p for p in found if _NAME.fullmatch(p.name) and (p / MANIFEST).is_file())


def _newest(root: Path) -> Path | None:
    """The newest complete checkpoint; `latest` is only a hint for people and other tools."""
    return (_complete(root) or [None])[-1]


def _point_latest(root: Path, name: str) -> None:
    _write_synced(root / "latest.partial", name + "\n")
    os.replace(root / "latest.partial", root / "latest")
    _sync(root)


def _prune(root: Path, keep_last: int) -> None:
    for old in _complete(root)[:-keep_last]:
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

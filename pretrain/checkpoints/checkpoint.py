"""Checkpoints that are complete or invisible, and the way back from them, on any number of ranks.

    checkpoints/step-00000120/
        optimizer-00000-of-00002.safetensors    fp32 weights and moments, a file for each rank
        model.safetensors                       the weights whole, as the model computes with them
        manifest.json                           sizes, hashes, the trainer's state; written last
    checkpoints/latest                          the name of the newest complete one

A checkpoint is written as step-N.partial, its manifest last, and becomes visible by one rename;
`latest` moves by another. Whatever a kill leaves behind is a .partial, which the next save removes.
A disk that is full before a save or becomes so during it ends the save on all ranks with
DiskFullError, and what was complete before is still there. No file is a pickle. Reading without
DeepSpeed: checkpoint_files.py; what is in a rank's file: optimizer_state.py.
"""

import errno
import logging
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from pretrain.checkpoints import optimizer_state
from pretrain.checkpoints.checkpoint_files import (
    FORMAT,
    LATEST,
    MANIFEST,
    WEIGHTS,
    Manifest,
    checked_weights,
    complete,
    damage,
    folder_name,
    held_out_nats,
    not_what_was_saved,
    read_manifest,
    sync,
    write_synced,
)
from pretrain.checkpoints.retention import Retention, kept
from pretrain.checkpoints.tensor_files import TensorWriter
from pretrain.checkpoints.weights import WeightFiles
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World
from pretrain.settings.mistakes import AgreedError

logger = logging.getLogger(__name__)

# No room, the user's quota is used up, or a file may not grow further.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Folders of checkpoints: complete, being written, and about to be removed for another one.
_OURS = re.compile(r"step-\d{8}(\.partial|\.replaced)?")
HEADER_BYTES = 1000  # of a parameter in a file; more than it takes

Value = TypeVar("Value")


class DiskFullError(AgreedError):
    """A checkpoint did not fit; the same on every rank, and nothing of it is left."""


def save(
    engine: Engine,
    root: Path,
    *,
    update: int,
    state: dict[str, Any],
    retention: Retention,
    before: Callable[[], None] = lambda: None,
) -> Path:
    """Write a checkpoint of all ranks under `root`; a collective. Returns its folder.

    state: what the trainer needs besides weights and optimizer, as plain JSON values.
    before: puts on the disk what must lie there before the checkpoint says so.
    Raises DiskFullError, the same on every rank, where it does not fit.
    """
    world = engine.world
    final, partial = root / folder_name(update), root / f"{folder_name(update)}.partial"
    mine = _optimizer_file(world)
    needed = _needed_bytes(engine)

    _attempt(world, partial, before)
    _attempt(world, partial, lambda: _begin(root, partial, needed) if world.leads else None)
    own, weights = _attempt(world, partial, lambda: _write_files(engine, partial, mine))
    files = dict(world.gather((mine, own)))
    files[WEIGHTS] = world.broadcast(weights)
    manifest = Manifest(FORMAT, update, world.world_size, state, _versions(), files)
    _attempt(world, partial, lambda: _complete(partial, final, manifest) if world.leads else None)
    world.on_leader(lambda: _retire(final, retention))
    return final


def _needed_bytes(engine: Engine) -> int:
    """What all files of a checkpoint take together, with a margin for their headers."""
    trained, frozen = engine.num_parameters[True], engine.num_parameters[False]
    weights = (trained + frozen) * engine.dtype.itemsize
    optimizer = trained * optimizer_state.BYTES_PER_PARAMETER
    headers = HEADER_BYTES * len(engine.shapes()) * (engine.world.world_size + 1)
    return weights + optimizer + headers


def _attempt(world: World, partial: Path, act: Callable[[], Value]) -> Value:
    """What `act` gives on this rank, once the disk took it on all; else nothing of it is left."""
    value, failure = None, None
    try:
        value = act()
    except OSError as problem:
        failure = (problem.errno, str(problem))
    failures = [f for f in world.gather(failure) if f]
    if not failures:
        return cast(Value, value)
    full = [said for number, said in failures if number in DISK_FULL]
    world.on_leader(lambda: shutil.rmtree(partial, ignore_errors=True))
    if full:
        raise DiskFullError(
            f"{partial.stem} was not saved, the disk is full: {full[0]}. Checkpoints that were "
            f"complete stay in {partial.parent}. Free space or lower checkpoints.keep_last."
        )
    raise AgreedError(f"{partial.stem} was not saved: {failures[0][1]}.")


def _begin(root: Path, partial: Path, needed_bytes: int) -> None:
    """Make the folder to write into, and remove what earlier saves and removals left half done."""
    root.mkdir(parents=True, exist_ok=True)
    for left in root.iterdir():
        if not _OURS.fullmatch(left.name) or not left.is_dir():
            continue
        if not (left / MANIFEST).is_file() or left.suffix:
            logger.info("checkpoint: removing %s, left by a save that was cut off", left)
            shutil.rmtree(left)
    free_bytes = shutil.disk_usage(root).free
    if free_bytes < needed_bytes:
        raise OSError(
            errno.ENOSPC, f"it takes {needed_bytes:,} bytes, and {free_bytes:,} are free", str(root)
        )
    partial.mkdir()


def _write_files(
    engine: Engine, partial: Path, mine: str
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Write the optimizer's state of this rank and, on rank 0, the weights; their entries.

    At once: the disk takes the one while the other is gathered. One after the other where ZeRO
    swaps its state in and out meanwhile.
    """
    if not optimizer_state.stays_in_memory(engine):
        weights = _write_weights(engine, partial / WEIGHTS)
        return optimizer_state.write(engine, partial / mine), weights
    with ThreadPoolExecutor(1) as beside:
        later = beside.submit(optimizer_state.write, engine, partial / mine)
        weights = _write_weights(engine, partial / WEIGHTS)
        return later.result(), weights


def _write_weights(engine: Engine, path: Path) -> dict[str, Any] | None:
    """Write the whole weights, gathered one at a time; their entry on rank 0, None elsewhere."""
    layout = {name: (engine.dtype, shape) for name, shape in engine.shapes().items()}
    failure, writer = None, None
    # All ranks gather to the end, also past a full disk, so that none waits for another.
    for _, tensor in engine.weights():
        if failure or not engine.world.leads:
            continue
        try:
            writer = writer or TensorWriter(path, layout, metadata={"format": "pt"})
            writer.write(tensor)
        except OSError as problem:
            failure = problem
    if failure:
        raise failure
    return writer.finish() if writer else None


def _complete(partial: Path, final: Path, manifest: Manifest) -> None:
    """Make the checkpoint visible; all that a disk can refuse comes before that."""
    root, replaced = final.parent, final.with_suffix(".replaced")
    write_synced(partial / MANIFEST, manifest.text())
    write_synced(root / f"{LATEST}.partial", final.name + "\n")
    sync(partial)
    if final.exists():  # of a branch that was given up, see _retire
        os.rename(final, replaced)
    os.rename(partial, final)
    os.replace(root / f"{LATEST}.partial", root / LATEST)
    sync(root)
    if replaced.exists():
        _remove(replaced, f"{final.name} was saved anew")


def _retire(newest: Path, rules: Retention) -> None:
    """Remove the checkpoints that `newest` replaces."""
    earlier = {}
    for folder in complete(newest.parent):
        if folder.name > newest.name:
            _remove(folder, f"the run went on from before it, and now stands at {newest.name}")
        else:
            earlier[int(folder.name.removeprefix("step-"))] = folder
    stay = kept({step: held_out_nats(folder) for step, folder in earlier.items()}, rules)
    for step in sorted(earlier.keys() - stay):
        _remove(earlier[step], f"checkpoints: {rules}")


def _remove(folder: Path, why: str) -> None:
    # The manifest goes first: a removal that is cut off leaves nothing that looks complete.
    (folder / MANIFEST).unlink()
    shutil.rmtree(folder)
    logger.info("checkpoint: removed %s (%s)", folder.name, why)


def load(engine: Engine, folder: Path) -> Manifest:
    """Weights, optimizer and the trainer's state from the complete checkpoint `folder`; a
    collective.

    Any number of ranks and any ZeRO stage may have written it. Raises ValueError, the same on every
    rank, for a damaged file.
    """
    world = engine.world
    manifest = world.together(lambda: read_manifest(folder))
    _read_optimizer(engine, folder, manifest)
    optimizer_state.publish(engine)
    if engine.num_parameters[False]:
        source = world.together(
            lambda: WeightFiles.open([checked_weights(folder)]) if world.leads else None
        )
        engine.set_frozen(source.tensor if source else None)
    if manifest.world_size != world.world_size:
        logger.info(
            "checkpoint of %d ranks, taken over by %d", manifest.world_size, world.world_size
        )
    return manifest


def _read_optimizer(engine: Engine, folder: Path, manifest: Manifest) -> None:
    """The optimizer's state of every rank, with the hash of every file compared once."""
    world = engine.world
    own = folder / _optimizer_file(world)
    sizes = damage(folder, manifest, manifest.files, sizes_only=True) if world.leads else None
    world.agree(sizes)
    fits = world.together(
        lambda: own.name in manifest.files and optimizer_state.is_own(engine, own)
    )
    if all(world.gather(fits)):
        entry = world.together(lambda: optimizer_state.read_own(engine, own))
        is_whole = entry == manifest.files[own.name]
        world.agree(None if is_whole else not_what_was_saved(own))
        return
    names = sorted(name for name in manifest.files if name != WEIGHTS)
    share = names[world.rank :: world.world_size]
    world.agree(world.together(lambda: damage(folder, manifest, share)))
    nearest = share + [name for name in names if name not in share]
    world.together(lambda: optimizer_state.read(engine, [folder / name for name in nearest]))


def _optimizer_file(world: World) -> str:
    return f"optimizer-{world.rank:05d}-of-{world.world_size:05d}.safetensors"


def _versions() -> dict[str, str]:
    return {"torch": torch.__version__, "deepspeed": version("deepspeed")}

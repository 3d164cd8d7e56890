"""Checkpoint files as anybody may read them, without DeepSpeed: which are complete, and what is in.

Files are untrusted: names stay inside the folder, sizes and hashes are compared with the manifest
before anything is read, weights are safetensors. How checkpoints are written, and how training goes
on from them: checkpoint.py.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

logger = logging.getLogger(__name__)

FORMAT = 2
WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"
LATEST = "latest"
_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint says of itself."""

    format: int
    update: int  # steps done before it was saved, skipped ones too (state: judge.updates)
    world_size: int  # ranks whose shards it holds
    state: dict[str, Any]  # the trainer's: data positions, fingerprints
    versions: dict[str, str]
    files: dict[str, dict[str, Any]]  # name -> {"size_bytes": int, "xxh3": hex}

    def text(self) -> str:
        """The manifest as JSON, with a checksum of all its other values."""
        values = asdict(self)
        return json.dumps(values | {"checksum": _checksum(values)}, indent=1, sort_keys=True) + "\n"


def _checksum(values: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True).encode())


def folder_name(update: int) -> str:
    """Name of the checkpoint folder after `update` steps."""
    return f"step-{update:08d}"


def find(root: Path, resume: str | None) -> Path | None:
    """The checkpoint folder that `--resume` names, or None for a fresh start.

    resume: None, "auto" (the newest complete checkpoint under `root`) or a path to a checkpoint
    folder or to the run folder that holds some. Raises ValueError where a path is wrong, or where a
    fresh start would write beside checkpoints that are already there.
    """
    if resume is None:
        if complete(root):
            raise ValueError(
                f"{root} already holds checkpoints of this run. Go on from them with "
                "--resume auto, or choose another --name."
            )
        return None
    if resume == "auto":
        return _newest_whole(root)
    path = Path(resume)
    if not path.is_dir():
        raise ValueError(f"--resume {resume}: no such folder. Give a checkpoint folder, or 'auto'.")
    found = path if _NAME.fullmatch(path.name) else newest(path / "checkpoints")
    if found is None or not (found / MANIFEST).is_file():
        raise ValueError(
            f"--resume {resume}: holds no complete checkpoint ({MANIFEST} is missing). "
            "Give a folder like RUN/checkpoints/step-00001000, a run folder, or 'auto'."
        )
    return found.resolve()


def _newest_whole(root: Path) -> Path | None:
    """The newest checkpoint that the run stands by and whose files have their sizes; None where
    there is no checkpoint at all.

    Those passed over are named in the log. Raises ValueError where all are damaged: a fresh start
    would be a surprise. Hashes are compared when the files are read.
    """
    problem = None
    for folder in reversed(standing(root)):
        try:
            manifest = read_manifest(folder)
            problem = damage(folder, manifest, manifest.files, sizes_only=True)
        except ValueError as error:
            problem = str(error)
        if problem is None:
            return folder
        logger.warning("resume auto: passing over %s: %s", folder.name, problem)
    if problem is not None:
        raise ValueError(f"every checkpoint under {root} is damaged; the oldest: {problem}")
    logger.info("resume auto: no complete checkpoint under %s, starting from step 0", root)
    return None


def choose(run_folder: Path, step: int | None = None) -> Path:
    """The checkpoint of a run to read weights from: that of `step`, else the newest complete one.

    Raises ValueError where there is none.
    """
    root = run_folder / "checkpoints"
    found = newest(root) if step is None else root / folder_name(step)
    if found is None or not (found / MANIFEST).is_file():
        have = ", ".join(p.name for p in complete(root)) or "none"
        wanted = "a complete checkpoint" if step is None else folder_name(step)
        raise ValueError(f"{root} does not hold {wanted}. Complete ones there: {have}.")
    return found


def checked_weights(folder: Path) -> Path:
    """The file with the whole weights of a complete checkpoint, after checking size and hash.

    Raises ValueError naming the file where it is damaged.
    """
    manifest = read_manifest(folder)
    error = damage(folder, manifest, [WEIGHTS])
    if error:
        raise ValueError(error)
    return folder / WEIGHTS


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a complete checkpoint; raises ValueError naming what is wrong with it."""
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        checksum = raw.pop("checksum", None)
        manifest = Manifest(**raw)
        well_formed = all(
            set(entry) == {"size_bytes", "xxh3"} and Path(name).name == name
            for name, entry in manifest.files.items()
        )
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a checkpoint manifest: {error}.") from error
    if manifest.format != FORMAT:
        raise ValueError(
            f"{path} has checkpoint format {manifest.format}; this version reads {FORMAT}. "
            "Use the version that wrote it."
        )
    if checksum != _checksum(raw) or folder_name(manifest.update) != folder.name:
        raise ValueError(
            f"{path} is damaged: it is not what was saved as {folder.name}. "
            "Resume from another checkpoint: --resume PATH."
        )
    if not well_formed or WEIGHTS not in manifest.files:
        raise ValueError(
            f"{path} lists files that no checkpoint has; it was not written by this program."
        )
    return manifest


def damage(
    folder: Path, manifest: Manifest, names: Iterable[str], *, sizes_only: bool = False
) -> str | None:
    """What is wrong with the files `names` of a checkpoint, as one sentence; None if nothing is."""
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
        if not sizes_only and measure(path)["xxh3"] != expected["xxh3"]:
            return not_what_was_saved(path)
    return None


def not_what_was_saved(path: Path) -> str:
    """The sentence for a file of the right size whose hash is not the manifest's."""
    return f"{path} is not what was saved. Resume from another checkpoint: --resume PATH."


def measure(path: Path) -> dict[str, Any]:
    """Size and xxh3 of a file whose bytes are on the disk when this returns."""
    digest, block = xxhash.xxh3_128(), memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        while size := file.readinto(block):
            digest.update(block[:size])
    return {"size_bytes": path.stat().st_size, "xxh3": digest.hexdigest()}


def complete(root: Path) -> list[Path]:
    found = root.iterdir() if root.is_dir() else ()
    return sorted(p for p in found if _NAME.fullmatch(p.name) and (p / MANIFEST).is_file())


def held_out_nats(folder: Path) -> float | None:
    """The held-out loss of a complete checkpoint; None where none was measured, or its manifest is
    damaged."""
    try:
        nats = read_manifest(folder).state.get("held_out_nats")
    except ValueError as error:
        logger.warning("held-out loss of %s is not known: %s", folder.name, error)
        return None
    return float(nats) if isinstance(nats, float | int) else None


def standing(root: Path) -> list[Path]:
    """The complete checkpoints up to the one that `latest` names; all, where it names none.

    Later ones belong to a branch that was given up: the run went on from before them.
    """
    folders = complete(root)
    try:
        latest = (root / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return folders
    if latest not in [folder.name for folder in folders]:
        return folders
    return [folder for folder in folders if folder.name <= latest]


def newest(root: Path) -> Path | None:
    """The newest complete checkpoint that the run stands by."""
    return (standing(root) or [None])[-1]


def note_latest(root: Path, name: str) -> None:
    """Let `latest` name a complete checkpoint of `root`, by one rename."""
    write_synced(root / f"{LATEST}.partial", name + "\n")
    os.replace(root / f"{LATEST}.partial", root / LATEST)
    sync(root)


def write_synced(path: Path, text: str) -> None:
    """Write a file whose bytes are on the disk when this returns."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Saving and loading a checkpoint beside writing and reading the same bytes raw.

Ours is `checkpoint.save` and `checkpoint.load` as a run calls them: gathered weights, hashes, the
manifest, the rename, and the removal of the checkpoint before. Raw is one buffer written in pieces
and synced, and files read into memory that is there already, with as many files of the same sizes.
What is read has been dropped from the page cache before, on both sides.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.sizes import SIZES, Size, engine_of
from bench.table import Row, rate_row
from bench.timing import take_turns
from pretrain.checkpoints.checkpoint import load, save
from pretrain.checkpoints.checkpoint_files import WEIGHTS, complete, read_manifest
from pretrain.checkpoints.retention import Retention
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import join_world, leave_world

GOAL = 1 / 1.5
PIECE_BYTES = 1 << 24
ROUNDS = 7


def checkpoint_rows(quick: bool) -> list[Row]:
    """Rows of size B on one rank; quick: of size S, three rounds."""
    size = SIZES["S" if quick else "B"]
    world = join_world(timeout_s=600)
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(size, size.rows, world)
            return _rows(size, engine, Path(folder), 3 if quick else ROUNDS)
    finally:
        leave_world()


def _rows(size: Size, engine: Engine, folder: Path, rounds: int) -> list[Row]:
    ours, raw = folder / "ours", folder / "raw"
    raw.mkdir()
    updates = itertools.count(1)

    def save_next() -> None:
        rules = Retention(keep_last=1)
        save(engine, ours, update=next(updates), state={}, retention=rules)

    save_next()
    sizes = {p.name: p.stat().st_size for p in complete(ours)[-1].iterdir()}
    in_use = [name for name in read_manifest(complete(ours)[-1]).files if name != WEIGHTS]
    write_raw = raw_writer(sizes, raw)
    write_raw()
    times = take_turns(
        {
            "save": save_next,
            "write": write_raw,
            "load": lambda: load(engine, complete(ours)[-1]),
            "read": raw_reader([raw / name for name in in_use]),
        },
        rounds=rounds,
        before_each=lambda: forget(folder),
    )
    written, read = float(sum(sizes.values())), float(sum(sizes[name] for name in in_use))
    return [
        rate_row(
            f"checkpoint_{bench}_{size.name}",
            f"the same bytes, raw {peer}",
            (times[bench], times[peer]),
            (work / 1e6, work / 1e6),
            "MB/s",
            GOAL,
        )
        for bench, peer, work in (("save", "write", written), ("load", "read", read))
    ]


def raw_writer(sizes: dict[str, int], folder: Path) -> Callable[[], None]:
    """Writes files of these sizes and syncs them, in place of those of the round before."""
    content = memoryview(bytearray(os.urandom(1 << 20) * (PIECE_BYTES >> 20)))

    def write() -> None:
        for name, size_bytes in sizes.items():
            (folder / name).unlink(missing_ok=True)
            with open(folder / name, "wb", buffering=0) as file:
                for start in range(0, size_bytes, PIECE_BYTES):
                    file.write(content[: size_bytes - start])
                os.fsync(file.fileno())

    return write


def raw_reader(paths: Sequence[Path]) -> Callable[[], None]:
    """Reads files whole, each into memory of its own."""
    buffers = {path: memoryview(bytearray(path.stat().st_size)) for path in paths}

    def read() -> None:
        for path, buffer in buffers.items():
            with open(path, "rb", buffering=0) as file:
                done = 0
                while size := file.readinto(buffer[done : done + PIECE_BYTES]):
                    done += size

    return read


def forget(folder: Path) -> None:
    """Drop all files below `folder` from the page cache; they have been synced."""
    for path in (p for p in folder.rglob("*") if p.is_file()):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)

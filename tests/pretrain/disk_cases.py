"""A rank of tests/pretrain/test_full_disk.py: saves on a disk that is full before and during it.

`python disk_cases.py SMALL_DISK FOLDER CASES.json`, in the environment of a rank. SMALL_DISK holds
one checkpoint and not two, or is "-"; CASES.json: a list of [name, arguments of a training].
"""

import contextlib
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pretrain.__main__ import leave_at_once
from pretrain.checkpoints.checkpoint import DiskFullError, save
from pretrain.checkpoints.retention import Retention
from pretrain.distributed.world import World, join_world, leave_world
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import parse_train
from pretrain.training.setup import set_up
from pretrain.training.train import checked_corpora, run_in


def main(small_disk: str, folder: Path, cases: list[tuple[str, list[str]]]) -> None:
    """Writes what each case said and left on the disk to FOLDER/results.RANK.json."""
    world = join_world(timeout_s=60)
    results: dict[str, Any] = {}
    results["a file may not grow"] = _saves_under_a_limit(world, folder, cases[0][1])
    for name, arguments in cases[1:] if small_disk != "-" else []:
        config, start = parse_train(arguments)
        shutil_usage = shutil.disk_usage
        if name.endswith("met in writing"):  # as where another process takes the room meanwhile
            shutil.disk_usage = lambda _: SimpleNamespace(free=1 << 40)
        elif name.endswith("for good"):
            shutil.disk_usage = partial(_filled, Path(small_disk), count(1))
        try:
            said = run_in(world, config, start)
        except DiskFullError as error:
            said = str(error)
        shutil.disk_usage = shutil_usage
        run = RunFolder(Path(config.runs) / config.name)
        results[name] = {
            "said": said,
            "steps": run.metrics.read_text().count("loss/total_nats"),
            **_left(run.checkpoints),
        }
        world.barrier()
        if world.leads:
            shutil.rmtree(run.path)
            (Path(small_disk) / "filler").unlink(missing_ok=True)
        world.barrier()
    (folder / f"results.{world.rank}.json").write_text(json.dumps(results))
    leave_world()


def _filled(folder: Path, saves: Iterator[int], _: Path) -> SimpleNamespace:
    """From the second save on no byte is left on the disk, which says that there is room."""
    if next(saves) > 1:
        with contextlib.suppress(OSError), open(folder / "filler", "ab", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
    return SimpleNamespace(free=1 << 40)


def _saves_under_a_limit(world: World, folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Step 1 is saved; at step 2 the last rank alone may not write; step 3 is saved again."""
    config, start = parse_train(arguments)
    run = RunFolder(folder / "limited")
    world.on_leader(run.lock)
    engine = set_up(config, checked_corpora(config), run, start, world).engine
    root, retention = run.checkpoints, Retention(keep_last=2)
    save(engine, root, update=1, state={}, retention=retention)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    if world.rank == world.world_size - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, unlimited[1]))
    try:
        said = str(save(engine, root, update=2, state={}, retention=retention))
    except DiskFullError as error:
        said = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    left = _left(root)
    world.barrier()  # until all have looked
    save(engine, root, update=3, state={}, retention=retention)
    return {"said": said, **left, "after": _left(root)["names"]}


def _left(root: Path) -> dict[str, Any]:
    latest = (root / "latest").read_text().strip()
    return {"names": sorted(os.listdir(root)), "latest": latest}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text()))
    leave_at_once(0)

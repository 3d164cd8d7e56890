"""How this rank was started: by which processes, of how many ranks, and whether that was meant.

The `deepspeed` launcher starts on this machine alone where its hostfile is missing, with a warning
among others. Here that is an error, and so is any other number of ranks than the recipe expects.
"""

import os
from pathlib import Path


def launchers() -> tuple[int, ...]:
    """Process numbers of who started this rank: its parent, and the parent of deepspeed's
    launch.py. Other numbers than before mean that one of them is gone."""
    parent = os.getppid()
    if b"deepspeed.launcher.launch" not in _of_process(parent, "cmdline"):
        return (parent,)
    after_name = _of_process(parent, "stat").rpartition(b")")[2].split()
    return (parent, *map(int, after_name[1:2]))


def check_launch(world_size: int, expected_ranks: int | None, started_by: tuple[int, ...]) -> None:
    """Raise ValueError where the launcher has started something else than was asked for.

    started_by: what `launchers` gave.
    """
    hostfile = missing_hostfile(started_by[-1]) if started_by else None
    if hostfile is not None:
        raise ValueError(
            f"there is no hostfile {hostfile}, so deepspeed started on this machine alone. Name "
            "one that is there, or leave out --hostfile."
        )
    if expected_ranks is not None and world_size != expected_ranks:
        raise ValueError(
            f"expected_ranks is {expected_ranks}, but the launcher started {world_size} "
            f"rank{'s' * (world_size != 1)}. Look at its hostfile, its number of nodes and of "
            "processes a node, or change expected_ranks."
        )


def missing_hostfile(launcher: int) -> str | None:
    """The hostfile that process `launcher`, a `deepspeed`, was told of and did not find, or None.

    /dev/null is no hostfile on purpose.
    """
    words = _of_process(launcher, "cmdline").decode("utf-8", "replace").split("\0")
    if not any(word.endswith(("/deepspeed", "deepspeed.launcher.runner")) for word in words[:4]):
        return None
    for word, following in zip(words, [*words[1:], ""]):
        name, _, value = word.partition("=")
        if name in ("--hostfile", "-H"):
            path = Path(f"/proc/{launcher}/cwd", value or following)
            return None if path.exists() else value or following
        if word.endswith((".sh", ".py")) and "launcher" not in word:
            return None  # what follows are the script's own
    return None


def _of_process(number: int, what: str) -> bytes:
    """A file of /proc; empty where there is none."""
    try:
        return Path(f"/proc/{number}/{what}").read_bytes()
    except OSError:
        return b""

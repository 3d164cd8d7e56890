"""Which task of a sweep a command line means: `train --sweep FILE --task 3 --array 1234`."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from pretrain.settings.sweep_file import NOT_SWEPT, Task, read_sweep

NO_ARRAY = "none"


class Chosen(NamedTuple):
    """What a command line says of a sweep, and the rest of it."""

    task: Task | None
    rest: list[str]


def task_of_command_line(args: Sequence[str]) -> Chosen:
    """The task that --sweep FILE, --task N and --array ID choose.

    N and ID are by default those of the SLURM array that this process belongs to; --array none
    belongs to none. Raises ValueError
    where no task is named, or where a flag would set what the task sets.
    """
    found, rest = _taken(args, ("--sweep", "--task", "--array"))
    if "--sweep" not in found:
        if found:
            raise ValueError(f"{next(iter(found))} belongs to --sweep FILE, which is missing.")
        return Chosen(None, rest)
    file = found["--sweep"]
    sweep = read_sweep(file)
    in_array = "SLURM_ARRAY_TASK_ID" in os.environ
    number = found.get("--task", os.environ.get("SLURM_ARRAY_TASK_ID", ""))
    array = found.get("--array", os.environ.get("SLURM_ARRAY_JOB_ID") if in_array else None)
    if not number.isdecimal():
        raise ValueError(
            f"{file}: which task? Give --task N, or submit an array: "
            f"--array=0-{len(sweep.tasks) - 1}. Got {number or 'none'}."
        )
    task = sweep.task(int(number), None if array == NO_ARRAY else array)
    for flag in rest:
        key = flag.removeprefix("--").partition("=")[0]
        if flag.startswith("--") and (key in task.values or (key in NOT_SWEPT and key != "runs")):
            raise ValueError(f"--{key} follows from task {task.number} of {file}. Leave it out.")
    return Chosen(task, rest)


def task_flags(task: Task, array: str | None) -> list[str]:
    """The flags that choose `task`, also where the environment would choose another."""
    return ["--sweep", task.file, "--task", str(task.number), "--array", array or NO_ARRAY]


def _taken(args: Sequence[str], flags: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of `flags` in `args`, and what is left."""
    found: dict[str, str] = {}
    rest: list[str] = []
    waiting = iter(args)
    for argument in waiting:
        flag, given, value = argument.partition("=")
        if flag not in flags:
            rest.append(argument)
            continue
        value = value if given else next(waiting, "")
        if not value:
            raise ValueError(f"{flag} needs a value.")
        found[flag] = value
    return found, rest

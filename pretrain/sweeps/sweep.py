"""`python -m pretrain sweep FILE`: the tasks of a sweep as a table, or trained one after another.

    python -m pretrain sweep FILE                  the table, every task checked
    python -m pretrain sweep FILE --count          how many tasks there are
    python -m pretrain sweep FILE --run            trains all that are not finished, here
    python -m pretrain sweep FILE --task 3         trains that one

A job array trains them side by side: launch/slurm/sweep.sbatch. Whoever starts a task does so with
`train --sweep FILE --task N --resume auto`, so it goes on from where it was.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pretrain.recording.status import state_of
from pretrain.settings.cli import parse_train
from pretrain.settings.config import Config
from pretrain.settings.dotted import shown
from pretrain.settings.sweep_file import Sweep, read_sweep
from pretrain.settings.sweep_task import task_flags
from pretrain.sweeps.sweep_here import train_here


def checked(sweep: Sweep, array: str | None, flags: Sequence[str] = ()) -> list[Config]:
    """The configuration of every task, in their order; leaves with exit code 2 on a mistake.

    flags: overrides that every task gets. Raises ValueError where two tasks train the same.
    """
    configs: list[Config] = []
    seen: dict[str, int] = {}
    for task in sweep.tasks:
        config, _ = parse_train([*task_flags(task, array), *flags])
        configs.append(config)
        plain = {k: v for k, v in vars(config).items() if k != "name"}
        first = seen.setdefault(repr(plain), task.number)
        if first != task.number:
            raise ValueError(
                f"{sweep.file}: tasks {first} and {task.number} train the same, {task.label}. "
                "Leave out one of them, or give each its own seed."
            )
    return configs


def table(sweep: Sweep, configs: Sequence[Config], array: str | None) -> str:
    """The tasks and where they train, in columns, and how to start them."""
    keys = list(dict.fromkeys(key for task in sweep.tasks for key in task.values))
    rows = [["task", *keys, "state", "run folder"]]
    for task, config in zip(sweep.tasks, configs, strict=True):
        folder = Path(config.runs) / config.name
        values = [_said(shown(task.values[key])) if key in task.values else "" for key in keys]
        rows.append([str(task.number), *values, state_of(folder) or "", str(folder)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    count, named = len(sweep.tasks), f" --array {array}" if array else ""
    return "\n".join(
        [
            f"{sweep.file}: {count} tasks of {sweep.tasks[0].recipe}",
            "",
            *lines,
            "",
            f"on a cluster  launch/slurm/submit.sh --array=0-{count - 1} launch/slurm/sweep.sbatch "
            f"{sweep.file}{named}",
            f"here          python -m pretrain sweep {sweep.file} --run{named}",
            f"compare       python -m pretrain compare {configs[0].runs}",
        ]
    )


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class _Parser(argparse.ArgumentParser):
    """Errors are ValueErrors, which `python -m pretrain` turns into one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"sweep: {message}")


def parser() -> argparse.ArgumentParser:
    """The arguments of `python -m pretrain sweep`."""
    made = _Parser(
        prog="pretrain sweep",
        allow_abbrev=False,
        description="The tasks of a sweep file as a table; or train them on this machine, one "
        "after another. Further flags are overrides of the recipe, for every task.",
    )
    made.add_argument(
        "file", metavar="FILE", help="sweep file, as launch/sweeps/optimus_lambda.yaml"
    )
    what = made.add_mutually_exclusive_group()
    what.add_argument("--count", action="store_true", help="print the number of tasks alone")
    what.add_argument("--run", action="store_true", help="train all tasks that are not finished")
    what.add_argument("--task", type=int, metavar="N", help="train this one")
    made.add_argument(
        "--array", metavar="ID",
        help="number that names the runs, as that of a job array whose tasks are to go on here",
    )  # fmt: skip
    made.add_argument(
        "--launch", metavar="COMMAND", default=f"{shlex.quote(sys.executable)} -m pretrain train",
        help="what trains a task, as 'torchrun --nproc_per_node 2 launch/pretrain_glm.sh'; "
        "default: one rank",
    )  # fmt: skip
    return made


def main(argv: Sequence[str]) -> tuple[str | None, int]:
    """What the command line asks for: the text to print, if any, and the exit code."""
    chosen, flags = parser().parse_known_args(argv)
    sweep = read_sweep(chosen.file)
    if chosen.count:
        return str(len(sweep.tasks)), 0
    if chosen.task is not None:
        sweep = Sweep(sweep.name, sweep.file, (sweep.task(chosen.task),))
    configs = checked(sweep, chosen.array, flags)
    if chosen.run or chosen.task is not None:
        command = shlex.split(chosen.launch)
        return None, train_here(sweep.tasks, configs, chosen.array, command, flags)
    return table(sweep, configs, chosen.array), 0

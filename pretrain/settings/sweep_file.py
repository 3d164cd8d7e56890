"""A sweep: one recipe trained many times with other settings, numbered tasks of a job array.

    name: lambda                          # the folder of its runs; by default the file's name
    recipe: ../recipes/glm_base.yaml      # counts from the folder of this file
    settings: {steps: 2000}               # of every task, over the recipe
    grid:                                 # every combination; the last key changes fastest
      optimizer.lr: [1.0e-3, 5.0e-4, 2.0e-4]
      seed: [1, 2]

or, instead of `grid`, a list with the settings of each task:

    tasks:
      - {optimizer.lr: 1.0e-3}
      - {optimizer.lr: 5.0e-4, batch.global_rows: 32}

Keys are those of recipes, dotted or nested. Task N (from 0) trains in RUNS/NAME/ARRAY_N-SETTINGS,
keyed by the number of the job array and the task: the same folder after a requeue.
"""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
import yaml

from pretrain.settings.dotted import flat, short, shown

KEYS = ("name", "recipe", "settings", "grid", "tasks")
NOT_SWEPT = ("name", "runs", "config")  # they follow from the sweep
LONGEST_LABEL = 100  # characters of a folder's name that tell its settings


@dataclass(frozen=True)
class Task:
    """One run of a sweep."""

    sweep: str
    file: str
    recipe: str
    number: int
    values: dict[str, Any]  # what this task sets beside the others, by dotted key
    settings: dict[str, Any]  # what all tasks set
    label: str  # `values` in a folder's name
    array: str | None = None  # number of the job array

    @property
    def key(self) -> str:
        """ARRAY_N, or N outside of an array: the same after a requeue."""
        return f"{self.array}_{self.number}" if self.array else str(self.number)

    @property
    def name(self) -> str:
        """Name of the run."""
        return f"{self.key}-{self.label}"

    def arguments(self) -> list[str]:
        """What `python -m pretrain train` is told to train it."""
        flags = ["--config", self.recipe]
        if own := {**self.settings, **self.values}:
            flags += ["--config", yaml.safe_dump(own, default_flow_style=True, width=2**20)]
        return flags

    def check_folder(self, runs: Path) -> None:
        """Raise ValueError where this task was begun in `runs` with other settings."""
        for other in sorted(runs.glob(f"{self.key}-*")) if runs.is_dir() else ():
            if other.is_dir() and other.name != self.name:
                raise ValueError(
                    f"{self.file}: task {self.number} is now {self.label}, but {other} was begun "
                    "as the same task. Put the sweep file back as it was, remove that folder, or "
                    "give the sweep another name."
                )


@dataclass(frozen=True)
class Sweep:
    """All tasks of a sweep file, in the order of their numbers."""

    name: str
    file: str
    tasks: tuple[Task, ...]

    def task(self, number: int, array: str | None = None) -> Task:
        """Task `number`. Raises ValueError where there is none."""
        if not 0 <= number < len(self.tasks):
            raise ValueError(
                f"{self.file} has tasks 0 to {len(self.tasks) - 1}, there is no task {number}. "
                f"Submit it with --array=0-{len(self.tasks) - 1}."
            )
        task = self.tasks[number]
        return Task(**{**vars(task), "array": array})


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that stands twice in one mapping is an error, not the last one's."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(str(self.construct_object(key, deep=True)) for key, _ in node.value)
        for key, times in keys.items():
            if times > 1:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"{key!r} stands twice in the mapping of line {line}")
        return super().construct_mapping(node, deep)


def read_sweep(file: str) -> Sweep:
    """The tasks of a sweep file.

    Raises ValueError, naming the file, for what is wrong in it. Keys and values of recipes are
    checked by who parses a task (pretrain/settings/cli.py).
    """
    said = _said(file)
    if unknown := sorted(set(said) - set(KEYS)):
        raise ValueError(
            f"{file}: unknown key '{unknown[0]}'. A sweep file has {', '.join(KEYS[:-2])}, and "
            "grid or tasks."
        )
    name = str(said.get("name", Path(file).stem))
    if not re.fullmatch(r"[\w+-][\w.+-]*", name):
        raise ValueError(f"{file}: name must be a plain folder name, got {name!r}.")
    if not isinstance(said.get("recipe"), str):
        raise ValueError(
            f"{file}: recipe must name a recipe, counted from this file's folder, got "
            f"{said.get('recipe')}."
        )
    recipe = os.path.normpath(Path(file).parent / said["recipe"])
    settings = _settings(said.get("settings") or {}, f"{file}: settings")
    tasks = _tasks(said, file)
    _refuse_repeated(tasks, file)
    labels = short({key for values in tasks for key in values})
    return Sweep(
        name,
        file,
        tuple(
            Task(name, file, recipe, number, values, settings, _label(values, labels))
            for number, values in enumerate(tasks)
        ),
    )


def _said(file: str) -> dict[str, Any]:
    if not Path(file).is_file():
        raise ValueError(f"{file}: no such sweep file. Those of this repository: launch/sweeps/.")
    try:
        said = yaml.load(Path(file).read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = re.sub(r' in "<unicode string>",', " in", str(error))
        raise ValueError(f"{file}: not a sweep file in YAML: {problem}") from error
    if not isinstance(said, dict):
        raise ValueError(f"{file}: a sweep file is a mapping with {', '.join(KEYS)}, got {said}.")
    return said


def _tasks(said: Mapping[str, Any], file: str) -> list[dict[str, Any]]:
    """What each task sets, by dotted key."""
    if ("grid" in said) == ("tasks" in said):
        found = "both" if "grid" in said else "neither"
        raise ValueError(f"{file}: give either grid or tasks, got {found}.")
    if "tasks" in said:
        tasks = said["tasks"]
        if not isinstance(tasks, list) or not tasks:
            raise ValueError(f"{file}: tasks must be a list of at least one task, got {tasks}.")
        return [_settings(t or {}, f"{file}: task {n}") for n, t in enumerate(tasks)]
    grid = _settings(said["grid"] or {}, f"{file}: grid")
    if not grid:
        raise ValueError(f"{file}: the grid is empty. Name keys with lists of values.")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(
                f"{file}: grid.{key} must be a list of at least one value, got {values}."
            )
    return [
        flat(dict(zip(grid, combination, strict=True)))
        for combination in itertools.product(*grid.values())
    ]


def _settings(said: Any, where: str) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise ValueError(f"{where} must be settings of a recipe (key: value), got {said}.")
    settings = flat(said)
    for key in settings:
        if key in NOT_SWEPT:
            raise ValueError(f"{where}: {key} follows from the sweep and cannot be set in it.")
    return settings


def _refuse_repeated(tasks: Sequence[Mapping[str, Any]], file: str) -> None:
    seen: dict[str, int] = {}
    for number, values in enumerate(tasks):
        first = seen.setdefault(json.dumps(values, sort_keys=True, default=str), number)
        if first != number:
            raise ValueError(
                f"{file}: tasks {first} and {number} are the same: {json.dumps(values)}. Leave "
                "out one of them, or give each its own seed."
            )


def _label(values: Mapping[str, Any], short: Mapping[str, str]) -> str:
    """`values` as a part of a folder's name: lr=0.001,seed=2."""
    if not values:
        return "as-recipe"
    said = ",".join(f"{short[key]}={_word(shown(value))}" for key, value in values.items())
    plain = re.sub(r"[^\w.,=+-]+", "_", said)
    if len(plain) <= LONGEST_LABEL:
        return plain
    return f"{plain[: LONGEST_LABEL - 9]}-{xxhash.xxh32_hexdigest(said.encode())}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))

"""Recipes and dotted flags into a `Config`; one line and exit code 2 for a user's mistake.

    python -m pretrain train --config launch/recipes/debug.yaml --optimizer.lr 1e-3

jsonargparse reads YAML recipes (a line `config: base.yaml` in a recipe is read first) and
overrides; later ones win. Unknown keys, wrong types and values out of range are errors that name
the file or the flag.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from jsonargparse import (
    ArgumentError,
    ArgumentParser,
    get_loader,
    set_loader,
    set_parsing_settings,
)

from data_pipeline.command_line import ReadableParser, config_files, yaml_problem
from data_pipeline.reading.file_kinds import scrubbed
from pretrain.settings.config import Config
from pretrain.settings.data_config import corpora_problem
from pretrain.settings.dotted import flat, shown
from pretrain.settings.mistakes import say
from pretrain.settings.sweep_file import Task
from pretrain.settings.sweep_task import task_of_command_line
from pretrain.settings.told import hide

set_parsing_settings(docstring_parse_attribute_docstrings=True)

# Stand-ins for what a recipe may leave to the command line, so that it can be read alone.
_REQUIRED = ("--name=unnamed", "--steps=1")

# Taken from the command line before it is parsed; here for --help.
SWEEP_FLAGS = {
    "--sweep": "a sweep file, whose task is trained: its recipe and settings",
    "--task": "number of that task, from 0; by default SLURM_ARRAY_TASK_ID",
    "--array": "number that names the sweep's runs; by default SLURM_ARRAY_JOB_ID, else none",
}


def _load_flat(text: str) -> Any:
    """YAML with nested keys written dotted: {"a": {"b": 1}} becomes {"a.b": 1}.

    jsonargparse lets a nested mapping replace its whole group, so that a recipe which inherits from
    another and says `model: {hidden_size: 64}` would set the rest of `model` back to defaults, in
    silence.
    """
    loaded = get_loader("yaml")(text)
    return flat(loaded) if isinstance(loaded, dict) else loaded


set_loader("flat_yaml", _load_flat, (yaml.YAMLError,))


class OneLineParser(ReadableParser):
    """A parser whose errors are one line on stderr and exit code 2."""

    origin = ""  # what stands before its errors: the task of a sweep

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Write `message`, shortened to what the user can act on, and leave with exit code 2."""
        if found := re.search(r"arguments are required: (name|steps)", message):
            message = (
                f"{found[1]} is not given. Name a recipe: --config RECIPE, as "
                "launch/recipes/debug.yaml, or give what it lacks."
            )
        say(self.origin + self.readable(message), agreed=False)
        sys.exit(2)


def train_parser() -> OneLineParser:
    """The parser of `python -m pretrain train`."""
    parser = OneLineParser(
        prog="pretrain train",
        parser_mode="flat_yaml",
        description="Train from a recipe under DeepSpeed: one rank, or many under a launcher.",
    )
    parser.add_argument(
        "--config", action="config", help="recipe (YAML); may be given several times"
    )
    for flag, about in SWEEP_FLAGS.items():
        parser.add_argument(flag, type=str | None, default=None, help=about)
    parser.add_argument(
        "--resume",
        type=str | None,
        default=None,
        help="auto: go on from the newest complete checkpoint of the run folder, or start where "
        "there is none; PATH: go on from that checkpoint folder",
    )
    parser.add_argument(
        "--init-from",
        type=str | None,
        default=None,
        help="begin with the weights of another run and everything else anew: a run folder, one of "
        "its checkpoints, or a folder that `export` wrote",
    )
    parser.add_class_arguments(Config, None, fail_untyped=True)
    return parser


class Start(NamedTuple):
    """How a run begins: afresh, on from a checkpoint, or with the weights of another run."""

    resume: str | None = None  # auto, or the path of a checkpoint
    init_from: str | None = None  # path of a run, a checkpoint or an exported folder
    task: Task | None = None  # of a sweep, which the run is


def parse_train(argv: Sequence[str]) -> tuple[Config, Start]:
    """The config and the beginning that `argv` asks for; leaves with exit code 2 on a mistake.

    Launchers put --local_rank=N before the user's arguments; the rank is read from the environment
    instead.
    """
    args = [a for a in argv if not a.startswith(("--local_rank", "--local-rank"))]
    parser = train_parser()
    task, args = task_of_command_line(args)
    for file in [task.recipe] if task else config_files(args):
        _check_recipe(parser, file)
    _check_corpora(parser, args)
    if task:
        parser.origin = f"{task.file}, task {task.number}: "
        args = [f"--name={task.name}", *task.arguments(), *args]
    parsed = parser.parse_args(args)
    try:
        made = parser.instantiate(parsed)
    except ValueError as error:
        parser.error(str(error))
    beside = ("config", "resume", "init_from", *(flag[2:] for flag in SWEEP_FLAGS))
    config = _config(parser, {k: v for k, v in vars(made).items() if k not in beside})
    if task:
        config = replace(config, name=task.name, runs=str(Path(config.runs) / task.sweep))
        task.check_folder(Path(config.runs))
    hide([asdict(config), made.init_from])
    return config, Start(made.resume, made.init_from, task)


def _config(parser: OneLineParser, values: dict[str, Any]) -> Config:
    try:
        return Config(**values)
    except ValueError as error:
        parser.error(str(error))


def _check_recipe(parser: OneLineParser, file: str) -> None:
    """Read one recipe alone, so that an error in it names its file."""
    if not Path(file).is_file():
        parser.error(
            f"--config {file}: no such file. Recipes of this repository lie in launch/recipes/."
        )
    if problem := yaml_problem(file):
        parser.error(f"{file}: not a YAML recipe: {problem}")
    said = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    named = flat(said).get("data.corpora") if isinstance(said, dict) else None
    if problem := corpora_problem(named):
        parser.error(f"{file}: {problem}")
    plain = ArgumentParser(exit_on_error=False, parser_mode="flat_yaml")
    plain.add_argument("--config", action="config")
    plain.add_class_arguments(Config, None, fail_untyped=True)
    try:
        plain.parse_args([*_REQUIRED, "--config", file])
    except (ArgumentError, TypeError, ValueError, KeyError) as error:
        parser.error(f"{file}: {error}")


def _check_corpora(parser: OneLineParser, args: Sequence[str]) -> None:
    """Read --data.corpora alone, since jsonargparse speaks of the inside of an entry only."""
    for place, flag in enumerate(args):
        name, given, value = flag.partition("=")
        if name != "--data.corpora":
            continue
        try:
            said = yaml.safe_load(value if given else " ".join(args[place + 1 : place + 2]))
        except yaml.YAMLError as error:
            parser.error(f"--data.corpora is not YAML: {error}")
        if problem := corpora_problem(said):
            parser.error(problem)


def config_to_yaml(config: Config) -> str:
    """`config` as a recipe that `--config` reads back into an equal value, but for the secrets of
    URLs, which it does not hold."""
    plain = shown(_plain(asdict(config)))
    plain["evaluation"]["texts"] = [scrubbed(text) for text in config.evaluation.texts]
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def config_from_yaml(path: Path) -> Config:
    """The config that `config_to_yaml` wrote at `path`.

    Raises ValueError naming the file where it is missing or not a config of this version.
    """
    if not path.is_file():
        raise ValueError(
            f"{path} is missing; a run folder holds config.yaml. Check the path of the run."
        )
    parser = ArgumentParser(exit_on_error=False, parser_mode="flat_yaml")
    parser.add_class_arguments(Config, None, fail_untyped=True)
    try:
        made = parser.instantiate(parser.parse_string(path.read_text(encoding="utf-8")))
    except (ArgumentError, TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is not a config of this version: {error}") from error
    return Config(**vars(made))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value

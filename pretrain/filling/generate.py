"""Blanks filled with a trained run: `python -m pretrain generate RUN --text "The [MASK] of war."`

    run = load_run(Path("runs/demo"))
    fill(run.backbone, run.tokenizer, ["The [MASK] of war."], blanks=run.blanks)[0].filled

What is written into the blanks, and how, is told in filling/fill.py.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from data_pipeline.tokenizing.tokenizer import open_tokenizer
from pretrain.checkpoints.weights import WeightFiles
from pretrain.filling.fill import Filled, FilledBlank, fill
from pretrain.filling.sampling import STRATEGIES, FillSettings
from pretrain.filling.text import check_blanks
from pretrain.handing_over.trained import TrainedRun, backbone_of
from pretrain.models.backbone import num_positions

__all__ = ["Filled", "FilledBlank", "FillSettings", "TrainedRun", "fill", "load_run", "main"]


def load_run(folder: Path, step: int | None = None) -> TrainedRun:
    """The model of a run folder after `step` updates (None: the newest checkpoint), in fp32.

    folder: of a run, or one that `export` wrote, which knows no steps. The model lies on the GPU
    where there is one. Raises ValueError where the folder or a file of it is missing, damaged or of
    another model.
    """
    from pretrain.checkpoints.checkpoint_files import checked_weights, choose
    from pretrain.handing_over import exported
    from pretrain.recording.run_folder import RunFolder
    from pretrain.settings.cli import config_from_yaml

    if exported.is_exported(folder):
        if step is not None:
            raise ValueError(
                f"{folder} is an exported model, it holds one step. Leave out the step."
            )
        return exported.load(folder)
    run = RunFolder(folder)
    config = config_from_yaml(run.config)
    if "glm" not in config.objectives.chosen:
        raise ValueError(
            f"{folder} has not learned to fill blanks, but {', '.join(config.objectives.chosen)}. "
            "Give a run with objectives.glm.weight above 0."
        )
    saved = choose(folder, step)
    backbone = backbone_of(
        WeightFiles.open([checked_weights(saved)]),
        config.model,
        num_positions=num_positions(config.model, config.data.packing.source_tokens),
        source=saved,
    )
    return TrainedRun(backbone, open_tokenizer(run.tokenizer), config.objectives.glm.blanks)


_ONLY_WITH = {
    "sample": ("temperature", "top_k", "top_p"),
    "beam": ("num_beams", "length_penalty"),
}
_ALWAYS = {
    "max_tokens": "longest filling of a blank, in tokens",
    "min_tokens": "shortest filling of a blank, in tokens",
    "repetition_penalty": "above 1: what a blank already holds becomes less probable",
    "no_repeat_ngram": "no sequence of this many tokens twice in a blank; 0: any",
    "batch_texts": "texts that go through the model together",
    "seed": "of the draws",
}


class _Parser(argparse.ArgumentParser):
    """Errors are ValueErrors, which `python -m pretrain` turns into one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"generate: {message}")


def parser() -> argparse.ArgumentParser:
    """The arguments of `python -m pretrain generate`."""
    made = _Parser(prog="pretrain generate", description="Fill blanks and continue texts.")
    made.add_argument("run", type=Path, metavar="RUN", help="run folder, or exported model")
    texts = made.add_mutually_exclusive_group(required=True)
    texts.add_argument(
        "--text",
        action="append",
        help="text with [MASK] (words), [sMASK] (a sentence), [gMASK] (a passage; at the end of "
        "the text: its continuation); may be given several times",
    )
    texts.add_argument("--input", type=Path, help="file with one such text a line")
    made.add_argument("--json", action="store_true", help="print all there is to know, as JSON")
    made.add_argument("--checkpoint", type=int, metavar="STEP", help="default: the newest")
    made.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default=FillSettings.strategy,
        help="the most probable token each time, one drawn at random, or the best of several "
        "fillings that are followed at once; default %(default)s",
    )
    for strategy, names in _ONLY_WITH.items():
        for name in names:
            default = getattr(FillSettings, name)
            said = f"with {strategy}; default {default}"
            made.add_argument(_flag(name), type=type(default), default=None, help=said)
    for name, said in _ALWAYS.items():
        default = getattr(FillSettings, name)
        made.add_argument(
            _flag(name), type=type(default), default=default, help=f"{said}; default {default}"
        )
    return made


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def settings_of(arguments: argparse.Namespace) -> FillSettings:
    """The settings that the command line asks for; ValueError where they contradict each other."""
    given = {name: getattr(arguments, name) for name in _ALWAYS}
    for strategy, names in _ONLY_WITH.items():
        chosen = {n: value for n in names if (value := getattr(arguments, n)) is not None}
        if chosen and arguments.strategy != strategy:
            raise ValueError(
                f"{', '.join(map(_flag, chosen))} has no effect with --strategy "
                f"{arguments.strategy}. Add --strategy {strategy}."
            )
        given |= chosen
    return FillSettings(strategy=arguments.strategy, **given)


def texts_of(arguments: argparse.Namespace) -> list[str]:
    """The texts of --text, or the lines of --input that are not empty; ValueError for a bad one."""
    if arguments.text is not None:
        for text in arguments.text:
            check_blanks(text, "--text")
        return arguments.text
    try:
        lines = arguments.input.read_bytes().decode().removeprefix("\ufeff").splitlines()
    except OSError as error:
        raise ValueError(
            f"--input {arguments.input} cannot be read: {error.strerror}. Name a file of texts."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"--input {arguments.input} is not UTF-8 at byte {error.start} (from 0). Convert it "
            "to UTF-8."
        ) from None
    texts = {number: line for number, line in enumerate(lines, start=1) if line.strip()}
    for number, line in texts.items():
        check_blanks(line, f"{arguments.input}, line {number},")
    if not texts:
        raise ValueError(f"--input {arguments.input} holds no text. Write one with a blank a line.")
    return list(texts.values())


def main(argv: Sequence[str] | None = None) -> None:
    """Fill the texts that the command line names and write them to standard output."""
    arguments = parser().parse_args(argv)
    settings, texts = settings_of(arguments), texts_of(arguments)
    run = load_run(arguments.run, arguments.checkpoint)
    filled = fill(run.backbone, run.tokenizer, texts, settings, blanks=run.blanks)
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(one) for one in filled], ensure_ascii=False, indent=1))
        sys.stdout.write("\n")
    else:
        sys.stdout.writelines(f"{one.filled}\n" for one in filled)

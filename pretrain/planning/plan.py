"""A run planned before it is paid for: `python -m pretrain plan --config RECIPE --gpus 8`.

    plan = plan_run(config, num_gpus=8, gpu=GPUS["h200"], mfu=0.4)
    print(in_words(plan))

Memory of one GPU by part, bytes of a checkpoint, tokens and traffic of an update, days at a stated
utilisation. Nothing is built and no GPU is needed: every number follows from the recipe,
DeepSpeed's JSON and the rows that the planner of data_pipeline packs. Of GLM without torch, so that
it answers at once; other objectives, and what learns of a frozen model, are asked themselves
(outline.py).
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from pretrain.models.shape import padded_vocabulary
from pretrain.planning.gpus import GPUS, Gpu
from pretrain.planning.in_words import in_words
from pretrain.planning.planner import Planner, checkpoints_on_disk
from pretrain.planning.rows import RowContent, glm_contents, mean_content, vocabulary_of
from pretrain.planning.values import Plan
from pretrain.settings.config import Config
from pretrain.settings.data_config import CorpusConfig
from pretrain.settings.told import told

__all__ = ["GPUS", "Plan", "checkpoints_on_disk", "in_words", "main", "plan_run"]


def plan_run(
    config: Config, *, num_gpus: int, gpu: Gpu, mfu: float = 0.4, vocab_size: int | None = None
) -> Plan:
    """The plan of `config` on `num_gpus` GPUs at model FLOP utilisation `mfu`.

    vocab_size: ids in use; None takes those of the shards, or an assumption that the plan names.
    Raises ValueError where the ranks do not divide the batch, or DeepSpeed's file contradicts the
    recipe.
    """
    if num_gpus < 1:
        raise ValueError(f"--gpus must be at least 1, got {num_gpus}.")
    if not 0 < mfu <= 1:
        raise ValueError(f"--mfu must lie in (0, 1], got {mfu}.")
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"--vocab-size must be at least 1, got {vocab_size}.")
    stored_ids = vocabulary_of([c.shards for c in config.data.sources])
    encoder, is_plain = None, _is_plain(config)
    if is_plain:
        corpora = [(c, {"glm": held}) for c, held in glm_contents(config, vocab_size or stored_ids)]
    else:
        from pretrain.planning.outline import outline_of, planned_rows  # with torch

        corpora, encoder = planned_rows(config, vocab_size or stored_ids)
    rows = {
        name: mean_content([(c.weight, held[name]) for c, held in corpora])
        for name in config.objectives.chosen
    }
    outline = None
    if not is_plain:
        ids = padded_vocabulary(max(held.vocab_size for held in rows.values()))
        outline = outline_of(config, ids, encoder)
    origin = _vocabulary_origin(vocab_size, stored_ids)
    planner = Planner(config, num_gpus, rows, outline)
    return planner.plan(gpu, mfu, origin, _epochs(config, corpora))


def _is_plain(config: Config) -> bool:
    """Whether GLM is all that is learned, with the whole backbone and nothing else."""
    model = config.model
    is_glm = config.objectives.chosen == ["glm"] and config.trains == "all"
    return is_glm and not model.lora_rank and not model.prefix_slots


def _epochs(
    config: Config, corpora: Sequence[tuple[CorpusConfig, Mapping[str, RowContent]]]
) -> dict[str, float]:
    """Passes of the run over each corpus that is known, by its name; where there are several
    objectives, each of which goes through it by itself, by theirs too."""
    total = sum(corpus.weight for corpus, _ in corpora)
    run_rows = config.steps * config.batch.global_rows
    several = len(config.objectives.chosen) > 1
    return {
        f"{corpus.called} ({name})" if several else corpus.called: (
            run_rows * corpus.weight / total * content.source_tokens / tokens
        )
        for corpus, rows in corpora
        for name, content in rows.items()
        if (tokens := content.corpus_tokens)
    }


def _vocabulary_origin(vocab_size: int | None, stored_ids: int | None) -> str:
    if vocab_size is not None:
        return "from --vocab-size"
    return "of the shards" if stored_ids else "assumed; --vocab-size says otherwise"


class _Parser(argparse.ArgumentParser):
    """Errors are ValueErrors, which `python -m pretrain` turns into one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"plan: {message}")


def parser() -> argparse.ArgumentParser:
    """The arguments of `python -m pretrain plan` beside the recipe's."""
    made = _Parser(
        prog="pretrain plan",
        allow_abbrev=False,
        description="Memory, disk, traffic and days of a run, before it is started.",
        epilog="Everything else is the recipe's: --config FILE and dotted settings, as in "
        "`pretrain train --help`.",
    )
    made.add_argument("--gpus", type=int, required=True, metavar="N", help="GPUs of the run")
    made.add_argument("--gpu", choices=sorted(GPUS), default="h200", help="default: h200")
    made.add_argument(
        "--mfu", type=float, default=0.4, help="model FLOP utilisation to reckon with; default 0.4"
    )
    made.add_argument(
        "--vocab-size",
        type=int,
        metavar="IDS",
        help="ids in use; by default those of the prepared shards",
    )
    made.add_argument("--json", action="store_true", help="print all there is to know, as JSON")
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Write the plan that the command line asks for to standard output."""
    if argv and "--scale" in argv:
        from pretrain.planning.scale import main as scale

        scale(argv)
        return
    arguments, rest = parser().parse_known_args(argv)
    from pretrain.settings.cli import parse_train

    config, start = parse_train(rest)
    for flag, value in start._asdict().items():
        if value is not None:
            name = flag.replace("_", "-")
            raise ValueError(f"plan: --{name} has no effect on a plan. Leave it out.")
    if idle := config.idle_additions():
        sys.stderr.write(f"plan: {idle}\n")
    plan = plan_run(
        config,
        num_gpus=arguments.gpus,
        gpu=GPUS[arguments.gpu],
        mfu=arguments.mfu,
        vocab_size=arguments.vocab_size,
    )
    text = json.dumps(plan.as_json(), indent=1) if arguments.json else in_words(plan)
    sys.stdout.write(f"{told(text)}\n")

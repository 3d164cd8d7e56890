"""A run planned before it is paid for: `python -m pretrain plan --config RECIPE --gpus 8`.

    plan = plan_run(config, num_gpus=8, gpu=GPUS["h200"], mfu=0.4)
    print(in_words(plan))

Memory of one GPU by part, bytes of a checkpoint, tokens and traffic of an update, days at a stated
utilisation. Nothing is built and no GPU is needed: every number follows from the recipe,
DeepSpeed's JSON and the rows that the planner of data_pipeline packs. No torch here, so that it
answers at once.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from pretrain.models.flop import training_flop
from pretrain.models.shape import padded_vocabulary
from pretrain.planning.activations import FP32, MicroBatch, activation_bytes
from pretrain.planning.gpus import GPUS, Gpu
from pretrain.planning.in_words import in_words
from pretrain.planning.rows import RowContent, mean_content, row_content, vocabulary_of
from pretrain.planning.state import (
    Zero,
    backward_buffer_bytes,
    checkpoint_bytes,
    parameter_sizes,
    rank_state,
    sent_bytes,
    update_buffer_bytes,
)
from pretrain.planning.values import Memory, Plan
from pretrain.settings import deepspeed_settings
from pretrain.settings.config import Config
from pretrain.settings.data_config import CorpusConfig

__all__ = ["GPUS", "Plan", "in_words", "main", "plan_run"]

RESERVED_BYTES = 2 * 1024**3  # CUDA context, NCCL, cuBLAS
FRAGMENTATION = 0.05  # of the allocator's bytes
SECONDS_PER_DAY = 86_400


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
    corpora = contents(config, vocab_size or stored_ids)
    rows = mean_content([(c.weight, content) for c, content in corpora])
    origin = _vocabulary_origin(vocab_size, stored_ids)
    return Planner(config, num_gpus, rows).plan(gpu, mfu, origin, _epochs(config, corpora))


def contents(config: Config, vocab_size: int | None) -> list[tuple[CorpusConfig, RowContent]]:
    """What a packed row of each corpus holds. Raises ValueError for another objective than GLM."""
    others = [name for name in config.objectives.chosen if name != "glm"]
    if others:
        raise ValueError(
            "a plan counts memory and arithmetic of GLM alone so far, and this recipe trains "
            f"{', '.join(others)}. Leave them out: --objectives.{others[0]}.weight 0."
        )
    blanks, packing, seed = config.objectives.glm.blanks, config.data.packing, config.seed
    return [
        (c, row_content(c.shards, packing, blanks, vocab_size=vocab_size, seed=seed))
        for c in config.data.sources
    ]


def _epochs(config: Config, corpora: Sequence[tuple[CorpusConfig, RowContent]]) -> dict[str, float]:
    """Passes of the run over each corpus that is known, by its name."""
    total = sum(corpus.weight for corpus, _ in corpora)
    run_rows = config.steps * config.batch.global_rows
    return {
        corpus.called: run_rows * corpus.weight / total * content.source_tokens / tokens
        for corpus, content in corpora
        if (tokens := content.corpus_tokens)
    }


class Planner:
    """What the parts of a plan share."""

    def __init__(self, config: Config, num_gpus: int, rows: RowContent) -> None:
        self.config, self.num_gpus, self.rows = config, num_gpus, rows
        self.precision = "bf16" if config.precision == "auto" else config.precision
        self.weight_bytes = 2 if self.precision == "bf16" else FP32
        self.accumulation = config.batch.accumulation(num_gpus)
        self.zero = Zero.of(self._settings())
        self.vocab_size = padded_vocabulary(rows.vocab_size)
        self.sizes = parameter_sizes(
            config.model,
            vocab_size=self.vocab_size,
            num_positions=config.model.table_rows(config.data.packing.source_tokens),
        )
        self.num_parameters = sum(self.sizes)

    def _settings(self) -> dict[str, Any]:
        default = deepspeed_settings.REPOSITORY / "ds_config.json"
        return deepspeed_settings.complete(
            Path(self.config.deepspeed_config or default),
            micro_rows=self.config.batch.micro_rows,
            accumulation=self.accumulation,
            world_size=self.num_gpus,
            gradient_clipping=self.config.optimizer.gradient_clipping,
            precision="bf16" if self.precision == "bf16" else "fp32",
            reduction_dtype=self.config.numerics.reduction_dtype,
        )

    def memory(self, micro_rows: int) -> Memory:
        """Memory of one GPU with `micro_rows` rows a micro-batch."""
        how: dict[str, Any] = {
            "zero": self.zero, "ranks": self.num_gpus, "weight_bytes": self.weight_bytes
        }  # fmt: skip
        state = rank_state(self.num_parameters, **how)
        batch = MicroBatch(
            micro_rows, self.config.data.packing.row_tokens, micro_rows * self.rows.targets
        )
        kept = activation_bytes(
            self.config.model,
            batch,
            vocab_size=self.vocab_size,
            element_bytes=self.weight_bytes,
            layers_per_checkpoint=self.config.memory.layers_per_checkpoint,
        )
        backward = backward_buffer_bytes(self.sizes, **how) + self._temporaries(batch)
        update = update_buffer_bytes(self.num_parameters, **how)
        in_update = update > kept + backward
        on_host = 0.0
        if self.zero.optimizer_place != "gpu":
            gradients = FP32 * self.num_parameters / self.num_gpus
            on_host += state.optimizer + gradients
            state = replace(state, optimizer=0.0, gradients=0.0)
        if self.zero.weights_place != "gpu":
            on_host += state.weights
            state = replace(state, weights=0.0)
        used = state.weights + state.gradients + state.optimizer + max(update, kept + backward)
        return Memory(
            weights=state.weights,
            gradients=state.gradients,
            optimizer=state.optimizer,
            activations=0.0 if in_update else kept,
            buffers=update if in_update else backward,
            peak_at="update" if in_update else "backward",
            reserved=RESERVED_BYTES + FRAGMENTATION * used,
            on_host=on_host,
        )

    def _temporaries(self, batch: MicroBatch) -> float:
        """What the first operations of backward hold at once: the gradients of log-probabilities
        and logits, or those of one feed-forward, whichever is more."""
        loss = batch.targets * self.vocab_size * (2 * FP32)
        stream = batch.positions * self.config.model.hidden_size * self.weight_bytes
        return max(loss, 9 * stream)

    def largest_micro_rows(self, gpu: Gpu) -> int | None:
        """The largest micro-batch that divides the batch among the ranks and fits."""
        rows = self.config.batch.global_rows // self.num_gpus
        fitting = [
            m
            for m in range(1, rows + 1)
            if rows % m == 0 and self.memory(m).total <= gpu.memory_bytes
        ]
        return max(fitting, default=None)

    def plan(self, gpu: Gpu, mfu: float, vocabulary_origin: str, epochs: dict[str, float]) -> Plan:
        """All parts together."""
        config, rows = self.config, self.rows
        batch, packing = config.batch, config.data.packing
        memory = self.memory(batch.micro_rows)
        flop = training_flop(
            config.model,
            vocab_size=self.vocab_size,
            tokens=batch.global_rows * rows.tokens,
            visible_pairs=batch.global_rows * rows.visible_pairs,
            targets=batch.global_rows * rows.targets,
        )
        source_tokens = batch.global_rows * rows.source_tokens
        rate = self.num_gpus * gpu.peak_flop_per_s(self.precision) * mfu
        return Plan(
            name=config.name,
            num_gpus=self.num_gpus,
            gpu=gpu,
            precision=self.precision,
            zero_stage=self.zero.stage,
            num_parameters=self.num_parameters,
            vocab_size=self.vocab_size,
            vocabulary_origin=vocabulary_origin,
            rows_origin=rows.origin,
            global_rows=batch.global_rows,
            row_tokens=packing.row_tokens,
            micro_rows=batch.micro_rows,
            accumulation=self.accumulation,
            steps=config.steps,
            source_tokens_per_step=source_tokens,
            tokens_per_step=batch.global_rows * rows.tokens,
            positions_per_step=batch.global_rows * packing.row_tokens,
            targets_per_step=batch.global_rows * rows.targets,
            epochs=epochs,
            memory=memory,
            fits=memory.total <= gpu.memory_bytes,
            largest_micro_rows=self.largest_micro_rows(gpu),
            checkpoint=checkpoint_bytes(self.num_parameters, weight_bytes=self.weight_bytes),
            checkpoints_on_disk=checkpoints_on_disk(config),
            sent_bytes_per_step=sent_bytes(
                self.num_parameters,
                zero=self.zero,
                ranks=self.num_gpus,
                weight_bytes=self.weight_bytes,
                accumulation=self.accumulation,
            ),
            flop_per_step=flop,
            mfu=mfu,
            days=config.steps * flop / rate / SECONDS_PER_DAY,
        )


def checkpoints_on_disk(config: Config) -> int:
    """The most complete checkpoints that stay side by side, and the one being written."""
    rules = config.checkpoints
    for_good = 0
    if rules.keep_every and rules.every_steps:
        for_good = config.steps // math.lcm(rules.keep_every, rules.every_steps)
    return rules.keep_last + rules.keep_best + for_good + 1


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
    plan = plan_run(
        config,
        num_gpus=arguments.gpus,
        gpu=GPUS[arguments.gpu],
        mfu=arguments.mfu,
        vocab_size=arguments.vocab_size,
    )
    text = json.dumps(plan.as_json(), indent=1) if arguments.json else in_words(plan)
    sys.stdout.write(f"{text}\n")

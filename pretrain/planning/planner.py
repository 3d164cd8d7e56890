"""The numbers of a plan, put together: memory of a GPU, disk, traffic and days of one recipe."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.models.flop import training_flop
from pretrain.models.shape import BackboneShape, padded_vocabulary
from pretrain.planning.activations import FP32
from pretrain.planning.gpus import Gpu
from pretrain.planning.lstm import LstmPass
from pretrain.planning.passes import AnyPass, Pass, passes_of, peak_bytes
from pretrain.planning.rows import RowContent
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

if TYPE_CHECKING:
    from pretrain.planning.outline import Outline

RESERVED_BYTES = 2 * 1024**3  # CUDA context, NCCL, cuBLAS
FRAGMENTATION = 0.05  # of the allocator's bytes
SECONDS_PER_DAY = 86_400


class Planner:
    """What the parts of a plan share."""

    def __init__(
        self,
        config: Config,
        num_gpus: int,
        rows: Mapping[str, RowContent],
        outline: "Outline | None" = None,
    ) -> None:
        """rows: what a row of each objective holds, by its name. outline: None of GLM alone, all
        of which learns."""
        self.config, self.num_gpus, self.rows = config, num_gpus, rows
        self.precision = "bf16" if config.precision == "auto" else config.precision
        self.weight_bytes = 2 if self.precision == "bf16" else FP32
        self.accumulation = config.batch.accumulation(num_gpus)
        self.zero = Zero.of(self._settings())
        self.outline = outline
        ids = max(content.vocab_size for content in rows.values())
        self.vocab_size = padded_vocabulary(ids)
        if outline is None:
            self.trained, self.frozen = self._sizes_of(config.model), ()
        else:
            self.trained, self.frozen = outline.trained, outline.frozen
        self.num_parameters = sum(self.trained) + sum(self.frozen)

    def _sizes_of(self, shape: BackboneShape) -> tuple[int, ...]:
        positions = self.config.model.table_rows(self.config.data.packing.source_tokens)
        return tuple(parameter_sizes(shape, vocab_size=self.vocab_size, num_positions=positions))

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
        trained, frozen = sum(self.trained), sum(self.frozen)
        state = rank_state(trained, frozen=frozen, **how)
        passes = self.passes(micro_rows)
        by_pass = peak_bytes(passes, vocab_size=self.vocab_size, element_bytes=self.weight_bytes)
        kept = sum(by_pass.values()) + self._wide_bytes()
        backward = backward_buffer_bytes(self.trained, frozen=self.frozen, **how)
        backward += max(self._temporaries(one) for one in passes)
        update = update_buffer_bytes(trained, **how)
        in_update = update > kept + backward
        on_host = 0.0
        if self.zero.optimizer_place != "gpu":
            gradients = FP32 * trained / self.num_gpus
            on_host += state.optimizer + gradients
            state = replace(state, optimizer=0.0, gradients=0.0)
        if self.zero.weights_place != "gpu":
            on_host += state.weights
            state, frozen = replace(state, weights=0.0), 0
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
            frozen_weights=state.weights * frozen / self.num_parameters,
            passes={} if in_update or len(by_pass) == 1 else by_pass,
        )

    def passes(self, micro_rows: int) -> list[AnyPass]:
        """All passes of a micro-batch, objective by objective."""
        each = (passes_of(self.config, name, r, micro_rows) for name, r in self.rows.items())
        return [one for passes in each for one in passes]

    def _wide_bytes(self) -> float:
        """Copies in fp32 of the matrices around z, where weights are kept in less."""
        wide = self.outline.wide_size if self.outline and self.weight_bytes < FP32 else 0
        return FP32 * wide

    def _passed(self) -> int:
        """Parameters that a micro-batch passes through; those of a second pass count again."""
        if self.outline is None:
            return self.num_parameters
        of_backbone = [p.shape for p in self.passes(1) if isinstance(p, Pass) and not p.is_own]
        return self.outline.parts_size + sum(sum(self._sizes_of(s)) for s in of_backbone)

    def _temporaries(self, one: AnyPass) -> float:
        """What the first operations of a backward hold at once: the gradients of log-probabilities
        and logits, or those of one feed-forward or all gates, whichever is more."""
        loss = one.batch.targets * self.vocab_size * (2 * FP32)
        if isinstance(one, LstmPass):
            return max(loss, one.working_bytes(self.weight_bytes))
        stream = one.batch.positions * one.shape.hidden_size * self.weight_bytes
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
        config, rows = self.config, self.rows.values()
        batch, packing = config.batch, config.data.packing
        memory = self.memory(batch.micro_rows)
        trained, frozen = sum(self.trained), sum(self.frozen)
        flop = self.flop()
        rate = self.num_gpus * gpu.peak_flop_per_s(self.precision) * mfu
        return Plan(
            name=config.name,
            num_gpus=self.num_gpus,
            gpu=gpu,
            precision=self.precision,
            zero_stage=self.zero.stage,
            num_parameters=self.num_parameters,
            num_trained=trained,
            objectives=list(self.rows),
            vocab_size=self.vocab_size,
            vocabulary_origin=vocabulary_origin,
            rows_origin=next(iter(rows)).origin,
            global_rows=batch.global_rows,
            row_tokens=packing.row_tokens,
            micro_rows=batch.micro_rows,
            accumulation=self.accumulation,
            steps=config.steps,
            source_tokens_per_step=batch.global_rows * sum(r.source_tokens for r in rows),
            tokens_per_step=batch.global_rows * sum(r.tokens for r in rows),
            positions_per_step=batch.global_rows * packing.row_tokens * len(rows),
            targets_per_step=batch.global_rows * sum(r.targets for r in rows),
            epochs=epochs,
            memory=memory,
            fits=memory.total <= gpu.memory_bytes,
            largest_micro_rows=self.largest_micro_rows(gpu),
            checkpoint=checkpoint_bytes(trained, weight_bytes=self.weight_bytes, frozen=frozen),
            checkpoints_on_disk=checkpoints_on_disk(config),
            sent_bytes_per_step=sent_bytes(
                trained,
                passed=self._passed(),
                zero=self.zero,
                ranks=self.num_gpus,
                weight_bytes=self.weight_bytes,
                accumulation=self.accumulation,
            ),
            flop_per_step=flop,
            mfu=mfu,
            days=config.steps * flop / rate / SECONDS_PER_DAY,
        )

    def flop(self) -> float:
        """FLOP of an update, as the objectives count them."""
        number = self.config.batch.global_rows
        if self.outline is not None:
            return self.outline.flop(self.config, self.rows, number)
        rows = self.rows["glm"]
        return training_flop(
            self.config.model,
            vocab_size=self.vocab_size,
            tokens=number * rows.tokens,
            visible_pairs=number * rows.visible_pairs,
            targets=number * rows.targets,
        )


def checkpoints_on_disk(config: Config) -> int:
    """The most complete checkpoints that stay side by side, and the one being written."""
    rules = config.checkpoints
    for_good = 0
    if rules.keep_every and rules.every_steps:
        for_good = config.steps // math.lcm(rules.keep_every, rules.every_steps)
    return rules.keep_last + rules.keep_best + for_good + 1

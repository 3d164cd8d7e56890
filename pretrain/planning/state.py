"""Weights, gradients and optimizer of one rank under ZeRO, and what they cost on disk and network.

P parameters on N ranks, A micro-batches an update, w bytes a weight (2 in bf16, 4 in fp32), g a
gradient (those of numerics.reduction_dtype), AdamW:

    stage   weights   gradients   optimizer            sent by a rank an update
    0       w P       g P         12 P (fp32: 8 P)     2 g P
    1       w P       g P         12 P / N             (g + w) P
    2       w P       g P / N     12 P / N             (A g + w) P
    3       w P / N   g P / N     12 P / N             A (g + 2 w) P

12 is an fp32 copy of the weights and two moments; stages 1 to 3 keep the copy in fp32 too. Weights
that do not learn count under weights alone; they are gathered at stage 3 and never sent below it.
What a micro-batch passes through twice is gathered twice as often. Traffic is times (N - 1) / N; an
all-reduce sends twice, reduce-scatter and all-gather once: ZeRO (Rajbhandari et al. 2020), section
7. Sizes were compared with DeepSpeed 0.19.8, see tests/pretrain/test_run_plan_deepspeed.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.models.shape import BackboneShape

FP32 = 4
MOMENTS = 8
MASTER = 4


@dataclass(frozen=True)
class Zero:
    """How DeepSpeed's file shards a run. Buckets are in elements."""

    stage: int
    gradient_bytes: int  # of an element, where gradients are added up and sent
    reduce_bucket: int
    max_live_parameters: int
    persistence_threshold: int
    contiguous_gradients: bool
    overlap_comm: bool
    optimizer_place: str  # "gpu", "cpu" or "nvme"
    weights_place: str
    second_partition: int = 1  # ranks that keep the weights once more (zero_hpz_partition_size)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Zero":
        """What `settings` (DeepSpeed's JSON) say, with DeepSpeed's own defaults."""
        zero = settings.get("zero_optimization", {})
        stage = int(zero.get("stage", 0))

        def place(block: str) -> str:
            device = (zero.get(block) or {}).get("device", "none")
            return "gpu" if device == "none" else device

        accumulated = (settings.get("data_types") or {}).get("grad_accum_dtype")
        if accumulated is None:
            accumulated = "bf16" if (settings.get("bf16") or {}).get("enabled") else "fp32"
        return cls(
            stage=stage,
            gradient_bytes=2 if accumulated in ("bf16", "bfloat16") else FP32,
            reduce_bucket=int(zero.get("reduce_bucket_size", 5e8)),
            max_live_parameters=int(zero.get("stage3_max_live_parameters", 1e9)),
            persistence_threshold=int(zero.get("stage3_param_persistence_threshold", 1e5)),
            contiguous_gradients=bool(zero.get("contiguous_gradients", True)),
            overlap_comm=bool(zero.get("overlap_comm", stage == 3)),
            optimizer_place=place("offload_optimizer") if stage > 0 else "gpu",
            weights_place=place("offload_param") if stage == 3 else "gpu",
            second_partition=int(zero.get("zero_hpz_partition_size", 1) or 1) if stage == 3 else 1,
        )


def parameter_sizes(shape: BackboneShape, *, vocab_size: int, num_positions: int) -> list[int]:
    """Elements of every parameter of the backbone, in no particular order."""
    width = shape.hidden_size
    inner = shape.feed_forward_size
    tables = [vocab_size * width] + [num_positions * width] * (1 + shape.block_positions)
    tables += [shape.token_types * width] * bool(shape.token_types)
    matrices = [3 * width * width, width * width, inner * width, inner * width]
    biases = [3 * width, width, inner, width]
    norms = [width, width] * ((shape.norm_order == "pre") + shape.embedding_norm)
    added = [shape.lora_rank * width, 3 * width * shape.lora_rank] * bool(shape.lora_rank)
    added += [shape.prefix_slots * width] * (2 * bool(shape.prefix_slots))
    return tables + shape.num_layers * (matrices + biases + 4 * [width] + added) + norms


@dataclass(frozen=True)
class RankState:
    """Bytes of one rank between two updates, wherever they lie."""

    weights: float
    gradients: float
    optimizer: float


def rank_state(
    num_parameters: int, *, zero: Zero, ranks: int, weight_bytes: int, frozen: int = 0
) -> RankState:
    """The table of this module. num_parameters: that learn; frozen: that do not.

    Stage 1 with bf16 weights and sums in fp32 keeps the gradients of the last micro-batch beside
    their sums (DeepSpeed's BF16_Optimizer).
    """
    share = num_parameters / ranks
    master = 0 if zero.stage == 0 and weight_bytes == FP32 else MASTER
    gradient_bytes = zero.gradient_bytes
    if zero.stage == 1 and zero.gradient_bytes != weight_bytes:
        gradient_bytes += weight_bytes
    held = num_parameters + frozen
    weights = weight_bytes * (held / ranks if zero.stage == 3 else held)
    if zero.stage == 3 and zero.second_partition > 1 and ranks > 1:
        weights += weight_bytes * held / min(zero.second_partition, ranks)
    return RankState(
        weights=weights,
        gradients=gradient_bytes * (share if zero.stage >= 2 else num_parameters),
        optimizer=(MOMENTS + master) * (share if zero.stage >= 1 else num_parameters),
    )


def backward_buffer_bytes(
    sizes: Sequence[int],
    *,
    zero: Zero,
    ranks: int,
    weight_bytes: int,
    frozen: Sequence[int] = (),
) -> float:
    """Bytes beside the state while a backward pass runs. Elements of every parameter: sizes of
    those that learn, frozen of those that do not.

    Stage 3: gathered weights (up to max_live_parameters, which small models never reach, and the
    largest matrix at the least) and the bucket that gradients are reduced from. Stage 2: the
    bucket. Both: the whole gradient of the token table, which is complete only at the end, since
    the table is read at both ends.
    """
    if zero.stage < 2:
        return 0
    buckets = 2 if zero.stage == 2 and zero.overlap_comm else 1
    bucket = zero.reduce_bucket if zero.contiguous_gradients else max(sizes)
    gathered = 0
    if zero.stage == 3 and (ranks > 1 or zero.weights_place != "gpu"):
        held = [*sizes, *frozen]
        gathered = max(min(sum(held), zero.max_live_parameters), *held)
    return weight_bytes * (buckets * bucket + gathered + max(sizes))


def update_buffer_bytes(num_parameters: int, *, zero: Zero, ranks: int, weight_bytes: int) -> float:
    """Bytes beside the state while the optimizer steps: the gradient once more, in fp32, and before
    it, at stage 0, the copy that is reduced. The activations are gone then."""
    if zero.stage == 0:
        reduced = min(num_parameters, int(5e8)) * weight_bytes if ranks > 1 else 0
        return max(reduced, 0 if weight_bytes == FP32 else FP32 * num_parameters)
    return 0 if zero.optimizer_place != "gpu" else FP32 * num_parameters / ranks


def sent_bytes(
    num_parameters: int,
    *,
    zero: Zero,
    ranks: int,
    weight_bytes: int,
    accumulation: int,
    passed: int | None = None,
) -> float:
    """Bytes that one rank sends (and receives) an update.

    num_parameters: that learn. passed: parameters that a micro-batch passes through, frozen ones
    and those of a second pass counted; by default those that learn.
    """
    reduced, gathered = zero.gradient_bytes * num_parameters, weight_bytes * num_parameters
    passed = num_parameters if passed is None else passed
    each = {
        0: 2 * reduced,
        1: reduced + gathered,
        2: accumulation * reduced + gathered,
        3: accumulation * (reduced + 2 * weight_bytes * passed),
    }[zero.stage]
    return each * (ranks - 1) / ranks


def checkpoint_bytes(
    num_parameters: int, *, weight_bytes: int, frozen: int = 0
) -> dict[str, float]:
    """Bytes of one checkpoint by file, all ranks together, at any stage (checkpoint.py).
    num_parameters: that learn; frozen: that do not."""
    return {
        "optimizer": float((MASTER + MOMENTS) * num_parameters),
        "model": float(weight_bytes * (num_parameters + frozen)),
    }

"""DeepSpeed's JSON, completed: the file says how to shard, the recipe says what to train.

The file holds no precision, batch or optimizer block: those follow from the recipe and are filled
here. A value in it that says otherwise is an error that names both files, so that neither wins in
silence.

Example: with micro_rows 16, accumulation 4 and precision bf16, `{"zero_optimization": {"stage":
3}}` becomes `{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 16,
"gradient_accumulation_steps": 4, "gradient_clipping": 1.0, "bf16": {"enabled": true}}`.
"""

import json
import logging
from pathlib import Path
from typing import Any, Literal

logger = logging.getLogger(__name__)

REPOSITORY = Path(__file__).resolve().parents[2]

Precision = Literal["fp32", "bf16"]
_CHECKED = {"check_grad_overflow": True}  # a gradient that is not finite is never applied


def complete(
    path: Path,
    *,
    micro_rows: int,
    accumulation: int,
    world_size: int,
    gradient_clipping: float,
    precision: Precision,
    reduction_dtype: Precision = "fp32",
) -> dict[str, Any]:
    """The settings of file `path` with everything that follows from the run.

    Raises ValueError, naming the file and the recipe's key, where the file is not readable JSON,
    holds an optimizer or scheduler block, or contradicts the recipe.
    """
    settings = read(path)
    for block in ("optimizer", "scheduler"):
        if block in settings:
            raise ValueError(
                f"{path}: the block '{block}' is not used; optimizer and schedule are the recipe's "
                f"(optimizer.*, schedule.*). Remove it from {path.name}."
            )
    filled: dict[str, tuple[Any, str]] = {
        "train_micro_batch_size_per_gpu": (micro_rows, "batch.micro_rows"),
        "gradient_accumulation_steps": (accumulation, "batch.global_rows / (micro_rows x ranks)"),
        "train_batch_size": (micro_rows * accumulation * world_size, "batch.global_rows"),
        "gradient_clipping": (gradient_clipping, "optimizer.gradient_clipping"),
        "bf16": ({"enabled": precision == "bf16", **_CHECKED}, "precision"),
        "fp16": ({"enabled": False}, "precision"),
        "communication_data_type": (reduction_dtype, "numerics.reduction_dtype"),
        "data_types": ({"grad_accum_dtype": reduction_dtype}, "numerics.reduction_dtype"),
        # The client's AdamW serves offloaded states too; DeepSpeed's own needs a compiler.
        "zero_force_ds_cpu_optimizer": (False, "optimizer"),
    }
    if stage(settings) not in (0, 1, 2, 3):
        raise ValueError(
            f"{path}: zero_optimization.stage must be 0, 1, 2 or 3, got {stage(settings)}."
        )
    if precision == "bf16" and stage(settings) == 0:
        raise ValueError(
            f"{path}: ZeRO stage 0 keeps no fp32 master weights, which precision bf16 needs. Set "
            f"zero_optimization.stage to 1, 2 or 3 in {path.name}, or precision to fp32."
        )
    if not settings.get("zero_optimization", {}).get("compute_grad_norm", True):
        raise ValueError(
            f"{path}: zero_optimization.compute_grad_norm false hides a gradient that is not "
            f"finite. Remove it from {path.name}."
        )
    if problem := _partition_problem(settings.get("zero_optimization", {}), world_size):
        raise ValueError(f"{path}: {problem}")
    for key, (value, source) in filled.items():
        settings[key] = _merged(path, key, settings.get(key), value, source)
    return settings


QUANTIZED = (
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
)


def quantized(settings: dict[str, Any]) -> list[str]:
    """The fields of the file that send weights or gradients in fewer bits (ZeRO++)."""
    zero = settings.get("zero_optimization", {})
    return [field for field in QUANTIZED if zero.get(field)]


def check_quantized(settings: dict[str, Any], device_type: str) -> None:
    """Raise ValueError where DeepSpeed's quantizer, which is written in CUDA alone, cannot run."""
    fields = quantized(settings)
    if fields and device_type != "cuda":
        raise ValueError(
            f"zero_optimization.{fields[0]}: DeepSpeed quantizes in CUDA alone, and this run "
            f"computes on {device_type}. Remove it from DeepSpeed's file."
        )
    if fields:
        logger.warning(
            "engine: %s: sums over ranks are rounded to fewer bits than numerics.reduction_dtype "
            "says, and DeepSpeed compiles its quantizer once (minutes)",
            ", ".join(fields),
        )


def second_partition(settings: dict[str, Any]) -> int:
    """Ranks among which stage 3 keeps a second copy of the weights for the backward pass
    (zero_hpz_partition_size); 1 where it keeps none."""
    return int(settings.get("zero_optimization", {}).get("zero_hpz_partition_size", 1) or 1)


def _partition_problem(zero: dict[str, Any], world_size: int) -> str | None:
    """What cannot work about how weights are spread and sent at stage 3."""
    settings = {"zero_optimization": zero}
    second = second_partition(settings)
    named = [*quantized(settings), *(["zero_hpz_partition_size"] if second > 1 else [])]
    if named and stage(settings) != 3:
        return (
            f"zero_optimization.{named[0]} has an effect at stage 3 alone, and the stage is "
            f"{stage(settings)}. Remove it, or set stage 3."
        )
    if world_size % min(second, world_size):
        return (
            "zero_optimization.zero_hpz_partition_size must divide the number of ranks, got "
            f"{second} for {world_size} ranks. Take the ranks of a host."
        )
    if zero.get("zero_quantized_gradients") and not zero.get("reduce_scatter", True):
        return (
            "zero_optimization.zero_quantized_gradients needs reduce_scatter, which is false. "
            "Remove one of them."
        )
    if int(zero.get("mics_shard_size", -1)) > 0:
        return (
            "zero_optimization.mics_shard_size is not supported: it needs another way to build the "
            "model. zero_hpz_partition_size keeps weights inside a host too."
        )
    return None


def stage(settings: dict[str, Any]) -> int:
    """The ZeRO stage that `settings` asks for (0 where it says nothing)."""
    return int(settings.get("zero_optimization", {}).get("stage", 0))


def offloads(settings: dict[str, Any]) -> list[str]:
    """What the file moves off the device, as "optimizer to cpu"; empty where nothing is."""
    zero = settings.get("zero_optimization", {})
    parts = {name: zero.get(f"offload_{name}") or {} for name in ("optimizer", "param")}
    return [
        f"{name} to {part['device']}"
        for name, part in parts.items()
        if part.get("device", "none") != "none"
    ]


def read(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ValueError naming the file where there is none."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}). Set deepspeed_config."
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a JSON file: {error}.") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: must hold a JSON object, got {type(settings).__name__}.")
    return settings


def _merged(path: Path, key: str, found: Any, value: Any, source: str) -> Any:
    if found is None:
        return value
    if isinstance(value, dict):
        if not isinstance(found, dict) or any(
            found.get(name, False if name == "enabled" else wanted) != wanted
            for name, wanted in value.items()
        ):
            raise _contradiction(path, key, found, value, source)
        return found | value
    if found != value:
        raise _contradiction(path, key, found, value, source)
    return value


def _contradiction(path: Path, key: str, found: Any, value: Any, source: str) -> ValueError:
    return ValueError(
        f"{path}: '{key}' is {json.dumps(found)}, but the recipe's {source} asks for "
        f"{json.dumps(value)}. "
        f"Remove '{key}' from {path.name}: it follows from the recipe."
    )

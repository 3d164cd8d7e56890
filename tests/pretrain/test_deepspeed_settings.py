"""deepspeed_settings.py: what follows is filled in, what contradicts is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretrain.settings.deepspeed_settings import (
    REPOSITORY,
    check_quantized,
    complete,
    offloads,
    quantized,
    read,
    second_partition,
    stage,
)


def _complete(path: Path, **changes: Any) -> dict[str, Any]:
    run: dict[str, Any] = {
        "micro_rows": 4,
        "accumulation": 3,
        "world_size": 2,
        "gradient_clipping": 0.5,
        "precision": "fp32",
    }
    return complete(path, **(run | changes))


def _file(tmp_path: Path, settings: Any) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(settings))
    return path


def test_sizes_follow_from_the_run(tmp_path: Path) -> None:
    made = _complete(_file(tmp_path, {"zero_optimization": {"stage": 2}}), precision="bf16")
    assert made == {
        "zero_optimization": {"stage": 2},
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
        "train_batch_size": 24,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True, "check_grad_overflow": True},
        "fp16": {"enabled": False},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_force_ds_cpu_optimizer": False,
    }
    assert stage(made) == 2


def test_clipping_is_always_written(tmp_path: Path) -> None:
    # Left out, DeepSpeed 0.19.8 clips at 1.0.
    assert _complete(_file(tmp_path, {}), gradient_clipping=0.0)["gradient_clipping"] == 0.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": {"type": "Adam"}}, "the block 'optimizer' is not used"),
        ({"zero_optimization": {"stage": 9}}, "stage must be 0, 1, 2 or 3, got 9"),
        ({"scheduler": {}}, "the block 'scheduler' is not used"),
        ({"gradient_clipping": 1.0}, "recipe's optimizer.gradient_clipping asks for 0.5"),
        ({"bf16": {"enabled": True}}, "recipe's precision asks for"),
        ({"bf16": {"check_grad_overflow": False}}, "recipe's precision asks for"),
        ({"zero_optimization": {"compute_grad_norm": False}}, "hides a gradient that is not fin"),
        ({"communication_data_type": "bf16"}, "recipe's numerics.reduction_dtype asks for"),
        ({"zero_optimization": {"stage": 2, "zero_hpz_partition_size": 2}}, "at stage 3 alone"),
        ({"zero_optimization": {"stage": 1, "zero_quantized_weights": True}}, "at stage 3 alone"),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 2}}, "mics_shard_size is not supp"),
        (
            {
                "zero_optimization": {"stage": 3, "zero_quantized_gradients": True}
                | {"reduce_scatter": False}
            },
            "zero_quantized_gradients needs reduce_scatter",
        ),
        ({"train_micro_batch_size_per_gpu": "auto"}, "recipe's batch.micro_rows asks for 4"),
    ],
)
def test_a_contradiction_names_file_and_recipe(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = _file(tmp_path, settings)
    with pytest.raises(ValueError, match=r"ds\.json: ") as refused:
        _complete(path)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("second", "ranks", "works"), [(8, 32, True), (8, 4, True), (8, 12, False)]
)
def test_the_second_partition_divides_the_ranks(
    second: int, ranks: int, works: bool, tmp_path: Path
) -> None:
    zero = {"stage": 3, "zero_hpz_partition_size": second}
    path = _file(tmp_path, {"zero_optimization": zero})
    if works:
        assert second_partition(_complete(path, world_size=ranks)) == second
        return
    with pytest.raises(ValueError, match="must divide the number of ranks, got 8 for 12 ranks"):
        _complete(path, world_size=ranks)


def test_what_is_quantized_is_named(tmp_path: Path) -> None:
    zero = {"stage": 3, "zero_quantized_weights": True, "zero_quantized_gradients": True}
    settings = _complete(_file(tmp_path, {"zero_optimization": zero}))
    assert quantized(settings) == ["zero_quantized_weights", "zero_quantized_gradients"]
    assert settings["zero_optimization"] == zero  # passed on as they are
    assert quantized({}) == [] and second_partition({}) == 1
    with pytest.raises(ValueError, match="quantizes in CUDA alone, and this run computes on cpu"):
        check_quantized(settings, "cpu")
    check_quantized(settings, "cuda")
    check_quantized({}, "cpu")


def test_bf16_without_master_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ds\.json: ZeRO stage 0 keeps no fp32 master weights"):
        _complete(_file(tmp_path, {}), precision="bf16")


def test_an_equal_value_is_no_contradiction(tmp_path: Path) -> None:
    bf16 = {"enabled": False, "immediate_grad_update": True}
    made = _complete(_file(tmp_path, {"gradient_clipping": 0.5, "bf16": bf16}))
    assert made["gradient_clipping"] == 0.5
    assert made["bf16"] == bf16 | {"check_grad_overflow": True}


def test_what_is_offloaded_is_named(tmp_path: Path) -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"}}
    assert offloads(read(_file(tmp_path, {"zero_optimization": zero}))) == ["optimizer to cpu"]
    assert offloads({}) == []


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_file_that_is_no_json_object_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"ds\.json: "):
        read(path)


def test_the_repositorys_file_asks_for_stage_3_and_holds_nothing_of_the_recipe() -> None:
    settings = read(REPOSITORY / "ds_config.json")
    assert stage(settings) == 3
    filled = {"optimizer", "scheduler", "bf16", "fp16", "train_batch_size", "gradient_clipping"}
    assert not filled & set(settings)

"""suited.py: what ranks on gloo get where DeepSpeed's file names nothing, and nobody else."""

from typing import Any

import pytest

from pretrain.distributed.suited import MAX_LIVE_PARAMETERS, suited


def added(
    zero: dict[str, Any],
    *,
    backend: str = "gloo",
    gathers_whole: bool = True,
    num_elements: int = 1000,
    **named: Any,
) -> dict[str, Any]:
    """What is in the completed settings and not in those given."""
    given = {"zero_optimization": {"stage": 3} | zero} | named
    made = suited(given, backend, gathers_whole=gathers_whole, count=lambda: num_elements)
    old_zero = given["zero_optimization"]
    new_zero = {k: v for k, v in made["zero_optimization"].items() if k not in old_zero}
    return new_zero | {k: v for k, v in made.items() if k not in given}


ALL = {
    "reduce_scatter": False,
    "stage3_param_persistence_threshold": 0,
    "memory_efficient_linear": False,
    "prescale_gradients": True,
}


def but(*names: str) -> dict[str, Any]:
    return {name: value for name, value in ALL.items() if name not in names}


def test_a_small_model_on_gloo_gets_all_of_it() -> None:
    assert added({}) == ALL


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_stages_below_3_are_left_alone(stage: int) -> None:
    assert added({"stage": stage}) == {}


def test_nccl_is_left_alone() -> None:
    assert added({}, backend="nccl") == {}


def never() -> int:
    raise AssertionError("a model was built to be counted")


@pytest.mark.parametrize(
    ("zero", "backend"),
    [({"stage": 2}, "gloo"), ({"stage": 3}, "nccl"),
     ({"stage": 3, "memory_efficient_linear": True}, "gloo")],
)  # fmt: skip
def test_the_model_is_counted_only_where_that_decides(zero: dict[str, Any], backend: str) -> None:
    suited({"zero_optimization": zero}, backend, gathers_whole=True, count=never)


def test_what_the_file_names_is_kept() -> None:
    assert added({"reduce_scatter": True}) == but("reduce_scatter", "prescale_gradients")
    assert added({"stage3_param_persistence_threshold": 9}) == but(
        "stage3_param_persistence_threshold"
    )
    assert added({"memory_efficient_linear": True}) == but("memory_efficient_linear")
    assert added({}, prescale_gradients=False) == but("prescale_gradients")
    assert added({}, gradient_predivide_factor=2.0) == but("prescale_gradients")


def test_parameters_stay_where_layers_are_gathered_part_by_part() -> None:
    assert added({}, gathers_whole=False) == but("stage3_param_persistence_threshold")


def test_deepspeeds_products_are_kept_where_weights_are_released_between_the_passes() -> None:
    released = but("memory_efficient_linear")
    assert added({}, num_elements=MAX_LIVE_PARAMETERS) == ALL
    assert added({}, num_elements=MAX_LIVE_PARAMETERS + 1) == released
    assert added({"stage3_max_live_parameters": 999}) == released
    assert added({"offload_param": {"device": "cpu"}}) == released
    assert added({"offload_optimizer": {"device": "cpu"}}) == ALL

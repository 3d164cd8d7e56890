"""Every kernel of the project as it is launched: its compile-time arguments, warps and stages."""

from collections.abc import Mapping

import torch
import triton

from kernels.aot.resources import Kernel
from kernels.attention import launch, triton_backward
from kernels.attention.triton_forward import forward_kernel
from kernels.dispatch import HEAD_WIDTHS
from kernels.position2d import launch as embedding_launch
from kernels.position2d import triton_backward as embedding_backward
from kernels.position2d import triton_forward as embedding_forward

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
EMBEDDING_WIDTH = 1024
_FP32 = dict.fromkeys(("lse_ptr", "delta_ptr", "partial_ptr", "dweight_ptr", "dbias_ptr"), "*fp32")
_INT32 = dict.fromkeys(
    (
        "lo_ptr", "hi_ptr", "document_ptr", "first_ptr", "stop_ptr", "ids_ptr", "position_ptr",
        "block_ptr", "type_ptr", "seed_ptr", "sorted_ptr",
    ),
    "*i32",
)  # fmt: skip
_TYPES = _FP32 | _INT32 | {"order_ptr": "*i64"}


def attention_kernels(
    head_width: int, dtype: str = "bf16", num_slots: int = 1
) -> dict[str, Kernel]:
    """The five kernels of attention for heads of `head_width`, `num_slots` slots a document."""
    functions = {
        "forward": forward_kernel,
        "delta": triton_backward.delta_kernel,
        "query_gradient": triton_backward.query_gradient_kernel,
        "key_gradient": triton_backward.key_gradient_kernel,
        "slot_gradient": triton_backward.slot_gradient_kernel,
    }
    kernels = {}
    for name, function in functions.items():
        tiles = launch.tiles_of(name, head_width, DTYPES[dtype])
        constants = launch.constants_of(head_width, tiles, interpreted=False)
        constants["SLOTS"] = num_slots
        kernels[name] = _kernel(function, constants, tiles.num_warps, tiles.num_stages)
    return kernels


def embedding_kernels(width: int = EMBEDDING_WIDTH) -> dict[str, Kernel]:
    """The four kernels of the 2D embedding with all that can take part in it."""
    everything = dict.fromkeys(
        ("HAS_BLOCK", "HAS_TYPE", "HAS_LATENT", "HAS_NORM", "HAS_DROPOUT"), True
    )
    constants = everything | {
        "WIDTH": triton.next_power_of_2(width),
        "TOKENS": embedding_launch.TOKENS,
        "PIECE": embedding_launch.PIECE,
        "BLOCK_D": embedding_launch.BLOCK_D,
    }
    functions = {
        "embedding forward": embedding_forward.forward_kernel,
        "embedding sum_gradient": embedding_backward.sum_gradient_kernel,
        "embedding piece": embedding_backward.piece_kernel,
        "embedding join": embedding_backward.join_kernel,
    }
    return {name: _kernel(function, constants, 4, 3) for name, function in functions.items()}


def all_kernels(dtype: str = "bf16", num_slots: int = 1) -> dict[str, Kernel]:
    """Those of attention for every head width, and of the embedding."""
    kernels = {
        f"{name} {width}": kernel
        for width in HEAD_WIDTHS
        for name, kernel in attention_kernels(width, dtype, num_slots).items()
    }
    return kernels | embedding_kernels()


def _kernel(
    function: object, constants: Mapping[str, object], num_warps: int, num_stages: int
) -> Kernel:
    names = function.arg_names
    taken = {name: value for name, value in constants.items() if name in names}
    return Kernel(function, taken, num_warps, num_stages, _TYPES)

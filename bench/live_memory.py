"""Bytes of the tensors of this process on the CPU: those that live now, and the most in a step."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def storages() -> dict[int, int]:
    """Bytes of every storage that a tensor, its gradient or its ZeRO partition holds, by place."""
    gc.collect()
    found = {}
    for one in gc.get_objects():
        if not issubclass(type(one), torch.Tensor):
            continue
        for tensor in (one, one.grad if one.is_leaf else None, getattr(one, "ds_tensor", None)):
            if tensor is not None and tensor.device.type == "cpu":
                found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return found


def most_added_bytes(step: Callable[[], object]) -> int:
    """The most bytes that the allocator held during `step` beyond those it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    kineto: Any = seen.profiler
    events = sorted(
        (event.start_ns(), event.nbytes())
        for event in kineto.kineto_results.events()
        if event.name() == "[memory]"
    )
    held = most = 0
    for _, num_bytes in events:
        held += num_bytes
        most = max(most, held)
    return most

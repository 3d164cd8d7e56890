"""What this rank sends in collectives, counted where torch.distributed hands them to its backend.

    with Sent() as sent:
        step()
    sent.num_bytes                  # {"gather": 43106304.0, ...}, as rings move them past a rank

Of B bytes on N ranks a gather or a scattered sum sends (N - 1) / N B past each rank, a sum that all
get twice as much (Rajbhandari et al. 2020, section 7).
"""

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

# Collective: (what it is called here, the argument that is whole, times that it passes a rank).
_KINDS = {
    "_allgather_base_": ("gather", 0, 1),
    "_reduce_scatter_base_": ("scattered sum", 1, 1),
    "allreduce_": ("sum", 0, 2),
    "broadcast_": ("broadcast", 0, 1),
}


class Sent(TorchDispatchMode):
    """Counts while it is entered; a collective of another kind is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    @property
    def total_bytes(self) -> float:
        """Of all kinds."""
        return sum(self.num_bytes.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::")
            kind, whole, times = _KINDS[name]
            ranks = next(_group_sizes(args))
            self.calls[kind] += 1
            self.num_bytes[kind] += times * _size_bytes(args[whole]) * (ranks - 1) / ranks
        return func(*args, **(kwargs or {}))


def _group_sizes(args: Any) -> Any:
    for argument in args:
        if isinstance(argument, torch.ScriptObject):
            try:
                yield dist.ProcessGroup.unbox(argument).size()
            except RuntimeError:  # a ReduceOp
                continue


def _size_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(_size_bytes(part) for part in value)

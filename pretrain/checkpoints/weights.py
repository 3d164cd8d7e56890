"""Weights on disk, read one tensor at a time, and the strict comparison with what a model needs.

    weights = WeightFiles.open([folder / "model.safetensors"])
    weights.shapes["backbone.final_norm.bias"]        # without reading it
    copy_into(model, weights)                         # names and shapes must be the model's

Files are mapped, not loaded: whoever copies tensor after tensor holds the model once.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

MOST_NAMED = 3  # names that an error lists


class WeightFiles:
    """Named tensors in one or more safetensors files."""

    def __init__(self, handles: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._handles = handles  # name of a tensor -> open file
        self.shapes = dict(shapes)

    @classmethod
    def open(cls, paths: Iterable[Path]) -> "WeightFiles":
        """Map the files. ValueError for one that is no safetensors, or a tensor named twice."""
        handles: dict[str, Any] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for path in paths:
            try:
                handle = safe_open(path, framework="pt")
                # The type stubs of safetensors know neither keys() nor slices.
                names: list[str] = list(handle.keys())  # pyright: ignore[reportAttributeAccessIssue]
            except (OSError, SafetensorError) as error:
                raise ValueError(f"{path} is not a safetensors file: {error}.") from None
            for name in names:
                if name in handles:
                    raise ValueError(f"{path} holds {name}, which an earlier file holds too.")
                handles[name] = handle
                shapes[name] = tuple(handle.get_slice(name).get_shape())  # pyright: ignore
        return cls(handles, shapes)

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU, as it is stored."""
        return self._handles[name].get_tensor(name)


def difference(
    needed: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> str | None:
    """How the names and shapes of weights differ from those a model needs; None: they do not.

    The first few of each kind are named.
    """
    missing = [name for name in needed if name not in found]
    unknown = [name for name in found if name not in needed]
    other = [
        f"{name} is {_size(found[name])} instead of {_size(shape)}"
        for name, shape in needed.items()
        if name in found and found[name] != shape
    ]
    parts = [
        f"{len(names)} {what}: {', '.join(names[:MOST_NAMED])}"
        + (", ..." if len(names) > MOST_NAMED else "")
        for what, names in (("missing", missing), ("unknown", unknown), ("of other sizes", other))
        if names
    ]
    return "; ".join(parts) or None


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of a model, which may lie on the meta device."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


@torch.no_grad()
def copy_into(model: nn.Module, weights: WeightFiles) -> None:
    """Copy every weight into the parameter of its name, in the parameter's dtype.

    The caller has compared names and shapes.
    """
    for name, parameter in model.named_parameters():
        parameter.copy_(weights.tensor(name))


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))

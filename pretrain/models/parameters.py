"""Matrices drawn from a generator, the same on every device, dtype and ZeRO stage."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def normal_parameter(
    num_rows: int, num_columns: int, std: float, generator: torch.Generator
) -> nn.Parameter:
    """A matrix drawn from N(0, std), the same values whatever the default device and dtype are."""
    parameter = nn.Parameter(torch.empty(num_rows, num_columns))
    if not parameter.is_meta:
        # torch.normal, because zero.Init casts what torch.empty and torch.randn return.
        values = torch.normal(
            0.0,
            std,
            (num_rows, num_columns),
            generator=generator,
            device="cpu",
            dtype=torch.float32,
        )
        parameter.data.copy_(values)
    return parameter


class Linear(nn.Module):
    """y = x W^T + b with W ~ N(0, std) and b = 0."""

    def __init__(
        self, num_inputs: int, num_outputs: int, std: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.weight = normal_parameter(num_outputs, num_inputs, std, generator)
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        # As a matrix: else zero.Init's stand-in for F.linear adds the bias in a pass of its own.
        rows = F.linear(x.flatten(0, -2), self.weight, self.bias)
        return rows.unflatten(0, x.shape[:-1])

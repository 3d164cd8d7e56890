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


class LoraLinear(Linear):
    """y = x W^T + b + (x A^T) B^T, A ~ N(0, std) with `rank` rows and B = 0 (Hu et al. 2022).

    A factor that the paper has before the sum is left to the learning rate.
    """

    def __init__(
        self, num_inputs: int, num_outputs: int, std: float, generator: torch.Generator, rank: int
    ) -> None:
        super().__init__(num_inputs, num_outputs, std, generator)
        self.lora_down = normal_parameter(rank, num_inputs, std, forked(generator))
        self.lora_up = nn.Parameter(torch.zeros(num_outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        added = F.linear(F.linear(x.flatten(0, -2), self.lora_down), self.lora_up)
        return super().forward(x) + added.unflatten(0, x.shape[:-1])


def forked(generator: torch.Generator) -> torch.Generator:
    """A generator that begins where `generator` stands, which is left there: what is drawn from it
    changes no weight that is drawn afterwards."""
    fork = torch.Generator()
    fork.set_state(generator.get_state())
    return fork

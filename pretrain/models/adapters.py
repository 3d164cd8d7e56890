"""Adapters: small maps beside the sublayers of a Transformer, which learn while it stays as it is.

    delta(x) = scale x Up(ReLU(Down(x))),  D -> size -> D        one for each layer

Where delta stands in a pre-LN layer, with a = attention(LN(x)) and m = feed-forward(LN(x + a)):

    parallel_ffn       x + a + m + delta(x + a)      beside the feed-forward (He et al. 2022)
    sequential         x + a + m + delta(m)          behind it (Pfeiffer et al. 2021)
    reference_double   y = x + a + delta(x), then y + m + delta(y): what AdaVAE's published code
                       computes under its default, the same adapter twice
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pretrain.models.latent_shape import Placement
from pretrain.models.parameters import Linear


class Adapter(nn.Module):
    """delta(x) of one layer."""

    def __init__(
        self,
        width: int,
        size: int,
        placement: Placement,
        generator: torch.Generator,
        *,
        std: float = 0.02,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.placement, self.scale = placement, scale
        self.down = Linear(width, size, std, generator)
        self.up = Linear(size, width, std, generator)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.scale * self.up(F.relu(self.down(x_BTD)))

    def beside_attention(self, x_BTD: Tensor) -> Tensor | None:
        """What is added with the attention over the layer's input x."""
        return self(x_BTD) if self.placement == "reference_double" else None

    def beside_feed_forward(self, x_BTD: Tensor, out_BTD: Tensor) -> Tensor:
        """What is added with the feed-forward over x, whose output is `out_BTD`."""
        return self(out_BTD if self.placement == "sequential" else x_BTD)

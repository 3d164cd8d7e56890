"""One layer of the backbone: attention over what visibility shows, and a feed-forward network.

Initialisation and the order of LayerNorms: backbone.py.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.dispatch import latent_memory_attention
from kernels.visibility import Visibility
from pretrain.models.adapters import Adapter
from pretrain.models.cache import LayerCache
from pretrain.models.parameters import Linear, LoraLinear, forked, normal_parameter
from pretrain.models.shape import BackboneShape

# Latent slots of one layer: keys (B, N, M, H, K), and values of that shape or None, where the keys
# are the values too.
Slots = tuple[Tensor, Tensor | None]


class SelfAttention(nn.Module):
    """Multi-head attention over what visibility shows; rows of qkv are all q, all k, all v."""

    def __init__(self, shape: BackboneShape, generator: torch.Generator) -> None:
        super().__init__()
        width = shape.hidden_size
        self.num_heads = shape.num_heads
        self.dropout_prob = shape.attention_dropout_prob
        self.qkv = (
            LoraLinear(width, 3 * width, shape.init_std, generator, shape.lora_rank)
            if shape.lora_rank
            else Linear(width, 3 * width, shape.init_std, generator)
        )
        self.prefix_keys = self.prefix_values = None
        if size := shape.prefix_slots:
            own = forked(generator)
            self.prefix_keys = normal_parameter(size, width, shape.init_std, own)
            self.prefix_values = normal_parameter(size, width, shape.init_std, own)
        self.output = Linear(width, width, residual_std(shape), generator)

    def forward(
        self,
        x_BTD: Tensor,
        visibility: Visibility,
        cache: LayerCache | None = None,
        slots: Slots | None = None,
    ) -> Tensor:
        qkv_BT3HK = self.qkv(x_BTD).unflatten(-1, (3, self.num_heads, -1))
        q_BTHK, k_BTHK, v_BTHK = qkv_BT3HK.unbind(dim=2)
        if cache is not None:
            k_BTHK, v_BTHK = cache.extend(k_BTHK, v_BTHK)
        dropout_prob = self.dropout_prob if self.training else 0.0
        keys_BNMHK, values_BNMHK = self._slots(slots, visibility)
        out_BTHK = latent_memory_attention(
            q_BTHK,
            k_BTHK,
            v_BTHK,
            visibility,
            latent_k=keys_BNMHK,
            latent_v=values_BNMHK,
            dropout_prob=dropout_prob,
        )
        return self.output(out_BTHK.flatten(2))

    def _slots(
        self, slots: Slots | None, visibility: Visibility
    ) -> tuple[Tensor | None, Tensor | None]:
        """The slots of each document: those of its latent vector behind the learned prefix."""
        if self.prefix_keys is None or self.prefix_values is None:
            return (None, None) if slots is None else slots
        document_BT = visibility.document
        number = visibility.kept("documents", lambda: max(int(document_BT.max()) + 1, 1))
        number = number if slots is None else slots[0].shape[1]
        own_keys, own_values = (
            table.unflatten(-1, (self.num_heads, -1)).expand(len(document_BT), number, -1, -1, -1)
            for table in (self.prefix_keys, self.prefix_values)
        )
        if slots is None:
            return own_keys, own_values
        keys, values = slots
        values = keys if values is None else values
        return torch.cat((own_keys, keys), 2), torch.cat((own_values, values), 2)


class FeedForward(nn.Module):
    """Two linear maps, 4 D wide inside unless the shape says otherwise, with GELU between them."""

    def __init__(self, shape: BackboneShape, generator: torch.Generator) -> None:
        super().__init__()
        width = shape.hidden_size
        self.gelu_flavour = "tanh" if shape.gelu == "tanh" else "none"
        inner = shape.feed_forward_size
        self.up = Linear(width, inner, shape.init_std, generator)
        self.down = Linear(inner, width, residual_std(shape), generator)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD), approximate=self.gelu_flavour))


class Layer(nn.Module):
    """Attention and feed-forward, each with its LayerNorm, dropout and residual sum."""

    def __init__(self, shape: BackboneShape, generator: torch.Generator) -> None:
        super().__init__()
        self.norm_first = shape.norm_order == "pre"
        self.dropout_prob = shape.dropout_prob
        self.attention_norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_eps)
        self.attention = SelfAttention(shape, generator)
        self.mlp_norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_eps)
        self.mlp = FeedForward(shape, generator)

    def forward(
        self,
        x_BTD: Tensor,
        visibility: Visibility,
        cache: LayerCache | None = None,
        slots: Slots | None = None,
        adapter: Adapter | None = None,
    ) -> Tensor:
        if self.norm_first:
            read_BTD = self.attention(self.attention_norm(x_BTD), visibility, cache, slots)
            added_BTD = None if adapter is None else adapter.beside_attention(x_BTD)
            x_BTD = x_BTD + self.dropout(read_BTD)
            x_BTD = x_BTD if added_BTD is None else x_BTD + added_BTD
            out_BTD = self.dropout(self.mlp(self.mlp_norm(x_BTD)))
            if adapter is not None:
                x_BTD = x_BTD + adapter.beside_feed_forward(x_BTD, out_BTD)
            return x_BTD + out_BTD
        assert adapter is None, "adapters are for pre-LN layers"
        read_BTD = self.attention(x_BTD, visibility, cache, slots)
        x_BTD = self.attention_norm(x_BTD + self.dropout(read_BTD))
        return self.mlp_norm(x_BTD + self.dropout(self.mlp(x_BTD)))

    def dropout(self, x_BTD: Tensor) -> Tensor:
        return F.dropout(x_BTD, self.dropout_prob, self.training)


def residual_std(shape: BackboneShape) -> float:
    """Standard deviation of the matrices that write into the residual stream."""
    return shape.init_std / math.sqrt(2 * shape.num_layers)

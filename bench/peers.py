"""The models we are held against, of equal size and without dropout, as their users train them.

GPT-2 and BERT come from transformers with its fused attention. `PlainModel` is what one would write
in an afternoon: torch layers, fused attention under a boolean prefix mask, logits at every position
or, the harder peer, at the targets alone.

deepspeed.zero.Init replaces torch.nn.functional.linear for good, in the whole process. Peers run
with torch's own, which was noted when this file was imported: before any engine is built.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from bench.sizes import Size
from pretrain.settings.optimizer_config import OptimizerConfig

_TORCH_LINEAR = F.linear


def gpt2(size: Size, num_positions: int | None = None) -> GPT2LMHeadModel:
    """transformers GPT-2 with random weights."""
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size.vocab_size,
            n_positions=num_positions or size.row_tokens,
            n_embd=size.hidden_size,
            n_layer=size.num_layers,
            n_head=size.num_heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    model.set_attn_implementation("sdpa")
    return model


def bert(size: Size) -> BertForMaskedLM:
    """transformers BERT with random weights."""
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=size.vocab_size,
            hidden_size=size.hidden_size,
            num_hidden_layers=size.num_layers,
            num_attention_heads=size.num_heads,
            intermediate_size=4 * size.hidden_size,
            max_position_embeddings=size.row_tokens,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    model.set_attn_implementation("sdpa")
    return model


class PlainLayer(nn.Module):
    """A pre-LN layer of torch's own parts."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.hidden_size
        self.num_heads = size.num_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: Tensor, mask: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x_BTD)).unflatten(-1, (3, self.num_heads, -1))
        q_BHTK, k_BHTK, v_BHTK = heads.permute(2, 0, 3, 1, 4).unbind(0)
        read_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask)
        x_BTD = x_BTD + self.output(read_BHTK.transpose(1, 2).flatten(2))
        return x_BTD + self.down(F.gelu(self.up(self.norms[1](x_BTD)), approximate="tanh"))


class PlainModel(nn.Module):
    """Token, position and block-position tables, layers, tied logits."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocab_size, size.hidden_size)
        self.positions = nn.Embedding(size.row_tokens + 1, size.hidden_size)
        self.blocks = nn.Embedding(size.row_tokens + 1, size.hidden_size)
        self.layers = nn.ModuleList(PlainLayer(size) for _ in range(size.num_layers))
        self.norm = nn.LayerNorm(size.hidden_size)
        for table in (self.tokens, self.positions, self.blocks):
            nn.init.normal_(table.weight, std=0.02)

    def forward(
        self,
        ids_BT: Tensor,
        positions_B2T: Tensor,
        mask: Tensor,
        targets_N: Tensor,
        index_N: Tensor,
    ) -> Tensor:
        """Mean loss over the positions `index_N` of the flattened rows."""
        x_BTD = self.tokens(ids_BT) + self.positions(positions_B2T[:, 0])
        x_BTD = x_BTD + self.blocks(positions_B2T[:, 1])
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask)
        hidden_ND = self.norm(x_BTD).flatten(0, 1)[index_N]
        return F.cross_entropy(F.linear(hidden_ND, self.tokens.weight), targets_N)


def adamw(model: nn.Module, *, fused: bool) -> torch.optim.AdamW:
    """torch's AdamW with our hyperparameters; fused or as it comes by default."""
    config = OptimizerConfig()
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=fused or None,
    )


def gradients_of(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """The first part of a step: forward and backward, without the optimizer."""

    def run() -> None:
        with torch_linear():
            model.zero_grad()
            loss().backward()

    return run


@contextmanager
def torch_linear() -> Iterator[None]:
    """Inside, torch.nn.functional.linear is torch's own."""
    replaced = F.linear
    F.linear = _TORCH_LINEAR
    try:
        yield
    finally:
        F.linear = replaced

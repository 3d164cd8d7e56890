"""The shape of the one backbone: values only, no torch, so that `--help` stays quick."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class BackboneShape:
    """Sizes and switches of the backbone. Defaults are GLM-Base (Du et al. 2022)."""

    num_layers: int = 12
    """Transformer blocks."""
    hidden_size: int = 768
    """Width D of the residual stream."""
    num_heads: int = 12
    """Attention heads; they divide hidden_size."""
    dropout_prob: float = 0.1
    """Dropout on the embedding sum, the attention output and the MLP output."""
    attention_dropout_prob: float = 0.1
    """Dropout on attention weights (the published path); packed recipes set 0 for the fast
    kernels."""
    init_std: float = 0.02
    """Standard deviation of the initialisation; residual outputs: init_std / sqrt(2 num_layers)."""
    norm_order: Literal["pre", "post"] = "pre"
    """LayerNorm before each sublayer (GLM, GPT-2) or after its residual sum (BERT, GPT)."""
    gelu: Literal["tanh", "erf"] = "tanh"
    """GELU flavour: tanh approximation (GLM, GPT-2) or exact (BERT)."""
    norm_eps: float = 1e-5
    """LayerNorm epsilon."""
    mlp_size: int | None = None
    """Width inside the feed-forward; by default 4 hidden_size."""
    token_types: int = 0
    """Rows of BERT's table of token types, added to the embedding; 0: no such table."""
    embedding_norm: bool = False
    """Whether a LayerNorm follows the embedding sum (BERT)."""
    block_positions: bool = True
    """Whether a second position table (inside the blank) is added: GLM's 2D positions."""
    max_positions: int | None = None
    """Longest text in tokens that the position tables reach; by default data.packing.source_tokens.
    Larger where longer texts are trained later, as the published 1024 of a model of 512 tokens."""

    lora_rank: int = 0
    """Above 0: rank of what is added to each layer's map to queries, keys and values, 0 at first
    (LoRA, Hu et al. 2022); to be trained with trains: lora."""
    prefix_slots: int = 0
    """Above 0: learned keys and values of each layer that every token sees beside those of its text
    (prefix tuning, Li and Liang 2021); to be trained with trains: prefix."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("max_positions", "mlp_size"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"model.{name} must be at least 1, got {size}.")
        for name in ("token_types", "lora_rank", "prefix_slots"):
            if getattr(self, name) < 0:
                raise ValueError(f"model.{name} must be 0 or more, got {getattr(self, name)}.")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"model.num_heads must divide model.hidden_size {self.hidden_size}, "
                f"got {self.num_heads}."
            )
        for name in ("dropout_prob", "attention_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"model.{name} must lie in [0, 1), got {getattr(self, name)}.")

    @property
    def feed_forward_size(self) -> int:
        """Width inside the feed-forward."""
        return self.mlp_size or 4 * self.hidden_size

    def table_rows(self, source_tokens: int) -> int:
        """Rows of each position table for documents of up to `source_tokens` tokens.

        With block positions one more, as in the published code: a block of n tokens counts
        1 .. n + 1. Raises ValueError where max_positions is below source_tokens.
        """
        longest = source_tokens if self.max_positions is None else self.max_positions
        if longest < source_tokens:
            raise ValueError(
                f"model.max_positions must be at least data.packing.source_tokens = "
                f"{source_tokens}, got {longest}."
            )
        return longest + int(self.block_positions)


VOCABULARY_MULTIPLE = 128


def padded_vocabulary(vocab_size: int) -> int:
    """`vocab_size` rounded up to a multiple of 128, as the published code pads its token table."""
    return -(-vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

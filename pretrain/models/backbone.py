"""The one Transformer of every objective: ids, positions and visibility in, hidden states out.

    backbone = Backbone(BackboneShape(), vocab_size=30592, num_positions=513, generator=generator)
    hidden_BTD = backbone(ids_BT, positions_B2T, Visibility(lo, hi, document))
    logits_NV = backbone.logits(hidden_BTD.flatten(0, 1).index_select(0, target_index_N))

Who sees whom is the visibility's matter alone: the same weights serve as encoder (sep = n), decoder
(sep = 0) and GLM (in between). Logits are the product with the token table (tied, no bias). Where
they are learned from, the table's gradient is written once if both ends know of each other:

    hidden_BTD, tied_VD = backbone(ids_BT, positions_B2T, visibility, with_tied=True)
    logits_BTV = backbone.logits(hidden_BTD, tied_VD)

Initialisation: N(0, init_std), the two outputs into the residual stream N(0, init_std / sqrt(2
layers)), biases 0, LayerNorm 1 and 0. Every module draws its own parameters in its own __init__, on
the CPU in fp32 from the generator, and copies them to where they live. So the weights are the same
for every ZeRO stage, number of ranks, device and dtype, and construction is right inside
`deepspeed.zero.Init` (which takes a module's parameters away when its __init__ ends) and under
`torch.device("meta")`.

Pre-LN: x + f(LN(x)), with a last LayerNorm (GLM, GPT-2). Post-LN: LN(x + f(x)), without one (GPT).
GLM (Du et al. 2022), section 2.2; published layout in pretrain/handing_over/convert.py.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kernels.dispatch import embedding_2d
from kernels.position2d.tied import tied_logits
from kernels.visibility import Visibility
from pretrain.models.adapters import Adapter
from pretrain.models.cache import KeyValueCache
from pretrain.models.layer import Layer, Slots
from pretrain.models.parameters import Linear, normal_parameter
from pretrain.models.shape import BackboneShape


def num_positions(shape: BackboneShape, source_tokens: int) -> int:
    """Rows of each position table; see BackboneShape.table_rows."""
    return shape.table_rows(source_tokens)


def check_positions(positions: Tensor, table_rows: int) -> None:
    """ValueError when a position (any shape of integers) lies beyond a table of `table_rows` rows.

    Reads the values, so call it on CPU tensors, before they are sent to a GPU.
    """
    highest = int(positions.max()) if positions.numel() else 0
    if highest >= table_rows:
        raise ValueError(
            f"position {highest} lies beyond the position table: it must be below {table_rows}. "
            f"Shorten the text, or use a model trained with a larger source_tokens."
        )


class Embedding2D(nn.Module):
    """The sum of table rows (token, position, block position, type) and of what its document adds;
    a LayerNorm where the shape has one, then dropout."""

    def __init__(
        self, shape: BackboneShape, vocab_size: int, num_positions: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        width, std = shape.hidden_size, shape.init_std
        self.dropout_prob = shape.dropout_prob
        self.token_table = normal_parameter(vocab_size, width, std, generator)
        self.position_table = normal_parameter(num_positions, width, std, generator)
        self.block_table = self.type_table = None
        if shape.block_positions:
            self.block_table = normal_parameter(num_positions, width, std, generator)
        if shape.token_types:
            self.type_table = normal_parameter(shape.token_types, width, std, generator)
        self.norm_eps = shape.norm_eps
        self.norm_weight = self.norm_bias = None
        if shape.embedding_norm:
            self.norm_weight = nn.Parameter(torch.ones(width))
            self.norm_bias = nn.Parameter(torch.zeros(width))

    def forward(
        self,
        ids_BT: Tensor,
        positions_BCT: Tensor,
        document_BT: Tensor | None = None,
        token_types_BT: Tensor | None = None,
        latent_BND: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See embedding_2d."""
        if self.type_table is not None and token_types_BT is None:
            token_types_BT = torch.zeros_like(ids_BT)
        return embedding_2d(
            ids_BT,
            positions_BCT[:, 0],
            None if self.block_table is None else positions_BCT[:, 1],
            self.token_table,
            self.position_table,
            self.block_table,
            token_type=None if self.type_table is None else token_types_BT,
            type_table=self.type_table,
            latent=latent_BND,
            document=None if latent_BND is None else document_BT,
            norm_weight=self.norm_weight,
            norm_bias=self.norm_bias,
            norm_eps=self.norm_eps,
            dropout_prob=self.dropout_prob if self.training else 0.0,
        )


class Backbone(nn.Module):
    """Embeddings, layers and, with pre-LN, a last LayerNorm."""

    def __init__(
        self,
        shape: BackboneShape,
        *,
        vocab_size: int,
        num_positions: int,
        generator: torch.Generator | None = None,
        layers_per_checkpoint: int = 0,
    ) -> None:
        """vocab_size: rows of the token table, padded to a multiple of 128 by the caller.

        num_positions: rows of each position table (see the function of that name). generator: a
        CPU generator the weights are drawn from; None is one seeded with 0, for weights that are
        loaded afterwards. layers_per_checkpoint: above 0, groups of so many layers are run again in
        backward instead of keeping their activations.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.shape = shape
        self.vocab_size = vocab_size
        self.num_positions = num_positions
        self.layers_per_checkpoint = layers_per_checkpoint
        self.embedding = Embedding2D(shape, vocab_size, num_positions, generator)
        self.layers = nn.ModuleList(Layer(shape, generator) for _ in range(shape.num_layers))
        self.final_norm = None
        if shape.norm_order == "pre":
            self.final_norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_eps)

    @property
    def dtype(self) -> torch.dtype:
        """In which the weights are kept, and hidden states computed."""
        return self.embedding.token_table.dtype

    def forward(
        self,
        ids_BT: Tensor,
        positions_BCT: Tensor,
        visibility: Visibility,
        *,
        token_types: Tensor | None = None,
        memory: Sequence[Slots] | None = None,
        latent_embedding: Tensor | None = None,
        cache: KeyValueCache | None = None,
        layers: int | None = None,
        adapters: Sequence[Adapter] | None = None,
        with_tied: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Hidden states (B, T, D).

        positions_BCT: (B, 2, T), position and block position; (B, 1, T) will do without block
        positions. Raises ValueError for a position beyond the table when positions lie on the CPU;
        those on a GPU are not read, which would stall it: call `check_positions` before sending.
        token_types: (B, T), where the shape has them; all 0 by default. memory: for each layer the
        latent slots of the N documents of a row, beside which their tokens are read.
        latent_embedding: (B, N, D), what each document adds to the embedding of its tokens.
        layers: run the first so many layers and the last LayerNorm; all by default. adapters: one
        for each layer that is run.
        cache: what was read before; the T tokens are read behind it and join it. Their visibility
        counts the tokens of their row from the first that was read, padding left out.
        with_tied: return the edge of the token table too, for `logits` and nothing else.
        """
        if positions_BCT.device.type == "cpu" and not torch.compiler.is_compiling():
            check_positions(positions_BCT, self.num_positions)
        x_BTD, tied_VD = self.embedding(
            ids_BT, positions_BCT, visibility.document, token_types, latent_embedding
        )
        chosen = list(self.layers)[:layers]
        slots = memory or [None] * len(chosen)
        added = adapters or [None] * len(chosen)
        if cache is not None:
            visibility = cache.admit(visibility)
            for layer, kept, own, adapter in zip(chosen, cache.layers, slots, added, strict=True):
                x_BTD = layer(x_BTD, visibility, kept, own, adapter)
        elif self.layers_per_checkpoint and self.training:
            x_BTD = self._recomputed_layers(x_BTD, visibility, chosen, slots, added)
        else:
            for layer, own, adapter in zip(chosen, slots, added, strict=True):
                x_BTD = layer(x_BTD, visibility, None, own, adapter)
        if self.final_norm is not None:
            x_BTD = self.final_norm(x_BTD)
        return (x_BTD, tied_VD) if with_tied else x_BTD

    def _recomputed_layers(
        self,
        x_BTD: Tensor,
        visibility: Visibility,
        layers: Sequence[nn.Module],
        slots: Sequence[Slots | None],
        adapters: Sequence[Adapter | None],
    ) -> Tensor:
        """The layers in groups that keep their input alone and run again in backward.

        Dropout draws the same numbers again: the generator's state is put back for the second run.
        """
        step = self.layers_per_checkpoint
        for first in range(0, len(layers), step):

            def group(x_BTD: Tensor, first: int = first) -> Tensor:
                some = slice(first, first + step)
                for layer, own, adapter in zip(
                    layers[some], slots[some], adapters[some], strict=True
                ):
                    x_BTD = layer(x_BTD, visibility, None, own, adapter)
                return x_BTD

            x_BTD = checkpoint(group, x_BTD, use_reentrant=False)
        return x_BTD

    def logits(self, hidden_ND: Tensor, tied_VD: Tensor | None = None) -> Tensor:
        """Scores over the vocabulary, (..., V), for hidden states (..., D).

        tied_VD: the edge that the forward pass gave beside them. Without it the gradient is the
        same, but the token table has one from each end, which autograd adds.
        """
        table_VD = self.embedding.token_table
        if tied_VD is None or not table_VD.requires_grad:
            return F.linear(hidden_ND, table_VD)
        return tied_logits(hidden_ND, table_VD, tied_VD)


def lay_out_for_decoding(model: nn.Module) -> None:
    """Keep the matrices with more outputs than inputs by columns; no value changes.

    A product with one row then runs through memory at 1.3 to 1.7 times the speed on a CPU (measured
    at 768 x 2304 and 768 x 3072, as `python -m bench --only decode_B` shows as a whole); products
    with many rows do not care.
    """
    for module in model.modules():
        if isinstance(module, Linear) and module.weight.shape[0] > module.weight.shape[1]:
            module.weight.data = module.weight.data.t().contiguous().t()


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay acts on a parameter: matrices and tables, not biases and LayerNorm.

    Told by its name, not its shape: under ZeRO-3 every parameter looks empty.
    """
    owner, _, last = name.rpartition(".")
    # "bias" inside of it: torch.nn.LSTM calls them bias_ih_l0 and bias_hh_l0.
    return "bias" not in last and last != "norm_weight" and not owner.endswith("norm")

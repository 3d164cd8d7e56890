"""The embedding of a token: the sum of table rows, and what may follow it, in plain torch.

    sum[b, t] = token_table[ids[b, t]]
              + position_table[position[b, t]] + block_table[block_position[b, t]]
              + type_table[token_type[b, t]] + latent[b, document[b, t]]
    x = dropout(LayerNorm(sum))

Only the first line's two tables are always there. GLM's 2D positions: the first number is the place
in the text with its blanks, the second the place inside a blank (0 outside of blanks). GLM (Du et
al. 2022), section 2.2; token types and the LayerNorm are BERT's (Devlin et al. 2019), a latent
embedding per document is Optimus' (Li et al. 2020), section 3.
"""

from torch import Tensor
from torch.nn import functional as F

from kernels.attention.reference import of_its_document
from kernels.position2d.tied import token_rows


def embedding_2d(
    ids_BT: Tensor,
    position_BT: Tensor,
    block_position_BT: Tensor | None,
    token_table_VD: Tensor,
    position_table_PD: Tensor,
    block_table_PD: Tensor | None,
    *,
    token_type: Tensor | None = None,
    type_table: Tensor | None = None,
    latent: Tensor | None = None,
    document: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    norm_eps: float = 1e-12,
    dropout_prob: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Embedding of every token, (B, T, D), and the edge of the token table, (V, D): see tied.py.

    A table that is None, with its indices None, adds nothing. latent: what each of the N documents
    of a row adds to all its tokens, found by `document`; padding (-1) gets none. LayerNorm follows
    where norm_weight and norm_bias are given, then dropout where dropout_prob is above 0 (pass 0
    outside of training). On a CPU an index beyond its table is torch's IndexError; on a GPU callers
    check first (see Backbone).
    """
    x_BTD, tied_VD = token_rows(token_table_VD, ids_BT)
    x_BTD = x_BTD + F.embedding(position_BT, position_table_PD)
    if block_table_PD is not None:
        assert block_position_BT is not None, "a block table needs block positions"
        x_BTD = x_BTD + F.embedding(block_position_BT, block_table_PD)
    if type_table is not None:
        assert token_type is not None, "a type table needs token types"
        x_BTD = x_BTD + F.embedding(token_type, type_table)
    if latent is not None:
        assert document is not None, "latents are found by document"
        outside_BT1 = (document < 0)[..., None]
        x_BTD = x_BTD + of_its_document(latent, document).masked_fill(outside_BT1, 0.0)
    if norm_weight is not None:
        x_BTD = F.layer_norm(x_BTD, norm_weight.shape, norm_weight, norm_bias, norm_eps)
    return F.dropout(x_BTD, dropout_prob, training=dropout_prob > 0), tied_VD

"""The sum of token, position and block-position embeddings, in plain torch.

    x[b, t] = token_table[ids[b, t]]
            + position_table[position[b, t]] + block_table[block_position[b, t]]

GLM's 2D positions: the first number is the place in the text with its blanks, the second the place
inside a blank (0 outside of blanks). GLM (Du et al. 2022), section 2.2.
"""

from torch import Tensor
from torch.nn import functional as F


def embedding_2d(
    ids_BT: Tensor,
    position_BT: Tensor,
    block_position_BT: Tensor | None,
    token_table_VD: Tensor,
    position_table_PD: Tensor,
    block_table_PD: Tensor | None,
) -> Tensor:
    """Embedding sum of every token: (B, T, D).

    Without a block table (None, with block_position None) the third term is absent. On a CPU an
    index beyond its table is torch's IndexError; on a GPU callers check first (see Backbone).
    """
    x_BTD = F.embedding(ids_BT, token_table_VD) + F.embedding(position_BT, position_table_PD)
    if block_table_PD is None:
        return x_BTD
    assert block_position_BT is not None, "a block table needs block positions"
    return x_BTD + F.embedding(block_position_BT, block_table_PD)

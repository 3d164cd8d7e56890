"""Attention by torch's scaled_dot_product_attention with an additive mask, shared by all layers.

Same promise as reference.py. The mask of padding rows lets them see everything (SDPA over nothing
may give NaN, depending on version and device); their output is then set to 0, which also makes
every gradient that would come through them exactly 0.
"""

from torch import Tensor
from torch.nn import functional as F

from kernels.visibility import Visibility


def attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHK: Tensor,
    visibility: Visibility,
    *,
    dropout_prob: float = 0.0,
) -> Tensor:
    """See kernels.attention.reference.attention."""
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BTHK.transpose(1, 2),
        v_BTHK.transpose(1, 2),
        attn_mask=visibility.additive_mask(q_BTHK.dtype),
        dropout_p=dropout_prob,
    )
    return out_BHTK.transpose(1, 2).masked_fill(visibility.padding()[:, :, None, None], 0.0)

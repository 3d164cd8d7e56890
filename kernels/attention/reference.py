"""Attention in einsum: the oracle of every other implementation, right in float64.

For query i of head h over the keys j that visibility lets it see:

    weights[h, i, j] = softmax_j(q[i, h] . k[j, h] / sqrt(K))
    out[i, h] = sum_j weights[h, i, j] v[j, h]

The softmax is computed in at least fp32. A query that sees nothing (padding) gives exactly 0.
"""

import math

import torch
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
    """Mean of the visible values, weighted by the softmax of the scaled scores: (B, T, H, K).

    k, v: (B, S, H, K) where visibility has S keys. dropout_prob acts on the weights, from torch's
    generator, whenever it is above 0.
    """
    visible = visibility.dense_mask()  # (B, 1, T, S)
    score_dtype = torch.promote_types(q_BTHK.dtype, torch.float32)
    scores = torch.einsum("bthk,bshk->bhts", q_BTHK, k_BTHK).to(score_dtype)
    scores = scores / math.sqrt(q_BTHK.shape[-1])
    # finfo.min and not -inf: a row without a visible key stays finite and is then set to 0.
    scores = scores.masked_fill(~visible, torch.finfo(score_dtype).min)
    weights = scores.softmax(dim=-1).masked_fill(~visible, 0.0)
    weights = F.dropout(weights, dropout_prob, training=dropout_prob > 0)
    return torch.einsum("bhts,bshk->bthk", weights.to(v_BTHK.dtype), v_BTHK)

"""Attention in einsum: the oracle of every other implementation, right in float64.

For query i of head h, over the keys that visibility lets it see and the slots of its document:

    weights[h, i, :] = softmax(q[i, h] . keys[:, h] / sqrt(K))
    out[i, h] = sum_j weights[h, i, j] values[j, h]

The softmax is computed in at least fp32. A query that sees nothing (padding) gives exactly 0.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.visibility import Visibility


def latent_memory_attention(
    q_BTHK: Tensor,
    k_BSHK: Tensor,
    v_BSHK: Tensor,
    visibility: Visibility,
    *,
    latent_k: Tensor | None = None,
    latent_v: Tensor | None = None,
    dropout_prob: float = 0.0,
) -> Tensor:
    """Mean of the visible values, weighted by the softmax of the scaled scores: (B, T, H, K).

    latent_k, latent_v: keys and values of the M slots of each of the N documents of a row; without
    latent_v the keys are the values too. dropout_prob acts on the weights, from torch's generator,
    whenever it is above 0.
    """
    visible = visibility.dense_mask()  # (B, 1, T, S)
    score_dtype = torch.promote_types(q_BTHK.dtype, torch.float32)
    scores = torch.einsum("bthk,bshk->bhts", q_BTHK, k_BSHK)
    values_BTMHK, num_slots = None, 0
    if latent_k is not None:
        latent_v = latent_k if latent_v is None else latent_v
        num_slots = latent_k.shape[2]
        keys_BTMHK = of_its_document(latent_k, visibility.document)
        values_BTMHK = of_its_document(latent_v, visibility.document)
        scores = torch.cat((torch.einsum("bthk,btmhk->bhtm", q_BTHK, keys_BTMHK), scores), dim=-1)
        inside = ~visibility.padding()[:, None, :, None]
        visible = torch.cat((inside.expand(-1, -1, -1, num_slots), visible), dim=-1)
    scores = scores.to(score_dtype) / math.sqrt(q_BTHK.shape[-1])
    # finfo.min and not -inf: a row without a visible key stays finite and is then set to 0.
    scores = scores.masked_fill(~visible, torch.finfo(score_dtype).min)
    weights = scores.softmax(dim=-1).masked_fill(~visible, 0.0)
    weights = F.dropout(weights, dropout_prob, training=dropout_prob > 0).to(v_BSHK.dtype)
    out_BTHK = torch.einsum("bhts,bshk->bthk", weights[..., num_slots:], v_BSHK)
    if values_BTMHK is None:
        return out_BTHK
    return out_BTHK + torch.einsum("bhtm,btmhk->bthk", weights[..., :num_slots], values_BTMHK)


def of_its_document(latents_BN: Tensor, document_BT: Tensor) -> Tensor:
    """What belongs to each token's document: (B, N, ...) and (B, T) give (B, T, ...).

    Padding gets that of document 0, to be discarded by the caller.
    """
    row_B1 = torch.arange(len(latents_BN), device=latents_BN.device)[:, None]
    return latents_BN[row_B1, document_BT.long().clamp(min=0)]

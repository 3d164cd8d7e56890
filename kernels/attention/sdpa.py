"""Attention by torch's scaled_dot_product_attention with an additive mask, shared by all layers.

Same promise as reference.py. The mask of padding rows lets them see everything (SDPA over nothing
may give NaN, depending on version and device); their output is then set to 0, which also makes
every gradient that would come through them exactly 0. Latent slots are keys before those of the
row, all documents' slots in one line, and the mask shows each query its own.

On a CPU, rows of short documents are taken apart first where that is cheaper: packed.py.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.attention import packed
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
    """See kernels.attention.reference.latent_memory_attention."""
    grouping = None
    # While torch.compile traces, shapes that change with every batch would compile it anew.
    if q_BTHK.device.type == "cpu" and not torch.compiler.is_compiling():
        grouping = packed.grouping_of(visibility)
    if grouping is not None:
        return packed.latent_memory_attention(
            q_BTHK,
            k_BSHK,
            v_BSHK,
            grouping,
            latent_k=latent_k,
            latent_v=latent_v,
            dropout_prob=dropout_prob,
        )
    return whole_rows(
        q_BTHK,
        k_BSHK,
        v_BSHK,
        visibility,
        latent_k=latent_k,
        latent_v=latent_v,
        dropout_prob=dropout_prob,
    )


def whole_rows(
    q_BTHK: Tensor,
    k_BSHK: Tensor,
    v_BSHK: Tensor,
    visibility: Visibility,
    *,
    latent_k: Tensor | None = None,
    latent_v: Tensor | None = None,
    dropout_prob: float = 0.0,
) -> Tensor:
    """The same in one call, with a mask of T x S."""
    num_documents = num_slots = 0
    if latent_k is not None:
        latent_v = latent_k if latent_v is None else latent_v
        num_documents, num_slots = latent_k.shape[1:3]
        k_BSHK = torch.cat((latent_k.flatten(1, 2), k_BSHK), dim=1)
        v_BSHK = torch.cat((latent_v.flatten(1, 2), v_BSHK), dim=1)
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BSHK.transpose(1, 2),
        v_BSHK.transpose(1, 2),
        attn_mask=visibility.additive_mask(
            q_BTHK.dtype, num_documents=num_documents, num_slots=num_slots
        ),
        dropout_p=dropout_prob,
    )
    return out_BHTK.transpose(1, 2).masked_fill(visibility.padding()[:, :, None, None], 0.0)

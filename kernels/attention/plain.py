"""Attention and its gradients as the formulas of triton_backward.py, on tensors, in plain torch.

What the operators compute where no kernel can run: on a CPU without the interpreter. It is slow and
exists so that opcheck, torch.compile and readers see the whole operator without a GPU.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.attention.reference import of_its_document

LOG2_E = math.log2(math.e)


class Gradients(NamedTuple):
    """Of q, k, v, and of the slots' keys and values."""

    q: Tensor
    k: Tensor
    v: Tensor
    latent_k: Tensor
    latent_v: Tensor


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    latent_k: Tensor,
    latent_v: Tensor,
    lo: Tensor,
    hi: Tensor,
    document: Tensor,
) -> tuple[Tensor, Tensor]:
    """out (B, T, H, K) like q, and the log of the softmax's sum to base 2, (B, H, T) fp32.

    latent_k, latent_v: (B, N, M, H, K), M = 0 for none. lo, hi: as Visibility.query_intervals
    gives them. The log-sum is +inf where a query sees nothing.
    """
    scores = _scores(q, k, latent_k, lo, hi, document)
    natural = scores.logsumexp(-1)
    nothing = natural == float("-inf")
    lse = (natural * LOG2_E).masked_fill(nothing, float("inf"))
    weights = torch.exp2(scores * LOG2_E - lse[..., None])
    num_slots = latent_k.shape[2]
    out = torch.einsum("bhts,bshk->bthk", weights[..., num_slots:], v.float())
    if num_slots:
        values = of_its_document(latent_v, document).float()
        out = out + torch.einsum("bhtm,btmhk->bthk", weights[..., :num_slots], values)
    return out.to(q.dtype).contiguous(), lse


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    latent_k: Tensor,
    latent_v: Tensor,
    out: Tensor,
    lse: Tensor,
    lo: Tensor,
    hi: Tensor,
    document: Tensor,
) -> Gradients:
    """Gradients for the output's gradient `dout`, each in the dtype of what it belongs to."""
    num_slots, scale = latent_k.shape[2], q.shape[-1] ** -0.5
    scores = _scores(q, k, latent_k, lo, hi, document)
    weights = torch.exp2(scores * LOG2_E - lse[..., None])
    dout = dout.float()
    delta = (out.float() * dout).sum(-1).transpose(1, 2)[..., None]  # (B, H, T, 1)
    dweights = torch.einsum("bthk,bshk->bhts", dout, v.float())
    if num_slots:
        values = of_its_document(latent_v, document).float()
        of_slots = torch.einsum("bthk,btmhk->bhtm", dout, values)
        dweights = torch.cat((of_slots, dweights), -1)
    dscores = weights * (dweights - delta) * scale
    on_keys, p = dscores[..., num_slots:], weights[..., num_slots:]
    dq = torch.einsum("bhts,bshk->bthk", on_keys, k.float())
    dk = torch.einsum("bhts,bthk->bshk", on_keys, q.float())
    dv = torch.einsum("bhts,bthk->bshk", p, dout)
    dlatent_k, dlatent_v = torch.zeros_like(latent_k), torch.zeros_like(latent_v)
    if num_slots:
        keys = of_its_document(latent_k, document).float()
        on_slots, p = dscores[..., :num_slots], weights[..., :num_slots]
        dq = dq + torch.einsum("bhtm,btmhk->bthk", on_slots, keys)
        owner = document[:, :, None] == torch.arange(latent_k.shape[1], device=q.device)
        owner = owner.float()
        dlatent_k = torch.einsum("btn,bhtm,bthk->bnmhk", owner, on_slots, q.float())
        dlatent_v = torch.einsum("btn,bhtm,bthk->bnmhk", owner, p, dout)
    gradients = (dq, dk, dv, dlatent_k, dlatent_v)
    like = (q, k, v, latent_k, latent_v)
    return Gradients(*(g.to(t.dtype).contiguous() for g, t in zip(gradients, like, strict=True)))


def _scores(
    q: Tensor, k: Tensor, latent_k: Tensor, lo: Tensor, hi: Tensor, document: Tensor
) -> Tensor:
    """Scaled scores over slots and keys, fp32 (B, H, T, M + S); -inf where not seen."""
    key = torch.arange(k.shape[1], device=q.device)
    seen = (key >= lo[..., None]) & (key < hi[..., None])
    scores = torch.einsum("bthk,bshk->bhts", q.float(), k.float())
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    if latent_k.shape[2]:
        keys = of_its_document(latent_k, document).float()
        of_slots = torch.einsum("bthk,btmhk->bhtm", q.float(), keys)
        outside = (document < 0)[:, None, :, None]
        scores = torch.cat((of_slots.masked_fill(outside, float("-inf")), scores), -1)
    return scores * q.shape[-1] ** -0.5

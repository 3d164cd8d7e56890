"""Ours and the peers, each a function of the same q, k, v and slots.

A peer that cannot do a case is left out of it: `contestants` gives a reason instead of a function.
"""

import importlib.util
import inspect
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.attention import reference, sdpa
from kernels.benchmark.cases import AttentionCase
from kernels.dispatch import latent_memory_attention
from kernels.visibility import Visibility

Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MAX_EAGER_SCORES = 2**31  # of all heads and rows: 8 GiB in fp32


def contestants(case: AttentionCase, device: str, *, with_flex: bool) -> dict[str, Attention | str]:
    """By name: (q, k, v, latent_k, latent_v) -> out, or the reason why there is none."""
    visibility = case.visibility(device)
    on_gpu = device == "cuda"
    scores = case.rows * case.heads * case.tokens**2
    found: dict[str, Attention | str] = {
        "ours": partial(_attend, latent_memory_attention, visibility),
        "SDPA with mask": partial(_attend, sdpa.whole_rows, visibility),
        "SDPA causal, no slots": _causal,
        "eager": _reference(visibility),
    }
    if scores > MAX_EAGER_SCORES:
        found["eager"] = "its scores would take more than 8 GiB"
    if on_gpu:
        found["FlexAttention"] = "measured on a few cases only (20 s of compilation each)"
        if with_flex:
            found["FlexAttention"] = _flex(case, visibility)
        found["two varlen calls"] = _two_calls(case, device)
    return found


def _reference(visibility: Visibility) -> Attention:
    return partial(_attend, reference.latent_memory_attention, visibility)


def _attend(op: Callable[..., Tensor], visibility: Visibility, q, k, v, latent_k, latent_v):
    if latent_k.shape[2] == 0:
        return op(q, k, v, visibility)
    return op(q, k, v, visibility, latent_k=latent_k, latent_v=latent_v)


def _causal(q: Tensor, k: Tensor, v: Tensor, latent_k: Tensor, latent_v: Tensor) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _flex(case: AttentionCase, visibility: Visibility) -> Attention:
    """Slots come before the keys; a block mask is made once, as a training step would."""
    from torch.nn.attention.flex_attention import create_block_mask

    lo, hi, document = visibility.lo, visibility.hi, visibility.document
    num_slots = case.num_slots * case.num_documents

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        key = j - num_slots
        of_keys = (key >= lo[b, i]) & (key < hi[b, i])
        if num_slots == 0:
            return of_keys
        return torch.where(j < num_slots, j // case.num_slots == document[b, i], of_keys)

    length = case.tokens + num_slots
    mask = create_block_mask(sees, case.rows, None, case.tokens, length, device=lo.device)

    def attend(q: Tensor, k: Tensor, v: Tensor, latent_k: Tensor, latent_v: Tensor) -> Tensor:
        if num_slots:
            k = torch.cat((latent_k.flatten(1, 2), k), dim=1)
            v = torch.cat((latent_v.flatten(1, 2), v), dim=1)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return _compiled_flex()(q, k, v, block_mask=mask).transpose(1, 2)

    return attend


def _two_calls(case: AttentionCase, device: str) -> Attention | str:
    """Prefixes both ways in one call, the rest of each document causally in another."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return "this torch has no varlen_attn"
    from torch.nn.attention.varlen import varlen_attn

    if "window_size" not in inspect.signature(varlen_attn).parameters:
        return "this torch's varlen_attn has no window_size"
    if case.num_slots:
        return "it knows no slots"
    n, p = case.document_tokens, case.prefix_tokens
    count = case.rows * case.tokens // n
    in_prefix = (torch.arange(case.rows * case.tokens, device=device) % n) < p
    prefix, rest = in_prefix.nonzero()[:, 0], (~in_prefix).nonzero()[:, 0]

    def starts(length: int) -> Tensor:
        return torch.arange(0, (count + 1) * length, length, device=device, dtype=torch.int32)

    def attend(q: Tensor, k: Tensor, v: Tensor, latent_k: Tensor, latent_v: Tensor) -> Tensor:
        q_flat, k_flat, v_flat = (t.flatten(0, 1) for t in (q, k, v))
        late = varlen_attn(
            q_flat[rest], k_flat, v_flat, starts(n - p), starts(n), n - p, n, window_size=(-1, 0)
        )
        assert isinstance(late, Tensor)
        out = torch.zeros_like(q_flat).index_copy(0, rest, late)
        if p:
            q_early, k_early, v_early = (t[prefix] for t in (q_flat, k_flat, v_flat))
            early = varlen_attn(q_early, k_early, v_early, starts(p), starts(p), p, p)
            assert isinstance(early, Tensor)
            out = out.index_copy(0, prefix, early)
        return out.view(q.shape)

    return attend

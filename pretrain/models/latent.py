"""From hidden states to a posterior over z, and from z to what a decoder reads.

    head, injector = LatentHead(latent, 768, generator=g), Injector(latent, shape, generator=g)
    posterior = head(hidden_BTD, document_BT, num_documents)       # mu, logvar: (B, N, Z)
    z_BNZ = posterior.sample(noise_BNZ)
    backbone(ids, positions, visibility, memory=injector(z_BNZ).memory)

Documents of a packed row never mix: every sum runs over the tokens of one document, so that mu does
not depend on what else is in the row or the batch. All of it is computed in fp32 at least, whatever
the weights are kept in: 8 bits of bf16 are too few for exp(logvar) and for sums over z.
Optimus (Li et al. 2020), section 3; AdaVAE (Tu et al. 2022), section 3; docs/objectives.md.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pretrain.models.adapters import Adapter
from pretrain.models.backbone import normal_parameter
from pretrain.models.latent_shape import LatentShape
from pretrain.models.layer import Slots
from pretrain.models.shape import BackboneShape

# exp(logvar) stays finite in fp32, and so does its square in the variance of a batch.
LOGVAR_LIMIT = 30.0


class Posterior(NamedTuple):
    """q(z | x) of N documents a row, a diagonal normal: mu, logvar (B, N, Z) in fp32 at least."""

    mu: Tensor
    logvar: Tensor

    def sample(self, noise_BNZ: Tensor) -> Tensor:
        """z = mu + noise x exp(logvar / 2), with noise from N(0, 1)."""
        return self.mu + noise_BNZ.to(self.mu.dtype) * torch.exp(0.5 * self.logvar)

    def kl(self) -> Tensor:
        """KL(q || N(0, I)) of each dimension in nats: (B, N, Z).

        (mu^2 + e^logvar - 1 - logvar) / 2; expm1 keeps digits where the posterior is the prior.
        """
        return 0.5 * (self.mu.square() + (self.logvar.expm1() - self.logvar))


class WideLinear(nn.Module):
    """y = x W^T (+ b) in fp32 at least, with W ~ N(0, std) and b = 0."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        std: float,
        generator: torch.Generator,
        has_bias: bool = True,
    ) -> None:
        super().__init__()
        self.weight = normal_parameter(num_outputs, num_inputs, std, generator)
        self.bias = nn.Parameter(torch.zeros(num_outputs)) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        # A plain product: zero.Init's stand-in for F.linear would keep the bf16 weight.
        y = x.to(dtype) @ self.weight.to(dtype).t()
        return y if self.bias is None else y + self.bias.to(dtype)


class Pooler(nn.Module):
    """One vector for each document of a packed row, (B, N, D), 0 for documents that are not there.

    See LatentShape.pooling for the choices.
    """

    def __init__(
        self, latent: LatentShape, width: int, *, std: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.pooling = latent.pooling
        self.score_divisor = math.sqrt(width)  # of latent_attention
        self.score = self.dense = None
        if self.pooling in ("latent_attention", "average"):
            has_bias = self.pooling == "latent_attention"
            self.score = WideLinear(width, 1, std=std, generator=generator, has_bias=has_bias)
        else:
            inputs = 2 * width if self.pooling == "mean_max" else width
            self.dense = WideLinear(inputs, width, std=std, generator=generator)

    def forward(self, hidden_BTD: Tensor, document_BT: Tensor, num_documents: int) -> Tensor:
        hidden_BTD = hidden_BTD.to(torch.promote_types(hidden_BTD.dtype, torch.float32))
        number_N = torch.arange(num_documents, device=document_BT.device)
        owns_BNT = document_BT[:, None] == number_N[:, None]
        if self.score is not None:
            weights_BNT = self._weights(self.score(hidden_BTD)[..., 0], owns_BNT)
            return weights_BNT @ hidden_BTD
        assert self.dense is not None
        exists_BN1 = owns_BNT.any(-1, keepdim=True)
        return torch.tanh(self.dense(self._features(hidden_BTD, owns_BNT))) * exists_BN1

    def _weights(self, score_BT: Tensor, owns_BNT: Tensor) -> Tensor:
        """Weights of a document's tokens in its mean; they sum to 1, or to 0 without tokens."""
        score_BT = F.relu(score_BT)
        if self.pooling == "latent_attention":
            score_BT = score_BT / self.score_divisor
        hidden = ~owns_BNT
        # finfo.min and not -inf: a document without tokens stays finite and is then set to 0.
        scores_BNT = score_BT[:, None].masked_fill(hidden, torch.finfo(score_BT.dtype).min)
        return scores_BNT.softmax(-1).masked_fill(hidden, 0.0)

    def _features(self, hidden_BTD: Tensor, owns_BNT: Tensor) -> Tensor:
        """What the dense layer reads: first token, mean, or mean and maximum: (B, N, D or 2 D)."""
        if self.pooling == "cls":
            is_first_BNT = owns_BNT & (owns_BNT.cumsum(-1) == 1)
            return is_first_BNT.to(hidden_BTD.dtype) @ hidden_BTD
        owns = owns_BNT.to(hidden_BTD.dtype)
        mean_BND = owns @ hidden_BTD / owns.sum(-1, keepdim=True).clamp(min=1.0)
        if self.pooling == "mean":
            return mean_BND
        lowest = torch.finfo(hidden_BTD.dtype).min
        # Document by document: (B, N, T, D) at once would be N times the hidden states.
        highest = [
            hidden_BTD.masked_fill(~owns_BT[..., None], lowest).amax(1)
            for owns_BT in owns_BNT.unbind(1)
        ]
        highest_BND = torch.stack(highest, 1).masked_fill(~owns_BNT.any(-1, keepdim=True), 0.0)
        return torch.cat((mean_BND, highest_BND), -1)


class LatentHead(nn.Module):
    """q(z | x) from the hidden states of an encoder: pooled, then mapped to mu and logvar."""

    def __init__(
        self,
        latent: LatentShape,
        width: int,
        *,
        std: float = 0.02,
        generator: torch.Generator,
        has_bias: bool = True,
    ) -> None:
        """width: D of the encoder. has_bias: of the last map (Optimus has none)."""
        super().__init__()
        self.pooler = Pooler(latent, width, std=std, generator=generator)
        self.posterior = WideLinear(
            width, 2 * latent.size, std=std, generator=generator, has_bias=has_bias
        )

    def forward(self, hidden_BTD: Tensor, document_BT: Tensor, num_documents: int) -> Posterior:
        pooled_BND = self.pooler(hidden_BTD, document_BT, num_documents)
        mu, logvar = self.posterior(pooled_BND).chunk(2, -1)
        return Posterior(mu, logvar.clamp(-LOGVAR_LIMIT, LOGVAR_LIMIT))


class Injected(NamedTuple):
    """What a decoder reads of z; arguments of Backbone.forward."""

    memory: list[Slots] | None
    latent_embedding: Tensor | None
    adapters: Sequence[Adapter] | None = None  # with which it reads it


class Injector(nn.Module):
    """Slots of every layer, what is added to the embedding, or both, from z."""

    def __init__(
        self,
        latent: LatentShape,
        decoder: BackboneShape,
        *,
        generator: torch.Generator,
        shares_values: bool = False,
    ) -> None:
        """shares_values: whether a slot's key is its value too (Optimus), instead of one each."""
        super().__init__()
        self.latent, self.decoder, self.shares_values = latent, decoder, shares_values
        std, width = decoder.init_std, decoder.hidden_size
        self.memory = self.embedding = None
        if latent.injection in ("memory", "both"):
            numbers = decoder.num_layers * latent.slots * (1 if shares_values else 2)
            self.memory = WideLinear(
                latent.size, numbers * width, std=std, generator=generator, has_bias=False
            )
        if latent.injection in ("embedding", "both"):
            self.embedding = WideLinear(
                latent.size, width, std=std, generator=generator, has_bias=False
            )

    def forward(self, z_BNZ: Tensor | None, dtype: torch.dtype | None = None) -> Injected:
        """Of no z, nothing. dtype: of the decoder; by default that of z."""
        if z_BNZ is None:
            return Injected(None, None)
        dtype = z_BNZ.dtype if dtype is None else dtype
        memory = added_BND = None
        if self.memory is not None:
            heads, both = self.decoder.num_heads, 1 if self.shares_values else 2
            sizes = (self.decoder.num_layers, both, self.latent.slots, heads, -1)
            slots = self.memory(z_BNZ).to(dtype).unflatten(-1, sizes)
            memory = [
                (layer[:, :, 0], None if self.shares_values else layer[:, :, 1])
                for layer in slots.unbind(2)
            ]
        if self.embedding is not None:
            added_BND = self.embedding(z_BNZ).to(dtype)
        return Injected(memory, added_BND)

"""Optimus as one writes it with transformers: BertModel, GPT2LMHeadModel and three linear maps.

z enters the decoder as one key and value of every layer, handed over as what it has read before,
and is added to the embeddings. Batches are padded; there are logits at every position.
"""

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, DynamicCache

from bench.peers import gpt2
from bench.sizes import Size


class PaddedVae(nn.Module):
    """An encoder and a decoder of a size, without dropout."""

    def __init__(self, size: Size, latent_size: int) -> None:
        super().__init__()
        width = size.hidden_size
        self.encoder = BertModel(
            BertConfig(
                vocab_size=size.vocab_size,
                hidden_size=width,
                num_hidden_layers=size.num_layers,
                num_attention_heads=size.num_heads,
                intermediate_size=4 * width,
                max_position_embeddings=size.row_tokens,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
        self.encoder.set_attn_implementation("sdpa")
        self.decoder = gpt2(size)
        self.num_heads = size.num_heads
        self.posterior = nn.Linear(width, 2 * latent_size, bias=False)
        self.memory = nn.Linear(latent_size, size.num_layers * width, bias=False)
        self.embedding = nn.Linear(latent_size, width, bias=False)

    def forward(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """The mean over sentences of reconstruction + KL."""
        pooled_BD = self.encoder(ids_BT, attention_mask=mask_BT).pooler_output
        mu, logvar = self.posterior(pooled_BD).chunk(2, -1)
        z_BZ = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        kl = 0.5 * (mu.square() + logvar.exp() - logvar - 1.0).sum()
        cache = DynamicCache()
        layers = self.memory(z_BZ).unflatten(
            -1, (-1, self.num_heads, 1, pooled_BD.shape[-1] // self.num_heads)
        )
        for number, slot_BHTK in enumerate(layers.unbind(1)):
            cache.update(slot_BHTK, slot_BHTK, number)
        read_BTD = self.decoder.transformer.wte(ids_BT) + self.embedding(z_BZ)[:, None]
        logits_BTV = self.decoder(
            inputs_embeds=read_BTD,
            cache=cache,
            attention_mask=torch.cat((mask_BT[:, :1], mask_BT), 1),
        ).logits
        targets_BT = ids_BT.masked_fill(mask_BT == 0, -100)[:, 1:]
        nats = nn.functional.cross_entropy(
            logits_BTV[:, :-1].flatten(0, 1),
            targets_BT.flatten(),
            ignore_index=-100,
            reduction="sum",
        )
        return (nats + kl) / len(ids_BT)

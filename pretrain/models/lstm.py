"""An LSTM that reads a text and one that writes it from a latent vector (Bowman et al. 2016).

    reader, writer = LstmReader(v, 200, 256, generator=g), LstmWriter(v, 200, 256, 32, generator=g)
    texts = unpacked(ids_BT, document_BT, place_BT, num_documents=N, max_tokens=L)
    last_BNH = reader(texts)                          # what stands behind the last token
    hidden_DLE, state = writer(texts.ids, z_DZ)       # and what it goes on from
    logits_BTV = writer.logits(packed(hidden_DLE, texts))

Rows of packed texts are taken apart into one text a row, since an LSTM knows no visibility, and
what is written goes back to the places of the packed row.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pretrain.models.latent import WideLinear
from pretrain.models.parameters import Linear, normal_parameter


class Texts(NamedTuple):
    """The documents of packed rows, one a row: D = B x N of them, of at most L tokens."""

    ids: Tensor  # (D, L), 0 behind the end
    lengths: Tensor  # (D,), 0 for a document that is not there
    slot: Tensor  # (B, T) place of each token in (D, L), flattened; D L for padding
    size: tuple[int, int]  # B, N


def unpacked(
    ids_BT: Tensor, document_BT: Tensor, place_BT: Tensor, *, num_documents: int, max_tokens: int
) -> Texts:
    """place_BT: of each token inside its document, below max_tokens = L."""
    num_rows = len(ids_BT)
    num_texts = num_rows * num_documents
    row_B1 = torch.arange(num_rows, device=ids_BT.device)[:, None]
    slot_BT = (row_B1 * num_documents + document_BT) * max_tokens + place_BT
    slot_BT = slot_BT.masked_fill(document_BT < 0, num_texts * max_tokens).long()
    flat = slot_BT.flatten()
    ids = ids_BT.new_zeros(num_texts * max_tokens + 1, dtype=torch.int64)
    ids = ids.scatter(0, flat, ids_BT.flatten().long())[:-1].view(num_texts, max_tokens)
    lengths = torch.zeros(num_texts + 1, dtype=torch.int64, device=ids_BT.device)
    lengths = lengths.scatter_add(0, flat // max_tokens, torch.ones_like(flat))[:-1]
    return Texts(ids, lengths, slot_BT, (num_rows, num_documents))


def packed(hidden_DLE: Tensor, texts: Texts) -> Tensor:
    """What stands at each token of `texts` in the places of the packed rows: (B, T, E), 0 at
    padding."""
    nothing_1E = hidden_DLE.new_zeros(1, hidden_DLE.shape[-1])
    flat = torch.cat((hidden_DLE.flatten(0, 1), nothing_1E))
    return flat.index_select(0, texts.slot.flatten()).view(*texts.slot.shape, -1)


# What an LSTM of one layer goes on from, the two tensors (1, D, H) of torch.nn.LSTM.
State = tuple[Tensor, Tensor]


class SeededLstm(nn.LSTM):
    """One layer, batch first, with weights from `generator` in (-1, 1) / sqrt(H)."""

    def __init__(self, num_inputs: int, num_hidden: int, generator: torch.Generator) -> None:
        super().__init__(num_inputs, num_hidden, batch_first=True)
        bound = 1.0 / math.sqrt(num_hidden)
        for parameter in self.parameters():
            if not parameter.is_meta:
                drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
                parameter.data.copy_(drawn.uniform_(-bound, bound, generator=generator))


class LstmReader(nn.Module):
    """The state behind the last token of each document: (B, N, H), 0 for those not there."""

    def __init__(
        self, vocab_size: int, width: int, num_hidden: int, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.token_table = normal_parameter(vocab_size, width, 0.1, generator)
        self.lstm = SeededLstm(width, num_hidden, generator)

    def forward(self, texts: Texts) -> Tensor:
        states_DLH, _ = self.lstm(F.embedding(texts.ids, self.token_table))
        last_D = (texts.lengths - 1).clamp(min=0)
        last_DH = states_DLH[torch.arange(len(last_D), device=last_D.device), last_D]
        return (last_DH * (texts.lengths > 0)[:, None]).unflatten(0, texts.size)


class LstmWriter(nn.Module):
    """Hidden states of width E from which the next token is told; z sets the first state and is
    read beside every token."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        num_hidden: int,
        latent_size: int,
        *,
        dropout_prob: float = 0.0,
        generator: torch.Generator,
    ) -> None:
        """dropout_prob: on what the LSTM reads of a token and on what it gives."""
        super().__init__()
        self.dropout_prob = dropout_prob
        self.token_table = normal_parameter(vocab_size, width, 0.1, generator)
        self.begin = WideLinear(latent_size, num_hidden, std=0.1, generator=generator)
        self.lstm = SeededLstm(width + latent_size, num_hidden, generator)
        self.output = Linear(num_hidden, width, 0.1, generator)

    def forward(
        self, ids_DL: Tensor, z_DZ: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        """Hidden states (D, L, E) of D texts, and the state behind them; state: that behind the
        tokens before these, None at the beginning."""
        read_DLE = self._dropout(F.embedding(ids_DL, self.token_table))
        if state is None:
            memory_DH = self.begin(z_DZ).to(read_DLE.dtype)
            state = (memory_DH.tanh()[None], memory_DH[None])
        latent_DLZ = z_DZ.to(read_DLE.dtype)[:, None].expand(-1, read_DLE.shape[1], -1)
        states_DLH, reached = self.lstm(torch.cat((read_DLE, latent_DLZ), -1), state)
        return self.output(self._dropout(states_DLH)), reached

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, (..., V), by the token table."""
        return F.linear(hidden, self.token_table)

    def _dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout_prob, self.training)

"""What an encoder of whole texts reads, and the noise of their latent vectors; on the CPU.

    inputs = {**glm_inputs(batch), **latent_inputs(batch, size=32, config=elbo, factor=0.5)}

Sources are laid end to end like the rows they belong to: document d of a row here is d there.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline import hashing
from pretrain.settings.elbo_config import ElboConfig

NOISE_DRAWS = 8 << 32  # draw number of the first dimension; what is blanked takes those below


def latent_inputs(batch: Any, *, size: int, config: ElboConfig, factor: float) -> dict[str, Tensor]:
    """What `encoder_inputs` gives, noise (B, N, Z) and beta, a scalar."""
    return {
        **encoder_inputs(batch),
        "noise": noise_of(batch, size, sampled=config.noise == "sampled"),
        "beta": torch.tensor(factor),
    }


def encoder_inputs(batch: Any) -> dict[str, Tensor]:
    """What the encoder reads: source_ids, _document, _lo, _hi (B, T), source_positions (B, 2, T);
    and of the documents: exists and text_kind (B, N), N at least 1.

    A batch of padding alone has no sources; it gets a document that does not exist.
    """
    if batch.sources is None:
        source_ids, document_BT = torch.zeros_like(batch.ids), torch.full_like(batch.ids, -1)
        num_documents = 1
    else:
        source_ids, document_BT = batch.sources
        num_documents = max(batch.keys.shape[1], 1)
    exists_BN, lo_BT, hi_BT, place_BT = document_places(document_BT, num_documents)
    return {
        "source_ids": source_ids,
        "source_document": document_BT,
        "source_lo": lo_BT,
        "source_hi": hi_BT,
        "source_positions": torch.stack((place_BT, torch.zeros_like(place_BT)), 1),
        "exists": exists_BN,
        "text_kind": kinds_of_texts(batch, num_documents),
    }


def document_places(
    document_BT: Tensor, num_documents: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of documents laid end to end: which exist (B, N); first token, one past the last and the
    place inside the document of every token, int32 (B, T), 0 on padding."""
    inside_BT = document_BT >= 0
    owner_BT = document_BT.long().clamp(min=0)
    lengths_BN = torch.zeros(len(document_BT), num_documents, dtype=torch.int64)
    lengths_BN.scatter_add_(1, owner_BT, inside_BT.long())
    stop_BN = lengths_BN.cumsum(1)
    start_BT = (stop_BN - lengths_BN).gather(1, owner_BT)
    place_BT = torch.arange(document_BT.shape[1]) - start_BT
    placed = (start_BT, stop_BN.gather(1, owner_BT), place_BT)
    lo_BT, hi_BT, place_BT = (t.masked_fill(~inside_BT, 0).int() for t in placed)
    return lengths_BN > 0, lo_BT, hi_BT, place_BT


def kinds_of_texts(batch: Any, num_documents: int) -> Tensor:
    """The kind of blank of each document, an index into KINDS: (B, N) int64, 0 without targets."""
    kinds_BN = torch.zeros(len(batch.ids), num_documents, dtype=torch.int64)
    owner_BT = batch.document.long().clamp(min=0)
    return kinds_BN.scatter_reduce_(1, owner_BT, batch.kind.long(), "amax")


def noise_of(batch: Any, size: int, *, sampled: bool = True) -> Tensor:
    """N(0, 1) for each dimension of each document's z: fp32 (B, N, Z), a function of its key alone.

    A key is a hash of (seed, epoch, document, its first token), so that noise is the same whatever
    the rank, the world size and the neighbours, and a resume draws it again.
    """
    if batch.sources is None:
        return torch.zeros(len(batch.ids), 1, size)
    keys_BN = batch.keys.numpy().view(np.uint64)
    if not sampled or not keys_BN.shape[1]:
        return torch.zeros(len(keys_BN), max(keys_BN.shape[1], 1), size)
    draws = NOISE_DRAWS + np.arange(size)
    keys = np.repeat(keys_BN.reshape(-1), size)
    noise = hashing.normal(keys, np.tile(draws, keys_BN.size))
    return torch.from_numpy(noise.astype(np.float32).reshape(*keys_BN.shape, size))

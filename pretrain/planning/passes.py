"""Bytes that objectives with an encoder and a decoder keep: one pass for each, and the latent head.

A latent objective takes a micro-batch through a Transformer twice, and what both passes keep stands
side by side until the one backward; so do all objectives of a run. Layers keep what flow.py says.
Around them,

    frozen tables  keep no indices, and the loss no hidden states
    token types    an index more; a LayerNorm of the embedding its input, mean and 1 / deviation
    W z            that is added to the embedding: the document of each token (int64), the padding

A head that weighs tokens keeps the hidden states in fp32. Slots are counted as in sdpa
(kernels/attention); triton copies no keys and has no mask, so that there it is an upper bound.

No torch here; tests/pretrain/test_run_plan_latent.py counts live storages against it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from pretrain.models.latent_shape import LatentShape
from pretrain.planning.activations import (
    FP32,
    INT32,
    INT64,
    Device,
    MicroBatch,
    dropout_bytes,
    is_unfused,
    loss_bytes,
    norm_bytes,
    stream_bytes,
)
from pretrain.planning.flow import Pass, layers_kept, slot_bytes
from pretrain.planning.lstm import LstmPass, lstm_passes
from pretrain.planning.rows import RowContent
from pretrain.settings.config import Config

AnyPass = Pass | LstmPass


def passes_of(config: Config, name: str, rows: RowContent, micro_rows: int) -> Sequence[AnyPass]:
    """The passes of objective `name` in the order of the forward pass."""
    batch = MicroBatch(micro_rows, config.data.packing.row_tokens, micro_rows * rows.targets)
    again = config.memory.layers_per_checkpoint
    if name == "lstm_vae":
        return lstm_passes(config, rows, batch)
    prefix = config.model.prefix_slots
    plain = Pass(
        name=name, shape=config.model, batch=batch, layers_per_checkpoint=again,
        documents=rows.documents, slots=prefix, trains=config.trains,
        last_layers=config.unfreezing.layers, num_layers=config.model.num_layers,
    )  # fmt: skip
    if name in ("glm", "causal"):
        return [plain]
    objective = getattr(config.objectives, name)
    latent: LatentShape = objective.latent
    writes = replace(
        plain,
        name=f"{name} writes",
        slots=prefix + (0 if latent.injection == "embedding" else latent.slots),
        adds_latent=latent.injection != "memory",
        sums_texts=True,
    )
    reads = replace(
        plain, name=f"{name} reads", writes=False, pools=latent, batch=replace(batch, targets=0)
    )
    if name == "optimus":
        # Its layers are never run again, and it is no part of the backbone, which may be frozen.
        reads = replace(
            reads, shape=objective.encoder, layers_per_checkpoint=0, is_own=True,
            slots=objective.encoder.prefix_slots,
        )  # fmt: skip
    if name == "adavae":
        size, placement = objective.adapter_size, objective.adapter_placement
        first = replace(config.model, num_layers=objective.encoder_layers)
        reads = replace(reads, shape=first, adapter_size=size, placement=placement)
        if latent.injection != "embedding":
            writes = replace(writes, adapter_size=size, placement=placement)
    return [reads, writes]


def peak_bytes(
    passes: Sequence[AnyPass], *, vocab_size: int, element_bytes: int, device: Device = "cuda"
) -> dict[str, float]:
    """Bytes of all passes by name at the fullest moment of the backward.

    That is its beginning, or, where groups of layers are run again, the moment when a group of one
    pass stands in full and its loss is gone, if that is more.
    """
    kept, extra = {}, {}
    for one in passes:
        if isinstance(one, LstmPass):
            kept[one.name] = one.kept_bytes(vocab_size, element_bytes, device)
            extra[one.name] = 0.0
            continue
        loss = _loss_bytes(one, vocab_size, element_bytes, device)
        kept[one.name] = loss + below_loss_bytes(one, element_bytes, device)
        again = fullest_group_bytes(one, element_bytes, device)
        extra[one.name] = max(again - loss, 0)
    fullest = max(extra, key=lambda name: extra[name])
    kept[fullest] += extra[fullest]
    return kept


def fullest_group_bytes(one: Pass, element_bytes: int, device: Device = "cuda") -> float:
    """Bytes of the fullest group of layers that are run again; 0 where none are."""
    each, step = layers_kept(one, element_bytes, device)[0], one.layers_per_checkpoint
    groups = [sum(each[first : first + step]) for first in range(0, len(each), step or 1)]
    return max(groups) if step else 0.0


def below_loss_bytes(one: Pass, element_bytes: int, device: Device = "cuda") -> float:
    """Bytes that embedding, layers, last LayerNorm and head keep."""
    batch, layers = one.batch, one.shape.num_layers
    each, needs = layers_kept(one, element_bytes, device)
    kept = sum(each)
    if step := one.layers_per_checkpoint:  # a group keeps its input, and the slots it reads
        groups = math.ceil(layers / step) * stream_bytes(one.shape, batch, element_bytes)
        kept = groups + layers * 2 * slot_bytes(one, element_bytes)
    if one.shape.norm_order == "pre" and (needs or one.final_norm_learns):
        kept += stream_bytes(one.shape, batch, element_bytes)
        kept += norm_bytes(batch, element_bytes, device)
    mask = 0
    if any(each) and not is_unfused(one.shape, device):
        keys = batch.row_tokens + one.documents * one.slots
        mask = batch.positions * keys * element_bytes
    head = 0.0 if one.pools is None else head_bytes(one, one.pools)
    return _embedding_bytes(one, element_bytes, device) + kept + mask + head


def head_bytes(one: Pass, latent: LatentShape) -> float:
    """Bytes that pooling, posterior and the sum over texts keep, all in fp32."""
    positions, width = one.batch.positions, one.shape.hidden_size
    owned = positions * one.documents  # (B, N, T)
    if latent.pooling in ("latent_attention", "average"):
        # the hidden states; two masks, softmax and weights
        kept, pooled = positions * width * FP32 + owned * (2 + 2 * FP32), 1
    else:
        kept, pooled = owned * FP32, 4 if latent.pooling == "mean_max" else 3
    if latent.pooling == "mean_max":  # the hidden states of each document by themselves
        kept += owned * (width * FP32 + 1)
    texts = one.batch.rows * one.documents
    return kept + texts * FP32 * (pooled * width + 10 * latent.size)


def _embedding_bytes(one: Pass, element_bytes: int, device: Device) -> float:
    shape, positions = one.shape, one.batch.positions
    if not (one.tables_learn or one.adds_latent or one.embedding_norm_learns):
        return 0
    kept = dropout_bytes(shape, one.batch, element_bytes, device)
    if one.tables_learn:
        kept += (3 + (shape.token_types > 0)) * INT32 * positions
    if one.adds_latent:
        kept += (INT64 + 1) * positions
    if shape.embedding_norm:
        kept += stream_bytes(shape, one.batch, element_bytes)
        kept += norm_bytes(one.batch, element_bytes, device)
    return kept


def _loss_bytes(one: Pass, vocab_size: int, element_bytes: int, device: Device) -> float:
    passes = layers_kept(one, element_bytes, device)[1] or one.final_norm_learns
    if not one.writes or not passes:
        return 0
    kept = loss_bytes(one.shape, one.batch, vocab_size, element_bytes)
    if one.sums_texts:  # the text of each target
        kept += one.batch.targets * INT64
    if not one.tables_learn:
        kept -= one.batch.targets * one.shape.hidden_size * element_bytes
    return kept

"""Bytes that objectives with an encoder and a decoder keep: one pass for each, and the latent head.

A latent objective takes a micro-batch through a Transformer twice, and what both passes keep stands
side by side until the one backward; so do all objectives of a run. A pass keeps what activations.py
says, and beside or instead of it, with n = rows x row_tokens x width elements,

    slots          k and v once more with the slots before them, 2 n and the slots; a wider mask
    adapters       what stands inside of each, and with `sequential` what it reads
    frozen         matrices that do not learn keep no input: 3 n and GELU's output less a layer, no
                   indices of tables, no hidden states of the loss
    token types    an index more; a LayerNorm of the embedding its input, mean and 1 / deviation
    W z            that is added to the embedding: the document of each token (int64), the padding

A head that weighs tokens keeps the hidden states in fp32. Slots are counted as in sdpa
(kernels/attention); triton copies no keys and has no mask, so that there it is an upper bound.

No torch here; tests/pretrain/test_run_plan_latent.py counts live storages against it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pretrain.models.latent_shape import LatentShape, Placement
from pretrain.models.shape import BackboneShape
from pretrain.planning.activations import (
    FP32,
    INT32,
    INT64,
    Device,
    MicroBatch,
    dropout_bytes,
    is_unfused,
    layer_bytes,
    loss_bytes,
    norm_bytes,
    stream_bytes,
)
from pretrain.planning.rows import RowContent
from pretrain.settings.config import Config


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A micro-batch on its way through a Transformer of `shape`."""

    name: str
    shape: BackboneShape
    batch: MicroBatch
    documents: int = 0  # of a row, at most, where z or a head is involved
    slots: int = 0  # of a document in every layer
    adds_latent: bool = False  # W z to the embedding
    writes: bool = True  # whether it ends in logits and cross entropy
    is_frozen: bool = False  # all but its LayerNorms
    is_own: bool = False  # whether its Transformer is the objective's and not the backbone
    adapter_size: int = 0
    placement: Placement = "parallel_ffn"
    layers_per_checkpoint: int = 0
    pools: LatentShape | None = None  # the head that reads its hidden states


def passes_of(config: Config, name: str, rows: RowContent, micro_rows: int) -> list[Pass]:
    """The passes of objective `name` in the order of the forward pass."""
    batch = MicroBatch(micro_rows, config.data.packing.row_tokens, micro_rows * rows.targets)
    again = config.memory.layers_per_checkpoint
    is_frozen = config.trains == "adapters"
    writes = Pass(
        name=name, shape=config.model, batch=batch, layers_per_checkpoint=again,
        is_frozen=is_frozen,
    )  # fmt: skip
    if name in ("glm", "causal"):
        return [writes]
    objective = getattr(config.objectives, name)
    latent: LatentShape = objective.latent
    writes = replace(
        writes,
        name=f"{name} writes",
        documents=rows.documents,
        slots=0 if latent.injection == "embedding" else latent.slots,
        adds_latent=latent.injection != "memory",
    )
    reads = replace(
        writes, name=f"{name} reads", slots=0, adds_latent=False, writes=False, pools=latent,
        batch=replace(batch, targets=0),
    )  # fmt: skip
    if name == "optimus":
        # Its layers are never run again, and it is no part of the backbone, which may be frozen.
        reads = replace(
            reads, shape=objective.encoder, layers_per_checkpoint=0, is_frozen=False, is_own=True
        )
    if name == "adavae":
        size, placement = objective.adapter_size, objective.adapter_placement
        first = replace(config.model, num_layers=objective.encoder_layers)
        reads = replace(reads, shape=first, adapter_size=size, placement=placement)
        if latent.injection != "embedding":
            writes = replace(writes, adapter_size=size, placement=placement)
    return [reads, writes]


def peak_bytes(
    passes: Sequence[Pass], *, vocab_size: int, element_bytes: int, device: Device = "cuda"
) -> dict[str, float]:
    """Bytes of all passes by name at the fullest moment of the backward.

    That is its beginning, or, where groups of layers are run again, the moment when a group of one
    pass stands in full and its loss is gone, if that is more.
    """
    kept, extra = {}, {}
    for one in passes:
        loss = _loss_bytes(one, vocab_size, element_bytes)
        kept[one.name] = loss + below_loss_bytes(one, element_bytes, device)
        group = min(one.layers_per_checkpoint, one.shape.num_layers)
        again = group * pass_layer_bytes(one, element_bytes, device)
        extra[one.name] = max(again - loss, 0)
    fullest = max(extra, key=lambda name: extra[name])
    kept[fullest] += extra[fullest]
    return kept


def below_loss_bytes(one: Pass, element_bytes: int, device: Device = "cuda") -> float:
    """Bytes that embedding, layers, last LayerNorm and head keep."""
    batch, layers = one.batch, one.shape.num_layers
    if step := one.layers_per_checkpoint:  # a group keeps its input, and the slots it reads
        groups = math.ceil(layers / step) * stream_bytes(one.shape, batch, element_bytes)
        kept = groups + layers * 2 * _slot_bytes(one, element_bytes)
    else:
        kept = layers * pass_layer_bytes(one, element_bytes, device)
    if one.shape.norm_order == "pre":
        kept += stream_bytes(one.shape, batch, element_bytes)
        kept += norm_bytes(batch, element_bytes, device)
    mask = 0
    if not is_unfused(one.shape, device):
        keys = batch.row_tokens + one.documents * one.slots
        mask = batch.positions * keys * element_bytes
    head = 0.0 if one.pools is None else head_bytes(one, one.pools)
    return _embedding_bytes(one, element_bytes, device) + kept + mask + head


def pass_layer_bytes(one: Pass, element_bytes: int, device: Device = "cuda") -> float:
    """Bytes that one layer keeps."""
    shape, batch = one.shape, one.batch
    kept = layer_bytes(shape, batch, element_bytes, device)
    stream = stream_bytes(shape, batch, element_bytes)
    unfused = is_unfused(shape, device)
    if one.slots:
        kept += 2 * _slot_bytes(one, element_bytes)
        if unfused:
            columns = one.documents * one.slots
            kept += 3 * batch.positions * shape.num_heads * columns * element_bytes
        else:
            kept += 2 * stream
    if one.is_frozen:
        kept -= 3 * stream + stream * shape.feed_forward_size / shape.hidden_size
    if one.adapter_size:
        inside = batch.positions * one.adapter_size * element_bytes
        kept += inside * (2 if one.placement == "reference_double" else 1)
        kept += stream if one.placement == "sequential" else 0
    return kept


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
    if one.is_frozen and not one.adds_latent:
        return 0
    kept = dropout_bytes(shape, one.batch, element_bytes, device)
    if not one.is_frozen:
        kept += (3 + (shape.token_types > 0)) * INT32 * positions
    if one.adds_latent:
        kept += (INT64 + 1) * positions
    if shape.embedding_norm:
        kept += stream_bytes(shape, one.batch, element_bytes)
        kept += norm_bytes(one.batch, element_bytes, device)
    return kept


def _loss_bytes(one: Pass, vocab_size: int, element_bytes: int) -> float:
    if not one.writes:
        return 0
    kept = loss_bytes(one.shape, one.batch, vocab_size, element_bytes)
    if one.documents:  # the text of each target
        kept += one.batch.targets * INT64
    if one.is_frozen:
        kept -= one.batch.targets * one.shape.hidden_size * element_bytes
    return kept


def _slot_bytes(one: Pass, element_bytes: int) -> float:
    """Bytes of a layer's keys or values of all slots."""
    columns = one.batch.rows * one.documents * one.slots
    return columns * one.shape.hidden_size * element_bytes

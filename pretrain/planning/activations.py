"""Bytes that a forward pass keeps for its backward, derived from what each operation saves.

With n = rows x row_tokens x width elements, a layer keeps

    1 n   input of the first LayerNorm (pre-LN) or of qkv (post-LN)
    1 n   its output, which qkv reads                 (post-LN: the first LayerNorm's input)
    3 n   q, k, v
    1 n   attention's output, before padding is set to 0
    1 n   the same with padding at 0, which the output matrix reads
    1 n   input of the second LayerNorm               (post-LN: the first LayerNorm's output)
    1 n   its output, which `up` reads                (post-LN: the second LayerNorm's input)
    4 n   output of `up`, which GELU reads            (model.mlp_size / width instead of 4)
    4 n   GELU's output, which `down` reads           (the same)

that is 17 n, beside mean and 1 / deviation of both LayerNorms, the log-sum-exp of every query and
head, and two dropout masks of n entries. The loss keeps, of the N targets alone, their hidden state
and the log-probabilities in fp32.

Two things hang on the device. A dropout mask is a byte an entry on a GPU, an element on a CPU. And
attention with dropout on a CPU is not fused: it keeps scaled copies of q, k and v and three T x T
matrices a head (weights, mask, what is left), but neither q, k, v nor the additive mask.

No torch here; tests/pretrain/test_run_plan.py counts live storages against it.
"""

import math
from dataclasses import dataclass
from typing import Literal

from pretrain.models.shape import BackboneShape

Device = Literal["cuda", "cpu"]
FP32, INT32, INT64 = 4, 4, 8


@dataclass(frozen=True)
class MicroBatch:
    """Sizes of what one rank takes through forward and backward at once."""

    rows: int
    row_tokens: int
    targets: float  # positions that carry loss, in all rows

    @property
    def positions(self) -> int:
        """Positions of all rows, padding included."""
        return self.rows * self.row_tokens


def activation_bytes(
    shape: BackboneShape,
    batch: MicroBatch,
    *,
    vocab_size: int,
    element_bytes: int,
    layers_per_checkpoint: int = 0,
    device: Device = "cuda",
) -> float:
    """Bytes of activations at their peak, parameters left out.

    That is the end of the forward pass of backbone and GLM loss, or, where groups of
    layers_per_checkpoint layers are run again, the moment when a group stands in full once more,
    if that is more than the loss kept. vocab_size: rows of the token table. element_bytes: of a
    weight, 4 for fp32 and 2 for bf16.
    """
    loss = loss_bytes(shape, batch, vocab_size, element_bytes)
    below_loss = _below_loss_bytes(shape, batch, element_bytes, layers_per_checkpoint, device)
    group = min(layers_per_checkpoint, shape.num_layers)
    again = group * layer_bytes(shape, batch, element_bytes, device)
    return below_loss + max(loss, again)


def forward_bytes(
    shape: BackboneShape,
    batch: MicroBatch,
    *,
    vocab_size: int,
    element_bytes: int,
    layers_per_checkpoint: int = 0,
    device: Device = "cuda",
) -> float:
    """Bytes alive when the forward pass has ended; arguments as for activation_bytes."""
    loss = loss_bytes(shape, batch, vocab_size, element_bytes)
    return loss + _below_loss_bytes(shape, batch, element_bytes, layers_per_checkpoint, device)


def mask_bytes(
    shape: BackboneShape, batch: MicroBatch, element_bytes: int, device: Device = "cuda"
) -> int:
    """Bytes of the additive mask, which all layers share."""
    return 0 if is_unfused(shape, device) else batch.rows * batch.row_tokens**2 * element_bytes


def _below_loss_bytes(
    shape: BackboneShape,
    batch: MicroBatch,
    element_bytes: int,
    layers_per_checkpoint: int,
    device: Device,
) -> float:
    """Bytes that embedding, layers and final LayerNorm keep."""
    stream = stream_bytes(shape, batch, element_bytes)
    embedding = 3 * INT32 * batch.positions + dropout_bytes(shape, batch, element_bytes, device)
    if layers_per_checkpoint:  # a group keeps its input
        layers = math.ceil(shape.num_layers / layers_per_checkpoint) * stream
    else:
        layers = shape.num_layers * layer_bytes(shape, batch, element_bytes, device)
    final_norm = 0
    if shape.norm_order == "pre":
        final_norm = stream + norm_bytes(batch, element_bytes, device)
    return embedding + layers + final_norm + mask_bytes(shape, batch, element_bytes, device)


def layer_bytes(
    shape: BackboneShape, batch: MicroBatch, element_bytes: int, device: Device
) -> float:
    """Bytes that one layer keeps."""
    stream = stream_bytes(shape, batch, element_bytes)
    queries = batch.positions * shape.num_heads
    if is_unfused(shape, device):
        # The three scaled copies stand for q, k, v; attention's own output is not kept.
        attention = 4 * stream + 3 * queries * batch.row_tokens * element_bytes
    else:
        attention = 5 * stream + queries * FP32
    padding = batch.positions  # a bool each
    norms = 4 * stream + 2 * norm_bytes(batch, element_bytes, device)
    dropouts = 2 * dropout_bytes(shape, batch, element_bytes, device)
    inner = 2 * stream * shape.feed_forward_size / shape.hidden_size
    return norms + attention + padding + inner + dropouts


def loss_bytes(
    shape: BackboneShape, batch: MicroBatch, vocab_size: int, element_bytes: int
) -> float:
    """Bytes that logits and cross entropy of the targets keep, their index and weights counted."""
    hidden = shape.hidden_size * element_bytes
    return batch.targets * (hidden + vocab_size * FP32 + 2 * INT64 + FP32)


def dropout_bytes(
    shape: BackboneShape, batch: MicroBatch, element_bytes: int, device: Device
) -> float:
    """Bytes of one dropout mask over the residual stream."""
    if shape.dropout_prob == 0:
        return 0
    return batch.positions * shape.hidden_size * (1 if device == "cuda" else element_bytes)


def stream_bytes(shape: BackboneShape, batch: MicroBatch, element_bytes: int) -> int:
    """n elements: the residual stream once."""
    return batch.positions * shape.hidden_size * element_bytes


def norm_bytes(batch: MicroBatch, element_bytes: int, device: Device) -> int:
    """Mean and 1 / deviation of a LayerNorm; a CPU keeps them in the precision of its input."""
    return 2 * batch.positions * (FP32 if device == "cuda" else element_bytes)


def is_unfused(shape: BackboneShape, device: Device) -> bool:
    return device == "cpu" and shape.attention_dropout_prob > 0

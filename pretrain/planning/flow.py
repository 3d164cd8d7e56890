"""What each layer keeps for its backward, by what of it learns and whether a gradient passes.

A matrix that learns keeps its input, one that does not keeps nothing but itself. LayerNorm,
attention, GELU and dropout keep what activations.py lists wherever a gradient passes through them,
learning or not. With n = rows x row_tokens x width elements, where only some of a layer learns:

    matrices frozen    3 n and GELU's output less: what qkv, output, `up` and `down` would read
    lora               n that qkv reads, and rank / width of it between the two factors
    slots, prefix      k and v once more with the slots before them, 2 n and the slots; a wider mask
    adapters           what stands inside of each; with `sequential` what it reads
    no gradient below  neither attention nor the LayerNorm before it, until something learns

No torch here; tests/pretrain/test_run_plan_latent.py counts live storages against it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pretrain.models.latent_shape import LatentShape, Placement
from pretrain.models.shape import BackboneShape
from pretrain.planning.activations import (
    FP32,
    Device,
    MicroBatch,
    dropout_bytes,
    is_unfused,
    norm_bytes,
    stream_bytes,
)
from pretrain.settings.trains import Trains


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A micro-batch on its way through a Transformer of `shape`."""

    name: str
    shape: BackboneShape
    batch: MicroBatch
    documents: int = 0  # of a row, at most
    slots: int = 0  # of a document in every layer: a learned prefix, and those that z gives
    adds_latent: bool = False  # W z to the embedding
    writes: bool = True  # whether it ends in logits and cross entropy
    sums_texts: bool = False  # whether the loss is told by texts
    trains: Trains = "all"
    last_layers: int = 0  # of the backbone, that learn with trains: k_layers
    num_layers: int = 0  # of the whole backbone
    is_own: bool = False  # whether its Transformer is the objective's and not the backbone
    adapter_size: int = 0
    placement: Placement = "parallel_ffn"
    layers_per_checkpoint: int = 0
    pools: LatentShape | None = None  # the head that reads its hidden states

    @property
    def tables_learn(self) -> bool:
        """Whether the token table does, and those of positions and types."""
        return self.trains != "head_only" if self.is_own else self.trains == "all"

    @property
    def embedding_norm_learns(self) -> bool:
        """Where there is one."""
        return self.shape.embedding_norm and (self.tables_learn or self.trains == "adapters")

    @property
    def final_norm_learns(self) -> bool:
        """Likewise."""
        return self.tables_learn or (not self.is_own and self.trains in ("adapters", "k_layers"))

    @property
    def adapters_learn(self) -> bool:
        """They are parts of an objective, which halves are."""
        return self.trains != "head_only"

    @property
    def adapts_twice(self) -> bool:
        """Whether the adapter of a layer stands beside its attention, too."""
        return self.adapter_size > 0 and self.placement == "reference_double"

    def matrices_learn(self, number: int) -> bool:
        """Of layer `number`."""
        if self.is_own or self.trains != "k_layers":
            return self.tables_learn
        return number >= self.num_layers - self.last_layers

    def norms_learn(self, number: int) -> bool:
        """Of layer `number`."""
        return self.matrices_learn(number) or (not self.is_own and self.trains == "adapters")

    def lora_learns(self, number: int) -> bool:
        """Of layer `number`."""
        learns = self.matrices_learn(number) or (not self.is_own and self.trains == "lora")
        return learns and self.shape.lora_rank > 0

    def slots_learn(self, number: int) -> bool:
        """Whether a gradient passes through slots of layer `number`: the projections of z learn
        whatever `trains` says, a learned prefix does not."""
        if self.slots > self.shape.prefix_slots:
            return True
        learns = self.matrices_learn(number) or (not self.is_own and self.trains == "prefix")
        return learns and self.slots > 0


class Kept(NamedTuple):
    """Bytes, and whether a gradient passes through what comes out."""

    kept: float
    needs_gradient: bool


def layers_kept(one: Pass, element_bytes: int, device: Device) -> tuple[list[float], bool]:
    """Bytes of every layer of a pass, and whether a gradient reaches what comes out of the last."""
    needs = one.tables_learn or one.adds_latent or one.embedding_norm_learns
    each = []
    for number in range(one.shape.num_layers):
        kept, needs = layer_kept(one, number, needs, element_bytes, device)
        each.append(kept)
    return each, needs


def layer_kept(
    one: Pass, number: int, needs: bool, element_bytes: int, device: Device = "cuda"
) -> Kept:
    """Of layer `number`. needs: whether a gradient passes through what it reads."""
    norm_first = one.shape.norm_order == "pre"
    norms = one.norms_learn(number)
    of_norm = stream_bytes(one.shape, one.batch, element_bytes)
    of_norm += norm_bytes(one.batch, element_bytes, device)
    read, kept = needs, 0.0
    if norm_first and (needs or norms):
        read, kept = True, of_norm
    attention = _attention(one, number, read, element_bytes, device)
    summed, kept = needs or attention.needs_gradient, kept + attention.kept
    added = _adapter(one, needs or norms, summed, element_bytes)
    kept, summed = kept + added.kept, summed or (added.needs_gradient and one.adapts_twice)
    if summed or norms:  # the other LayerNorm: before the feed-forward, or behind the sum
        kept += of_norm
    inner = _feed_forward(one, number, summed or norms, element_bytes, device)
    kept += inner.kept
    out = summed or inner.needs_gradient or added.needs_gradient
    if not norm_first and (out or norms):
        kept, out = kept + of_norm, True
    return Kept(kept, out)


def slot_bytes(one: Pass, element_bytes: int) -> float:
    """Bytes of a layer's keys or values of all slots."""
    columns = one.batch.rows * one.documents * one.slots
    return columns * one.shape.hidden_size * element_bytes


def _attention(one: Pass, number: int, needs: bool, element_bytes: int, device: Device) -> Kept:
    """Of qkv, attention, output and dropout. needs: whether a gradient passes through qkv's
    input."""
    shape, batch = one.shape, one.batch
    stream = stream_bytes(shape, batch, element_bytes)
    matrices, lora = one.matrices_learn(number), one.lora_learns(number)
    kept = stream * (matrices or lora)
    kept += lora * stream * shape.lora_rank / shape.hidden_size
    passes = needs or matrices or lora or one.slots_learn(number)
    if not passes:
        return Kept(kept, False)
    columns, queries = one.documents * one.slots, batch.positions * shape.num_heads
    kept += 2 * slot_bytes(one, element_bytes)
    if is_unfused(shape, device):
        # Scaled copies of q, k, v; weights, mask and what is left of T x T.
        kept += 3 * stream + 3 * queries * (batch.row_tokens + columns) * element_bytes
    else:
        kept += (4 + 2 * (one.slots > 0)) * stream + queries * FP32
    kept += batch.positions  # which are padding, a bool each
    kept += dropout_bytes(shape, batch, element_bytes, device)
    return Kept(kept + matrices * stream, True)


def _feed_forward(one: Pass, number: int, needs: bool, element_bytes: int, device: Device) -> Kept:
    shape, batch = one.shape, one.batch
    matrices = one.matrices_learn(number)
    if not (needs or matrices):
        return Kept(0.0, False)
    stream = stream_bytes(shape, batch, element_bytes)
    inner = stream * shape.feed_forward_size / shape.hidden_size
    kept = inner + matrices * (stream + inner)
    return Kept(kept + dropout_bytes(shape, batch, element_bytes, device), True)


def _adapter(one: Pass, read_kept: bool, sum_kept: bool, element_bytes: int) -> Kept:
    """read_kept, sum_kept: whether LayerNorms keep the layer's input and the sum behind attention,
    which an adapter reads too."""
    if not one.adapter_size:
        return Kept(0.0, False)
    learns = one.adapters_learn
    if not (learns or sum_kept):
        return Kept(0.0, False)
    stream = stream_bytes(one.shape, one.batch, element_bytes)
    kept = one.batch.positions * one.adapter_size * element_bytes * (1 + one.adapts_twice)
    if learns and one.placement == "sequential":
        kept += stream
    elif learns:
        kept += stream * (not sum_kept and not one.adapts_twice) + stream * (
            one.adapts_twice and not read_kept
        )
    return Kept(kept, True)

"""What a plan consists of: plain numbers, bytes and tokens."""

from dataclasses import asdict, dataclass
from typing import Any

from pretrain.planning.gpus import Gpu


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU. activations and buffers are those of the fuller moment."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    peak_at: str  # "backward" or "update"
    reserved: float  # context, communication library and fragmentation
    on_host: float  # bytes a rank that DeepSpeed's file sends to the host or to NVMe
    frozen_weights: float  # of the weights
    passes: dict[str, float]  # activations by pass through a Transformer; empty in the update

    @property
    def total(self) -> float:
        """All parts on the GPU."""
        parts = self.weights + self.gradients + self.optimizer
        return parts + self.activations + self.buffers + self.reserved


@dataclass(frozen=True)
class Plan:
    """What a run will take; bytes and tokens as plain numbers."""

    name: str
    num_gpus: int
    gpu: Gpu
    precision: str
    zero_stage: int
    num_parameters: int  # all that are kept
    num_trained: int  # those that learn
    objectives: list[str]  # each of which takes its own global_rows
    vocab_size: int  # rows of the token table
    vocabulary_origin: str
    rows_origin: str
    global_rows: int
    row_tokens: int
    micro_rows: int
    accumulation: int
    steps: int
    source_tokens_per_step: float
    tokens_per_step: float  # without padding
    positions_per_step: int
    targets_per_step: float
    epochs: dict[str, float]  # passes over each corpus that is known, by name
    memory: Memory
    fits: bool
    largest_micro_rows: int | None  # that fits; None where not even one row does
    checkpoint: dict[str, float]
    checkpoints_on_disk: int  # while one is being written
    sent_bytes_per_step: float  # by each GPU
    flop_per_step: float
    mfu: float
    days: float

    def as_json(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        memory = asdict(self.memory) | {"total": self.memory.total}
        return asdict(self) | {"memory": memory}

"""Arithmetic, and what is traded for memory; no torch, as config.py."""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class NumericsConfig:
    """Choices of arithmetic besides `precision`; all are printed at start."""

    reduction_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type in which gradients are added up over micro-batches and ranks."""
    tf32: bool = False
    """Whether CUDA may round the inputs of fp32 matrix products to TF32 (10 bits of mantissa)."""
    deterministic: bool = False
    """Whether only kernels run that give the same bits every time; an op without is an error."""


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """What is traded for memory or speed without changing the result."""

    activation_checkpointing: str = "none"
    """none, or every_K: groups of K layers keep only their input and are run again in backward."""
    compile: Literal["none", "layers"] = "none"
    """layers: torch.compile of every layer by itself (needs a C++ compiler on CPUs)."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"none|every_[1-9]\d*", self.activation_checkpointing):
            raise ValueError(
                "memory.activation_checkpointing must be none or every_K with K from 1 (every_1, "
                f"every_2, ...), got {self.activation_checkpointing}."
            )

    @property
    def layers_per_checkpoint(self) -> int:
        """K, or 0 where nothing is recomputed."""
        return int(self.activation_checkpointing.partition("_")[2] or 0)

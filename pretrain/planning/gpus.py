"""What a plan knows of a GPU: memory that a process can use and the peak of its matrix products.

Peaks are the vendor's, dense, without sparsity, SXM boards where there are several. Memory is what
the driver offers to a process, a little below the name of the card.
"""

from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True)
class Gpu:
    """One accelerator of a plan."""

    name: str
    memory_bytes: int
    bf16_flop_per_s: float
    fp32_flop_per_s: float  # without tensor cores, which TF32 would use

    def peak_flop_per_s(self, precision: str) -> float:
        """Peak of matrix products in the precision of the weights, "bf16" or "fp32"."""
        return self.bf16_flop_per_s if precision == "bf16" else self.fp32_flop_per_s


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("h200", 139 * GIB, 989e12, 67e12),
        Gpu("h100", 79 * GIB, 989e12, 67e12),
        Gpu("a100", 79 * GIB, 312e12, 19.5e12),
        Gpu("a100-40gb", 39 * GIB, 312e12, 19.5e12),
        Gpu("l40s", 44 * GIB, 362e12, 91e12),
    )
}

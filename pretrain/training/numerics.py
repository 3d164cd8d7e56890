"""Process-wide switches of arithmetic, and compilation: set once, before the first step."""

import os
import shutil

import torch
from torch import nn

from pretrain.models.layer import Layer
from pretrain.settings.numerics_config import MemoryConfig, NumericsConfig


def set_numerics(numerics: NumericsConfig) -> None:
    """Put the process-wide switches of torch where the recipe wants them."""
    torch.backends.cuda.matmul.allow_tf32 = numerics.tf32
    torch.backends.cudnn.allow_tf32 = numerics.tf32
    if numerics.deterministic:
        # cuBLAS is deterministic only with a workspace of fixed size.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(numerics.deterministic)


def compile_layers(model: nn.Module, device: torch.device, memory: MemoryConfig) -> None:
    """Compile every layer of the model by itself, in place.

    Raises ValueError where that cannot work here.
    """
    if memory.layers_per_checkpoint:
        raise ValueError(
            "memory.compile: layers does not go together with memory.activation_checkpointing: "
            f"{memory.activation_checkpointing}, which runs layers inside its own graph. Set one."
        )
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise ValueError(
            f"memory.compile: layers needs a C++ compiler on CPUs, and {compiler} is not there. "
            "Install g++, set CXX, or set memory.compile none."
        )
    for module in model.modules():
        if isinstance(module, Layer):
            module.compile()

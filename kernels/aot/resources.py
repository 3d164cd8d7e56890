"""Kernels compiled for a chip on a machine without one, and what they take of it.

    resources = compile_kernel(attention_kernels(64)["forward"], chip=90, dtype="bf16")
    resources.registers, resources.spilled_bytes, resources.shared_bytes, resources.has_atomics

Triton lowers a kernel to PTX and its own ptxas to machine code; neither asks for a driver. Must run
without TRITON_INTERPRET.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CHIPS = {80: "sm_80", 90: "sm_90a"}  # A100; H100 and H200, with wgmma
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}  # what one block may take of the chip
MAX_SPILLED_BYTES = 256  # a thread; seen: 152 where the forward pass of wide heads meets sm_80


@dataclass(frozen=True)
class Kernel:
    """A kernel, its compile-time arguments and how a program runs. types: of its pointers by name,
    where they do not have the dtype of the activations."""

    function: object
    constants: Mapping[str, object]
    num_warps: int
    num_stages: int
    types: Mapping[str, str]


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes: per thread registers and spilled bytes, per block shared."""

    registers: int
    spilled_bytes: int
    shared_bytes: int
    has_atomics: bool
    matrix_instructions: tuple[str, ...]


def faults(resources: Resources, chip: int) -> list[str]:
    """What a kernel may not take or do, in words; nothing where all is well."""
    found = []
    if resources.spilled_bytes > MAX_SPILLED_BYTES:
        found.append(f"spills {resources.spilled_bytes} bytes, allowed {MAX_SPILLED_BYTES}")
    if resources.shared_bytes > SHARED_BYTES[chip]:
        found.append(f"takes {resources.shared_bytes} shared bytes of {SHARED_BYTES[chip]}")
    if resources.has_atomics:
        found.append("has atomics, so that its sums differ from run to run")
    return found


def compile_kernel(kernel: Kernel, chip: int, dtype: str = "bf16") -> Resources:
    """Compile for compute capability `chip` (80 or 90) with activations of `dtype` ("bf16")."""
    names = kernel.function.arg_names
    types = {name: _type_of(name, kernel, dtype) for name in names}
    # As the launcher does: pointers and strides are multiples of 16.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name.endswith("_ptr") or "_stride_" in name
    }
    source = ASTSource(
        fn=kernel.function, signature=types, constexprs=dict(kernel.constants), attrs=aligned
    )
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    ptx = compiled.asm["ptx"]
    report = _assembler_report(ptx, CHIPS[chip])
    return Resources(
        registers=_number(r"Used (\d+) registers", report),
        spilled_bytes=_number(r"(\d+) bytes spill stores", report),
        shared_bytes=compiled.metadata.shared,
        has_atomics=bool(re.search(r"\b(atom|red)\.(global|shared)", ptx)),
        matrix_instructions=tuple(sorted(set(re.findall(r"wgmma\.mma_async|mma\.sync", ptx)))),
    )


def _type_of(name: str, kernel: Kernel, dtype: str) -> str:
    if name in kernel.constants:
        return "constexpr"
    if name in kernel.types:
        return kernel.types[name]
    if name.endswith("_ptr"):
        return f"*{dtype}"
    return "fp32" if name.startswith("scale") else "i32"


def _assembler_report(ptx: str, target: str) -> str:
    assembler = Path(triton.__path__[0]) / "backends" / "nvidia" / "bin" / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(ptx, encoding="utf-8")
        command = [assembler, "-v", f"--gpu-name={target}", file, "-o", Path(folder) / "out"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr


def _number(pattern: str, report: str) -> int:
    found = re.search(pattern, report)
    assert found, f"{pattern} is not in what ptxas says: {report}"
    return int(found[1])

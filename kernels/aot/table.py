"""Compiled kernels as a Markdown table, one line a kernel, both chips side by side."""

from collections.abc import Mapping

import triton

from kernels.aot.resources import Resources


def as_table(found: Mapping[tuple[str, int], Resources], settings: str) -> str:
    """found: resources by (kernel, chip); settings: what they were compiled with."""
    chips = sorted({chip for _, chip in found})
    heads = ["kernel"]
    for chip in chips:
        heads += [f"sm_{chip}: registers", "spilled B", "shared KiB", "matrix instruction"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name in dict.fromkeys(name for name, _ in found):
        cells = [name]
        for chip in chips:
            r = found[name, chip]
            cells += [str(r.registers), str(r.spilled_bytes), f"{r.shared_bytes / 1024:.1f}"]
            cells.append(", ".join(r.matrix_instructions) or "none")
        lines.append(f"| {' | '.join(cells)} |")
    atomics = [f"{name} on sm_{chip}" for (name, chip), r in found.items() if r.has_atomics]
    said = f"Atomics: {', '.join(atomics) or 'none in any of them'}."
    return "\n".join([f"triton {triton.__version__}, {settings}. {said}", "", *lines])

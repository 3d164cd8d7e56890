"""python -m kernels.aot: compile every kernel for sm_80 and sm_90 without a GPU; a table.

Ends with 1, naming the kernel, where one spills too much, does not fit its chip or has atomics.
"""

import argparse
import os
import sys
from pathlib import Path

BEGIN, END = "<!-- written by python -m kernels.aot -->", "<!-- until here -->"


def main() -> None:
    """Read the command line, compile, print or write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m kernels.aot", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--chips", type=int, nargs="+", choices=(80, 90), default=[80, 90])
    parser.add_argument("--kernels", nargs="+", help="some of them, as the table names them")
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument("--slots", type=int, choices=range(5), default=1, help="a document")
    parser.add_argument("--write", type=Path, help="a page whose table is replaced")
    arguments = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)  # else triton would not compile but interpret
    sys.exit(_run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    # After TRITON_INTERPRET is gone: triton reads it when it is imported.
    from kernels.aot.catalog import all_kernels
    from kernels.aot.resources import compile_kernel, faults
    from kernels.aot.table import as_table

    kernels = all_kernels(arguments.dtype, arguments.slots)
    names = arguments.kernels or list(kernels)
    unknown = [name for name in names if name not in kernels]
    if unknown:
        print(f"no kernel {unknown[0]!r}. There are: {', '.join(kernels)}.", file=sys.stderr)
        return 2
    found = {
        (name, chip): compile_kernel(kernels[name], chip, arguments.dtype)
        for name in names
        for chip in arguments.chips
    }
    wrong = [f"{n} on sm_{c} {f}" for (n, c), r in found.items() for f in faults(r, c)]
    table = as_table(found, f"{arguments.dtype}, slots of a document: {arguments.slots}")
    if arguments.write is None:
        print(table)
    else:
        page = arguments.write.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        text = f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"
        arguments.write.write_text(text, encoding="utf-8")
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    main()

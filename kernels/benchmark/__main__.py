"""python -m kernels.benchmark: attention and embedding beside their peers, on a GPU or a CPU.

Tests first: where they are red nothing is measured. Prints a table; --output writes it as JSON.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CPU_TESTS = ("test_attention.py", "test_slots.py", "test_packed.py", "test_visibility.py")


def main() -> None:
    """Read the command line, test, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m kernels.benchmark", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--output", type=Path, help="a JSON file for the rows")
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--rounds", type=int, default=10, help="timed calls, of which the median")
    sys.exit(_run(parser.parse_args()))


def _run(arguments: argparse.Namespace) -> int:
    import torch

    from kernels.benchmark import cases, measure
    from kernels.benchmark.table import as_table

    device = "cuda" if torch.cuda.is_available() else "cpu"
    red = _red_tests(device)
    if red:
        print(red)
        print("kernels.benchmark: tests are red, so nothing is measured. Mend them first.")
        return 1
    chosen = cases.attention_cases(device == "cuda", arguments.quick)
    rows = list(measure.attention_rows(chosen, device, arguments.rounds))
    rows += measure.embedding_rows(device, arguments.rounds, arguments.quick)
    differing = measure.differing_repeats(chosen[-1], device)
    versions = _versions(torch.cuda.get_device_name() if device == "cuda" else _processor())
    print(", ".join(f"{name} {value}" for name, value in versions.items()))
    print(f"load {os.getloadavg()[0]:.1f}; of 4 repeats differ in any bit: {differing}\n")
    print(as_table(rows))
    if arguments.output is not None:
        entry = {
            "versions": versions,
            "differing_repeats": differing,
            "rows": [row.as_json() for row in rows],
        }
        arguments.output.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
    return 1 if differing else 0


def _red_tests(device: str) -> str:
    """What pytest says where a test fails: of all kernels on a GPU, of the CPU's ways on a CPU."""
    folder = REPOSITORY / "tests" / "kernels"
    tests = [folder] if device == "cuda" else [folder / name for name in CPU_TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-x", *map(str, tests)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def _versions(chip: str) -> dict[str, str]:
    found = {"date": datetime.now(UTC).date().isoformat(), "on": chip}
    for name in ("torch", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found | {"python": platform.python_version()}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()

"""The groups of rows that `python -m bench` measures, each in fresh processes of one thread."""

import importlib
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.table import Row, as_json, as_text

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "deepspeed", "transformers", "numpy", "sentencepiece")
# Equality with published code and oracles: half a minute. Who measures a wrong model, lies.
PARITY_TESTS = (
    "tests/kernels/test_attention.py",
    "tests/kernels/test_packed.py",
    "tests/kernels/test_slots.py",
    "tests/kernels/test_visibility.py",
    "tests/bench",
    "tests/pretrain/test_backbone.py",
    "tests/pretrain/test_cache.py",
    "tests/pretrain/test_objective_glm.py",
    "tests/pretrain/test_objective_optimus.py",
    "tests/data_pipeline/test_blank_build.py",
    "tests/data_pipeline/test_plan.py",
)


@dataclass(frozen=True)
class Group:
    """A function of a module that measures rows, and what it is called with."""

    module: str
    function: str
    arguments: tuple[str, ...] = ()
    num_ranks: int = 1

    def rows(self, quick: bool) -> list[Row]:
        """Measure, in this process."""
        # Imported late: a group of one kind does without the libraries of another.
        function = getattr(importlib.import_module(self.module), self.function)
        return function(*self.arguments, quick)


GROUPS = {
    "data": Group("bench.data_path", "data_rows"),
    "start": Group("bench.start", "start_rows"),
    "checkpoints": Group("bench.checkpoints", "checkpoint_rows"),
    "step_S": Group("bench.step", "step_rows", ("S",)),
    "step_B": Group("bench.step", "step_rows", ("B",)),
    "packed": Group("bench.packed", "packed_rows"),
    "vae_S": Group("bench.vae", "vae_rows", ("S",)),
    "vae_B": Group("bench.vae", "vae_rows", ("B",)),
    "adavae_S": Group("bench.adavae", "adavae_rows", ("S",)),
    "adavae_B": Group("bench.adavae", "adavae_rows", ("B",)),
    "bound_S": Group("bench.latent_bound", "bound_rows", ("S",)),
    "two_ranks": Group("bench.two_ranks", "two_rank_rows", num_ranks=2),
    "decode_S": Group("bench.decoding", "decoding_rows", ("S",)),
    "decode_B": Group("bench.decoding", "decoding_rows", ("B",)),
}


def red_tests() -> str:
    """What pytest says of the parity tests where one fails; nothing where all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", *PARITY_TESTS]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=_environment(), capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr if done.returncode else ""


def run_group(name: str, *, quick: bool) -> list[Row]:
    """Measure a group in processes of its own, one a rank.

    Raises RuntimeError with the end of its output where one of them fails.
    """
    group = GROUPS[name]
    command = [sys.executable, "-m", "bench", "--measure", name, *(["--quick"] if quick else [])]
    ranks = [
        subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in rank_environments(group.num_ranks)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    for rank, output in zip(ranks, outputs, strict=True):
        if rank.returncode:
            raise RuntimeError(f"bench {name} failed:\n{output[-4000:]}")
    return [Row(**row) for row in json.loads(outputs[0].splitlines()[-1])]


def report(name: str, rows: Sequence[Row], folder: Path | None) -> str:
    """The table of a group; with a `folder` its rows go to folder/NAME.json too."""
    now = datetime.now(UTC)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(as_json(rows, now.date().isoformat(), versions()), indent=1)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    load = os.getloadavg()[0]
    return f"\n{name}: {now:%Y-%m-%d %H:%M} UTC, load {load:.1f}\n\n{as_text(rows)}"


def versions() -> dict[str, str]:
    """What the numbers depend on: packages, Python, the processor and its cores."""
    return {
        **{name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}


def rank_environments(num_ranks: int) -> list[dict[str, str]]:
    """What each rank of a new process group on this machine is started with."""
    if num_ranks == 1:
        return [_environment()]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = range(num_ranks)
    return [_environment() | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in ranks]

"""Settings of every test, the reason why a gpu test is skipped, and the time each room took."""

import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent


def _has_nvidia_driver() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0


HAS_GPU = _has_nvidia_driver()
# Before torch is imported by any test; child processes inherit both.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not HAS_GPU:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Read when triton is first imported: its kernels then run on CPU tensors (tests/kernels).
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A job in the background of a script ignores Ctrl-C, and so would every program that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_elapsed_s: dict[str, float] = defaultdict(float)
_num_tests: dict[str, int] = defaultdict(int)


def _room(path: str) -> str:
    parts = Path(path).parts
    return parts[1] if len(parts) > 2 else "."


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not HAS_GPU:
        pytest.skip("no NVIDIA driver on this machine")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    room = _room(report.nodeid.split("::")[0])
    _elapsed_s[room] += report.duration
    _num_tests[room] += report.when == "call"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _elapsed_s:
        return
    terminalreporter.section("time per room")
    for room, elapsed_s in sorted(_elapsed_s.items(), key=lambda entry: -entry[1]):
        terminalreporter.line(f"{elapsed_s:8.1f} s  {_num_tests[room]:5d} tests  tests/{room}")


@pytest.fixture(scope="session")
def mpirun() -> Callable[[int], list[str]]:
    """Gives the words that start N ranks here, whoever we are and however few the cores."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is missing: apt-get install openmpi-bin")
    asked = [sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode:
        reason = found.stderr.strip().splitlines()[-1]
        pytest.skip(f"mpi4py cannot be used ({reason}): pip install mpi4py==4.1.2")
    if not found.stdout.startswith("Open MPI"):
        pytest.skip(f"mpirun is tested with Open MPI, not with {found.stdout.split(',')[0]}")
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return lambda num_ranks: [*words, "-n", str(num_ranks)]


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command as subprocess.Popen does, with text; at the end what is left of it, and of
    what it has started, dies."""
    begun: list[psutil.Process] = []

    def start(words: list[str], **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **options)
        begun.append(psutil.Process(process.pid))
        return process

    yield start
    for process in begun:
        if process.is_running():
            for child in (*process.children(recursive=True), process):
                child.kill()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT

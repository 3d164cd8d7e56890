"""The deepspeed launcher as the demo calls it: which ranks, which environment, what is shown."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SECONDS_BETWEEN_STEPS_SHOWN = 10.0
_STEP = re.compile(r"\bstep \d+/\d+ \| loss")
# Lines of the launcher and of torch that tell a user of the demo nothing.
_NOISE = re.compile(
    r"\[(INFO|WARNING)\] \[(launch|runner|real_accelerator)\.py|FutureWarning|^\s+return |^\s*$"
    r"|hostname of the client socket|_all_gather_base|_reduce_scatter_base|\[Gloo\]"
)


def num_ranks() -> int:
    """Two CPU ranks, or as many of two GPUs as there are."""
    return min(2, num_gpus()) or 2


def num_gpus() -> int:
    """GPUs that the NVIDIA driver lists."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listed.stdout.count("GPU ") if listed.returncode == 0 else 0


def environment(ranks: int) -> dict[str, str]:
    """The environment of the launcher: this interpreter, and threads that share the cores."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    settings = {
        "PYTHON": sys.executable,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores // ranks))),
    }
    if not num_gpus():
        settings["DS_ACCELERATOR"] = "cpu"
    return {**os.environ, **settings}


def deepspeed_command(arguments: Sequence[str], *, port: int) -> list[str]:
    """`deepspeed ARGUMENTS` with this interpreter, on this machine alone, on a port of its own."""
    flags = [f"--master_port={port}"]
    if Path("/job/hostfile").exists():  # deepspeed would start on the hosts it lists
        flags.append(f"--hostfile={os.devnull}")
    return [sys.executable, "-m", "deepspeed.launcher.runner", *flags, *arguments]


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stream(command: Sequence[str], env: Mapping[str, str], log: Path) -> int:
    """Run `command`, its output into `log`, what matters of it to stderr; returns the exit code.

    Ctrl-C reaches the ranks too, which save and stop: their output is read to its end before
    KeyboardInterrupt is raised here.
    """
    shown_at, interrupted = 0.0, []
    with (
        open(log, "a", encoding="utf-8", buffering=1) as kept,
        subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        before = signal.signal(signal.SIGINT, lambda *_: interrupted.append(True))
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            is_step = _STEP.search(line) is not None
            if _NOISE.search(line) or (is_step and _too_soon(shown_at)):
                continue
            if is_step:
                shown_at = time.monotonic()
            sys.stderr.write(f"  {line}")
    signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt
    return process.returncode


def _too_soon(shown_at: float) -> bool:
    return time.monotonic() - shown_at < SECONDS_BETWEEN_STEPS_SHOWN

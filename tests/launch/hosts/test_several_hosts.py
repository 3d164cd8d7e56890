"""deepspeed --hostfile HOSTS launch/pretrain_glm.sh on two hosts, one of which is lost.

One run, started three times: a rank is killed, the next start goes on and a rank is stopped, the
last one goes on and its cable is pulled. A minute on a quiet machine.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.hosts, pytest.mark.ranks]

ROOT = Path(__file__).parents[3]
SCRIPT = str(ROOT / "launch" / "pretrain_glm.sh")
TIMEOUT_S = 10
KILLED = 256 - signal.SIGKILL  # what launch.py makes of a rank that was killed, and pdsh passes on
SLOW_MACHINE_S = 240  # on top of what is promised: for processes to start and end, at a load of 15


class Job:
    """The run `both` of one folder, as a user on host0 starts it."""

    def __init__(self, hosts: Any, deepspeed: str, shards: Path, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self._deepspeed, self._shards = deepspeed, shards
        self.run = folder / "runs" / "both"
        self.starts = 0

    @property
    def log(self) -> Path:
        return self.folder / f"log{self.starts}"

    def start(
        self, *, form: str = "deepspeed", hostfile: Path | None = None, **settings: Any
    ) -> Any:
        self.starts += 1
        flags = {
            "config": ROOT / "launch/recipes/debug.yaml",
            "name": "both",
            "data.shards": self._shards,
            "steps": 100_000,
            "batch.micro_rows": 2,
            "timeout_s": TIMEOUT_S,
            "expected_ranks": 2,
            "checkpoints.every_steps": 2,
            "evaluation.every_steps": 0,
            "resume": "auto",
        } | settings
        arguments = [f"--{key}={value}" for key, value in flags.items()]
        launcher = ["--hostfile", str(hostfile or self.hosts.hostfile)]
        if form == "deepspeed":
            command, environment = [self._deepspeed, *launcher, SCRIPT], {}
        else:
            command = ["bash", SCRIPT]
            environment = {"DS_ARGS": " ".join(launcher), "OMP_NUM_THREADS": "1"}
        environment |= {"PYTHON": str(Path(self._deepspeed).parent / "python")}
        return self.hosts.start(
            0, [*command, *arguments], log=self.log, cwd=self.folder, environment=environment
        )

    def wait_for_step(self, step: int, started: subprocess.Popen[bytes]) -> None:
        """Wait until `step` is recorded, then for the next checkpoint."""
        deadline = time.monotonic() + SLOW_MACHINE_S
        while self.last_step() < step:
            assert started.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def last_step(self) -> int:
        metrics = self.run / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.is_file() else []
        return max((json.loads(line)["step"] for line in lines), default=0)

    def said(self, start: str) -> list[str]:
        """Lines of the terminal that begin with `start`, behind the name of the host."""
        lines = [line.partition(": ") for line in self.log.read_text().splitlines()]
        return [f"{host}: {line}" for host, _, line in lines if line.startswith(start)]

    def wait_for_end(self, process: int, promised_s: float) -> None:
        """Wait until a process has ended, which is promised within so many seconds."""
        deadline = time.monotonic() + promised_s + SLOW_MACHINE_S
        while Path(f"/proc/{process}").exists():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def job(
    hosts: Any, deepspeed: str, small_shards: Path, tmp_path_factory: pytest.TempPathFactory
) -> Job:
    # No space in its name: pdsh's `cd` would fail, and the run begin at home.
    return Job(hosts, deepspeed, small_shards, tmp_path_factory.mktemp("job"))


def test_a_killed_rank_ends_the_other_host_with_its_name(idle_hosts: Any, job: Job) -> None:
    started = job.start()
    job.wait_for_step(4, started)
    assert (job.run / "logs" / "rank-1.log").read_text().count(" host1 rank 1 ") > 0
    os.kill(idle_hosts.rank(1), signal.SIGKILL)
    assert started.wait(timeout=SLOW_MACHINE_S) == KILLED
    said = job.said("pretrain: ")
    assert len(said) == 1, said
    lost = "host0: pretrain: rank 0: rank 1 on host1 is lost: its process ended"
    assert said[0].startswith(lost)
    assert "logs/rank-1.log" in said[0] and "--resume auto" in said[0]
    assert json.loads((job.run / "status.json").read_text())["state"] == "failed"


def test_a_stopped_rank_does_and_the_run_had_gone_on(idle_hosts: Any, job: Job) -> None:
    before = job.last_step()
    started = job.start(form="bash")
    job.wait_for_step(before + 3, started)
    assert "resumed from" in job.log.read_text()
    # What the caller has set reaches the other host too, though pdsh drops it.
    assert "on cpu, 1 torch threads a rank" in job.log.read_text()
    left, stopped = idle_hosts.rank(0), idle_hosts.rank(1)
    os.kill(stopped, signal.SIGSTOP)
    try:
        job.wait_for_end(left, TIMEOUT_S)
    finally:
        os.kill(stopped, signal.SIGKILL)
    assert started.wait(timeout=SLOW_MACHINE_S) == KILLED
    said = job.said("pretrain: ")
    assert len(said) == 1, said
    lost = "host0: pretrain: rank 0: rank 1 on host1 is lost: no sign of life for "
    assert said[0].startswith(lost)


def test_a_pulled_cable_ends_both_sides_each_naming_the_other(idle_hosts: Any, job: Job) -> None:
    before, cache = job.last_step(), job.folder / "nvme"
    started = job.start(**{"data.local_cache": cache})
    job.wait_for_step(before + 3, started)
    assert "resumed from" in job.log.read_text()
    (copy,) = cache.glob("shards-*")  # which both hosts see here, so that one of them waited
    assert f"tokens in {copy}" in job.log.read_text()
    ranks = [idle_hosts.rank(number) for number in (0, 1)]
    idle_hosts.set_link(1, "down")
    for rank in ranks:
        job.wait_for_end(rank, TIMEOUT_S)
    for rank, other in ((0, 1), (1, 0)):
        log = (job.run / "logs" / f"rank-{rank}.log").read_text().splitlines()
        ended = [line for line in log if "ended by" in line][-1]
        assert f"LostRankError: rank {other} on host{other} is lost: no sign of life" in ended
    idle_hosts.end_all()  # ssh and pdsh, which wait for the host behind the cable
    started.wait(timeout=SLOW_MACHINE_S)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [(2, 2), (1, 0)])
def test_the_run_goes_on_with_more_ranks_and_with_fewer(
    slots: tuple[int, int], idle_hosts: Any, job: Job, tmp_path: Path
) -> None:
    """A minute on a quiet machine, where four ranks share two cores."""
    hostfile = tmp_path / "hostfile"
    lines = [f"host{number} slots={count}" for number, count in enumerate(slots) if count]
    hostfile.write_text("\n".join(lines) + "\n")
    if job.last_step() == 0:  # the tests above were not run
        started = job.start(timeout_s=60)
        job.wait_for_step(2, started)
        (job.run / "STOP").touch()
        assert started.wait(timeout=SLOW_MACHINE_S) == 85, job.log.read_text()
    before = job.last_step()
    started = job.start(hostfile=hostfile, timeout_s=60, expected_ranks=sum(slots))
    job.wait_for_step(before + 3, started)
    assert "resumed from" in job.log.read_text()
    assert f"2 rows a micro-batch x {sum(slots)} ranks" in job.log.read_text()
    (job.run / "STOP").touch()
    assert started.wait(timeout=SLOW_MACHINE_S) == 85, job.log.read_text()


@pytest.mark.slow
def test_ranks_that_cannot_reach_each_other_end_in_time(idle_hosts: Any, job: Job) -> None:
    """Half a minute on a quiet machine."""
    started = job.start(interface="lo")
    assert started.wait(timeout=SLOW_MACHINE_S) == 75, job.log.read_text()
    said = job.said("pretrain: ")
    assert len(said) == 2, said
    for line in said:
        assert "the ranks did not find each other at 10.77.0.1:" in line
        assert "(interface lo)" in line


@pytest.mark.slow
def test_a_missing_hostfile_is_an_error(idle_hosts: Any, job: Job, tmp_path: Path) -> None:
    """A quarter of a minute on a quiet machine."""
    started = job.start(hostfile=tmp_path / "nowhere")
    assert started.wait(timeout=SLOW_MACHINE_S) == 2
    said = [line for line in job.log.read_text().splitlines() if line.startswith("pretrain: ")]
    assert len(said) == 1
    assert f"there is no hostfile {tmp_path / 'nowhere'}" in said[0]

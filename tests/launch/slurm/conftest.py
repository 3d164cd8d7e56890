"""A private SLURM for the session: two nodes on this machine, ports, key and files of their own.

What it needs is root and Debian's slurm-wlm and munge; a skip names what is missing. The daemons
end with the session, or with pytest if that is killed.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "setpriv": "util-linux",
}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NUM_NODES = 2
CPUS_PER_NODE = 8  # claimed, so that several jobs run at once
PATIENCE_S = 600.0  # the machine may be busy
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")

# Processes of a job are found by /proc alone (linuxproc), so that no cgroup is needed. What has
# ended can be asked for an hour (MinJobAge). Nodes claim more CPUs than there are.
CONFIGURATION = """\
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdParameters=config_overrides
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
JobRequeue=1
KillWait=30
MinJobAge=3600
MaxArraySize=21
InactiveLimit=0
SlurmctldTimeout=300
SlurmdTimeout=300
MessageTimeout=60
{nodes}
PartitionName=usual Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
"""


def what_is_missing() -> str | None:
    """Why there can be no SLURM here, or None."""
    missing = [p for p in PROGRAMS if shutil.which(p, path=SYSTEM_PATH) is None]
    if missing:
        packages = " ".join(sorted({PROGRAMS[p] for p in missing}))
        return f"no {', '.join(missing)} (Debian: apt-get install {packages})"
    if os.geteuid():
        return "the daemons of SLURM need root"
    try:
        socket.gethostbyname(_host())
    except OSError:
        return f"the name of this host, {_host()}, is not in /etc/hosts"
    return None


@dataclass
class Slurm:
    """Commands of a running SLURM; a job is named by its number, or NUMBER_TASK."""

    folder: Path
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """For programs that talk to it: as of a shell on a login node, that knows no Python."""
        inherited = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("SLURM_", "SBATCH_", "PYTHON")) and k not in ("RANK", "WORLD_SIZE")
        }
        return {
            **inherited,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": SYSTEM_PATH,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore::FutureWarning",
        }

    def run(self, *command: str, cwd: Path | None = None, **environment: str) -> str:
        """What `command` prints; it must succeed."""
        done = self.tried(*command, cwd=cwd, **environment)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def tried(
        self, *command: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """How `command` ends."""
        return subprocess.run(
            command, env={**self.environment, **environment}, cwd=cwd,
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip

    def sbatch(self, *arguments: str, cwd: Path, **environment: str) -> str:
        """The number of a submitted job."""
        return self.run("sbatch", "--parsable", *arguments, cwd=cwd, **environment).strip()

    def job(self, name: str) -> dict[str, str]:
        """What SLURM says of a job: JobState, ExitCode, Restarts and so on."""
        said = self.run("scontrol", "show", "job", "--oneliner", name).splitlines()[0]
        return dict(re.findall(r"(\w+)=(\S*)", said))

    def wait(self, name: str) -> tuple[str, str]:
        """State and exit code of a job, once it has ended."""
        until(lambda: self.job(name)["JobState"] in ENDED, f"job {name} has ended", self._told)
        job = self.job(name)
        return job["JobState"], job["ExitCode"].partition(":")[0]

    def ask_to_stop(self, name: str) -> None:
        """Signal a batch script as SLURM does before the time limit.

        Of an array with tasks that wait, scancel says that it failed, when the signal has arrived.
        """
        self.tried("scancel", "--signal=USR1", "--batch", name)

    def until_pending(self, name: str) -> None:
        """Wait until a job is back in the queue."""
        until(lambda: self.job(name)["JobState"] == "PENDING", f"job {name} waits", self._told)

    def start_again(self, name: str) -> None:
        """Let a requeued job, which SLURM holds back for two minutes, start soon.

        Not at once: a slurmd refuses a job within the second in which it has ended it.
        """
        self.until_pending(name)
        # Right after its end a job cannot be altered.
        until(lambda: self._is_let_start(name), f"job {name} may start", self._told)

    def until_line(self, log: Path, text: str, *, times: int = 1) -> None:
        """Wait until `text` stands in `log` for the given number of times."""

        def read() -> str:
            return log.read_text(errors="replace") if log.exists() else ""

        until(lambda: read().count(text) >= times, f"{text!r} in {log}", read)

    def _is_let_start(self, name: str) -> bool:
        now = self.tried("scontrol", "update", f"JobId={name}", "StartTime=now+3")
        return now.returncode == 0 or self.job(name)["JobState"] != "PENDING"

    def cancel_all(self) -> None:
        """End all jobs and wait for their end."""
        self.run("scancel", "--user=root")
        until(lambda: not self.run("squeue", "--noheader"), "all jobs have ended", self._told)

    def until_path(self, folder: Path, pattern: str) -> None:
        """Wait until there is a path, looking all the time."""
        deadline = time.monotonic() + PATIENCE_S
        while next(folder.glob(pattern), None) is None:
            assert time.monotonic() < deadline, f"no {pattern} in {folder}"

    def ranks_of(self, job: str) -> list[int]:
        """Process numbers of the ranks of a job, in no order."""
        return [
            number
            for number in _processes_of(self.folder)
            if f"SLURM_JOB_ID={job}".encode() in _of(number, "environ")
            and b"pretrain\0train" in _of(number, "cmdline")
        ]

    def steps_of(self, run: Path) -> list[int]:
        """The steps whose updates stand in the record of a run, in its order."""
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [line["step"] for line in lines if "optimizer/learning_rate" in line]

    def logs(self, folder: Path) -> str:
        """What jobs have written into `folder`."""
        return "\n".join(f"{p.name}: {p.read_text()}" for p in sorted(folder.glob("*.log")))

    def _told(self) -> str:
        return self.run("squeue") + "".join(
            f"\n{log}:\n{log.read_text(errors='replace')[-1500:]}"
            for log in sorted(self.folder.glob("*.log"))
        )

    def start_daemon(self, *command: str) -> None:
        """Start a daemon in the foreground that does not outlive this process."""
        log = open(self.folder / f"{command[0]}.out", "ab")  # noqa: SIM115
        with log:
            self.daemons.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig", "TERM", *command],
                    env={**self.environment}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                )
            )  # fmt: skip

    def stop(self) -> None:
        """End the daemons, the last one first."""
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def until(condition: Callable[[], bool], what: str, told: Callable[[], str] = lambda: "") -> None:
    """Wait until `condition` holds; fail with `what` and what is `told` where it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {PATIENCE_S:.0f} s: {what}\n{told()}")
        time.sleep(0.2)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A running SLURM, without jobs. Afterwards nothing of it is left."""
    if reason := what_is_missing():
        pytest.skip(reason)
    # A short path: munge's socket and SLURM's spool have limits.
    folder = tmp_path_factory.mktemp("slurm")
    running = Slurm(folder)
    try:
        _start(running)
        yield running
        running.cancel_all()
    finally:
        running.stop()
    left = _processes_of(folder)
    for number in left:
        os.kill(number, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, "processes of jobs outlived their SLURM"


def _start(slurm: Slurm) -> None:
    folder, host = slurm.folder, _host()
    folder.chmod(0o755)
    for name in ("state", *(f"spool/node{i}" for i in range(NUM_NODES))):
        (folder / name).mkdir(parents=True)
    ports = _free_ports(1 + NUM_NODES)
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    nodes = [
        f"NodeName=node{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1 + i]} Boards=1 "
        f"SocketsPerBoard=1 CoresPerSocket={CPUS_PER_NODE} ThreadsPerCore=1 CPUs={CPUS_PER_NODE} "
        f"RealMemory={memory_mb // 2} State=UNKNOWN"
        for i in range(NUM_NODES)
    ]
    text = CONFIGURATION.format(host=host, folder=folder, ports=ports, nodes="\n".join(nodes))
    (folder / "slurm.conf").write_text(text)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    slurm.start_daemon(
        "munged", "--foreground", "--force", f"--key-file={folder}/munge.key",
        f"--socket={folder}/munge.sock", f"--pid-file={folder}/munged.pid",
        f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munged.log",
    )  # fmt: skip
    until((folder / "munge.sock").exists, "munged listens")
    slurm.start_daemon("slurmctld", "-D", "-i")
    for i in range(NUM_NODES):
        slurm.start_daemon("slurmd", "-D", "-N", f"node{i}")

    def is_up() -> bool:
        told = slurm.tried("sinfo", "--noheader", "--Node", "-p", "usual", "--format=%t")
        return told.stdout.split() == ["idle"] * NUM_NODES

    until(is_up, "all nodes are idle", slurm._told)


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _processes_of(folder: Path) -> list[int]:
    """Processes that know this SLURM: jobs, their steps, daemons."""
    mark = f"SLURM_CONF={folder}/".encode()
    numbers = [int(p.name) for p in Path("/proc").glob("[0-9]*") if int(p.name) != os.getpid()]
    return [number for number in numbers if mark in _of(number, "environ")]


def _of(process: int, what: str) -> bytes:
    """A file of /proc; empty where the process has just ended."""
    try:
        return Path(f"/proc/{process}/{what}").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def queue(slurm: Slurm) -> Iterator[Slurm]:
    """The session's SLURM, in which this test leaves no job behind."""
    yield slurm
    slurm.cancel_all()


@pytest.fixture(scope="session")
def clone(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rooms in a new folder with a space in its name; its .venv is the one that runs the
    tests."""
    root = tmp_path_factory.mktemp("clones") / "my clone"
    for name in ("launch", "pretrain", "kernels", "data_pipeline"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / name, root / name, ignore=ignored)
    shutil.copy(repository / "ds_config.json", root)
    (root / ".venv").symlink_to(Path(sys.executable).parent.parent)
    return root


@pytest.fixture(scope="session")
def debug_run(small_shards: Path) -> Callable[..., Sequence[str]]:
    """Arguments of a small training: (folder of runs, further arguments) -> arguments."""

    def arguments(runs: Path, *more: str) -> Sequence[str]:
        recipe = ["--config", "launch/recipes/debug.yaml", "--data.shards", str(small_shards)]
        return [*recipe, "--runs", str(runs), *more]

    return arguments

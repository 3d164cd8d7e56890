"""Two pretend hosts on one machine: a network and a host name each, an sshd, and a cable between.

Nothing of them lies in the machine's own network, so that two test sessions do not meet. What they
need is root, `ip`, `unshare`, `sshd`, `ssh` and `pdsh`; a skip names what is missing.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "pdsh": "pdsh",
}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SSHD = shutil.which("sshd", path=SYSTEM_PATH)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def what_is_missing() -> str | None:
    """Why there can be no pretend hosts here, or None."""
    missing = [p for p in PROGRAMS if shutil.which(p, path=SYSTEM_PATH) is None]
    if missing:
        packages = sorted({PROGRAMS[p] for p in missing})
        return f"no {', '.join(missing)} (Debian: apt-get install {' '.join(packages)})"
    if os.geteuid():
        return "network namespaces need root"
    probe = f"palprobe{os.getpid()}"
    steps = (
        ("ip", "netns", "add", probe),
        ("ip", "-n", probe, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"),
        ("ip", "netns", "exec", probe, "unshare", "--uts", "bash", "-c",
         "hostname host0 && mount --bind /tmp /dev/shm"),
    )  # fmt: skip
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                return (
                    "no network namespace with a cable can be made here (CAP_SYS_ADMIN, "
                    f"CAP_NET_ADMIN, veth): {' '.join(step)}: {done.stderr.strip()}"
                )
    finally:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return None


@dataclass(frozen=True)
class Hosts:
    """host0 and host1, at 10.77.0.1 and 10.77.0.2, which see the same disk."""

    folder: Path
    namespaces: tuple[str, str]

    @property
    def hostfile(self) -> Path:
        """One slot on each."""
        return self.folder / "hostfile"

    def shared_memory(self, number: int) -> Path:
        """What is /dev/shm on a host."""
        return self.folder / f"shm{number}"

    def start(
        self,
        number: int,
        command: Sequence[str],
        *,
        log: Path,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run `command` on host `number` as a user who is logged in there would; output to log."""
        # A host name and a /dev/shm of its own.
        memory = self.shared_memory(number)
        inside = f'hostname host{number}; mount --bind "{memory}" /dev/shm; exec "$@"'
        with log.open("wb") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespaces[number], "unshare", "--uts", "bash", "-c",
                 inside, "_", *command],
                cwd=cwd,
                env={"PATH": f"{self.folder / 'bin'}:{SYSTEM_PATH}", "HOME": str(self.folder)}
                | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def set_link(self, number: int, state: str) -> None:
        """Plug the cable of a host in ("up") or out ("down")."""
        _run("ip", "-n", self.namespaces[number], "link", "set", "eth0", state)

    def processes(self, number: int) -> dict[int, str]:
        """What runs on a host beside its sshd: command lines by process number."""
        found = {}
        for word in _run("ip", "netns", "pids", self.namespaces[number]).split():
            try:
                line = Path(f"/proc/{word}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = Path(f"/proc/{word}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:  # it has just ended
                continue
            if state != "Z" and not line.startswith((f"{SSHD} -D", f"sshd: {SSHD}")):
                found[int(word)] = line.strip()
        return found

    def rank(self, number: int) -> int:
        """The process number of the one rank on a host."""
        ranks = [p for p, line in self.processes(number).items() if "-m pretrain train" in line]
        assert len(ranks) == 1, self.processes(number)
        return ranks[0]

    def wait_until_idle(self, number: int, timeout_s: float) -> None:
        """Wait until nothing runs on a host but its sshd."""
        deadline = time.monotonic() + timeout_s
        while left := self.processes(number):
            assert time.monotonic() < deadline, f"host{number} still runs {left}"
            time.sleep(0.1)

    def end_all(self) -> None:
        """End what a failed test has left on both hosts."""
        for number in (0, 1):
            for process in self.processes(number):
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def _ssh_files(folder: Path) -> None:
    for key in ("key", "host_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    shutil.copy(folder / "key.pub", folder / "authorized")
    (folder / "sshd_config").write_text(
        f"Port 22\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized\n"
        "PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nPidFile none\n"
        "PasswordAuthentication no\n"
    )
    (folder / "ssh_config").write_text(
        f"Host *\n  User root\n  IdentityFile {folder}/key\n  StrictHostKeyChecking no\n"
        "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    (folder / "bin").mkdir()
    ssh = folder / "bin" / "ssh"
    ssh.write_text(
        f'#!/bin/sh\nexec {shutil.which("ssh", path=SYSTEM_PATH)} -F {folder}/ssh_config "$@"\n'
    )
    ssh.chmod(0o755)
    (folder / "hostfile").write_text("host0 slots=1\nhost1 slots=1\n")


def _cable(first: str, second: str) -> None:
    for name in (first, second):
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", first, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
         second)  # fmt: skip
    for number, name in enumerate((first, second)):
        _run("ip", "-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Both hosts, for all tests; afterwards nothing of them is left."""
    if reason := what_is_missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    made = Hosts(folder, (f"pal{os.getpid()}a", f"pal{os.getpid()}b"))
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        _cable(*made.namespaces)
        _ssh_files(folder)
        Path("/run/sshd").mkdir(exist_ok=True)
        for number, name in enumerate(made.namespaces):
            made.shared_memory(number).mkdir()
            etc = Path("/etc/netns") / name
            etc.mkdir(parents=True)
            # As Debian's installer writes it: a host's own name is no address of its network.
            own, other = number, 1 - number
            (etc / "hosts").write_text(
                f"127.0.0.1 localhost\n127.0.1.1 host{own}\n10.77.0.{other + 1} host{other}\n"
            )
            sshd = [str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")]
            daemons.append(made.start(number, sshd, log=folder / f"sshd{number}.log", cwd=folder))
        yield made
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait(timeout=20)
        for name in made.namespaces:
            _run("ip", "netns", "del", name)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)
    left = [made.shared_memory(number) for number in (0, 1)]
    assert [os.listdir(memory) for memory in left] == [[], []]
    assert not set(made.namespaces) & set(_run("ip", "netns", "list").split())


@pytest.fixture
def idle_hosts(hosts: Hosts) -> Iterator[Hosts]:
    """Both hosts with the cable in and nothing running, before and after a test."""
    yield hosts
    try:
        for number in (0, 1):
            hosts.wait_until_idle(number, timeout_s=60)
    finally:
        hosts.end_all()
        for number in (0, 1):
            hosts.set_link(number, "up")


@pytest.fixture(scope="session")
def deepspeed() -> str:
    """The launcher beside the interpreter that runs the tests."""
    return str(Path(sys.executable).parent / "deepspeed")

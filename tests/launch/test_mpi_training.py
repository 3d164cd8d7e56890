"""mpirun starts the launch script as it is: its ranks, its exit codes, deepspeed on top of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

BIN = Path(sys.executable).parent
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(started: Start, repository: Path, small_shards: Path, tmp_path: Path) -> Start:
    """Starts the debug recipe behind `launcher`, in tmp_path."""

    def start_training(
        launcher: list[str], name: str, *more: str, steps: int
    ) -> subprocess.Popen[str]:
        arguments = ["--config", str(repository / "launch/recipes/debug.yaml"), "--name", name]
        arguments += ["--data.shards", str(small_shards), "--steps", str(steps)]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI", "MASTER"))}
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return started(
            [*launcher, str(repository / "launch/pretrain_glm.sh"), *arguments, *more],
            env=inherited | as_root | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            stderr=subprocess.STDOUT,
        )

    return start_training


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [r["loss/total_nats"] for r in records if "loss/total_nats" in r]


def trained(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    return said


def ranks_of(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """The processes that mpirun has started, by rank."""
    children = psutil.Process(process.pid).children()
    return {child.environ()["RANK"]: child for child in children}


@pytest.mark.mpi
@pytest.mark.ranks
def test_mpirun_trains_on_two_ranks(start: Start, mpirun, tmp_path: Path) -> None:
    said = trained(start(mpirun(2), "m", steps=2))
    assert "4 rows a micro-batch x 2 ranks x 1 accumulated" in said
    assert len(losses(tmp_path / "runs/m")) == 2
    assert all((tmp_path / f"runs/m/logs/rank-{rank}.log").is_file() for rank in (0, 1))


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.ranks
def test_deepspeed_and_mpirun_start_the_same_training_in_each_order(
    start: Start, mpirun, tmp_path: Path
) -> None:
    """Three trainings of two steps, one after another; takes one to two minutes."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    deepspeed = str(BIN / "deepspeed")
    on_top = ["--hostfile", str(hosts), "--launcher", "openmpi", "--force_multi", "--no_ssh_check"]
    on_top += ["--launcher_args=--oversubscribe", "--master_addr", "127.0.0.1"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = f"--master_port={probe.getsockname()[1]}"
    launchers = {
        "deepspeed": [deepspeed, port, "--num_gpus", "2"],
        "mpirun": mpirun(2),
        "deepspeed_openmpi": [deepspeed, *on_top],
    }
    found = {}
    for name, launcher in launchers.items():
        trained(start(launcher, name, "--model.dropout_prob", "0", steps=2))
        found[name] = losses(tmp_path / "runs" / name)
    assert len(found["mpirun"]) == 2
    assert found["mpirun"] == pytest.approx(found["deepspeed"], rel=1e-5)
    assert found["deepspeed_openmpi"] == pytest.approx(found["deepspeed"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("asked", "code"), [("mpirun", 85), ("rank 1", 85), ("rank 1 is killed", 137)]
)
def test_mpirun_passes_on_what_the_ranks_leave_with(
    start: Start, mpirun, tmp_path: Path, asked: str, code: int
) -> None:
    """A training that is asked to stop, or loses a rank; half a minute to a minute each."""
    process = start(mpirun(2), "m", "--evaluation.every_steps", "100000", steps=100_000)
    metrics = tmp_path / "runs/m/metrics.jsonl"
    while not (metrics.exists() and len(losses(metrics.parent)) > 2) and process.poll() is None:
        time.sleep(0.2)
    ranks = ranks_of(process)
    assert sorted(ranks) == ["0", "1"]
    if asked == "mpirun":
        process.send_signal(signal.SIGUSR1)
    elif asked == "rank 1":
        ranks["1"].send_signal(signal.SIGUSR1)
    else:
        ranks["1"].kill()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert not psutil.wait_procs(ranks.values(), timeout=20)[1]
    state = json.loads((metrics.parent / "status.json").read_text())["state"]
    assert (state == "preempted") == (code == 85)


@pytest.fixture
def rank_environment(repository: Path, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """What a rank of mpirun hands to the trainer, told by a pretend interpreter."""
    recorder = tmp_path / "python"
    recorder.write_text(f"""#!/bin/bash
if [[ $1 == -c ]]; then exec {sys.executable} "$@"; fi
env -0
""")
    recorder.chmod(0o755)

    def environment(code: int = 0, **given: str) -> dict[str, str]:
        keep = {n: os.environ[n] for n in ("PATH", "HOME") if n in os.environ}
        done = subprocess.run(
            ["bash", str(repository / "launch/pretrain_glm.sh")],
            env={**keep, "PYTHON": str(recorder), **given},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        if code:
            return {"said": done.stderr}
        return dict(pair.partition("=")[::2] for pair in done.stdout.split("\0") if pair)

    return environment


def of_openmpi(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """What mpirun sets for a rank."""
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = (rank, size, local_rank, local_size)
    told = {f"OMPI_COMM_WORLD_{n}": str(v) for n, v in zip(names, values, strict=True)}
    return told | {"OMPI_MCA_ess_base_jobid": "1271070721"}


def test_a_rank_of_mpirun_is_one_of_the_trainer(rank_environment) -> None:
    told = rank_environment(**of_openmpi(1, 2, 1, 2))
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"]) == ("1", "2", "1")
    assert told["MASTER_ADDR"] == "127.0.0.1"
    assert 30000 <= int(told["MASTER_PORT"]) < 32700
    assert told["MASTER_PORT"] == rank_environment(**of_openmpi(0, 2, 0, 2))["MASTER_PORT"]


def test_mpirun_of_open_mpi_5_has_a_name_for_a_number(rank_environment) -> None:
    def port(name: str, rank: int) -> int:
        told = of_openmpi(rank, 2, rank, 2) | {"PMIX_NAMESPACE": name}
        del told["OMPI_MCA_ess_base_jobid"]
        return int(rank_environment(**told)["MASTER_PORT"])

    one, other = "prterun-node7-4711@1", "prterun-node7-4712@1"
    assert port(one, 0) == port(one, 1) != port(other, 0)
    assert 30000 <= port(one, 0) < 32700


def test_ranks_on_several_hosts_need_the_address_of_rank_0(rank_environment) -> None:
    said = rank_environment(2, **of_openmpi(0, 4, 0, 2))["said"]
    assert said.count("\n") == 1 and "mpirun -x MASTER_ADDR=" in said
    told = rank_environment(MASTER_ADDR="node3", **of_openmpi(3, 4, 1, 2))
    assert (told["RANK"], told["LOCAL_RANK"], told["MASTER_ADDR"]) == ("3", "1", "node3")

"""mpirun over two hosts: prepare has the bytes of one process, and a training its two ranks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.hosts, pytest.mark.mpi, pytest.mark.ranks, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
SLOW_MACHINE_S = 300


@pytest.fixture
def on_both(idle_hosts: Any, mpirun: Any, tmp_path: Path) -> Any:
    """Runs a command as two ranks, one on each host, from host0; gives exit code and output."""
    network = "--mca oob_tcp_if_include eth0 --mca btl tcp,self --mca btl_tcp_if_include eth0"
    launcher = [*mpirun(2), "--host", "10.77.0.1,10.77.0.2", *network.split()]
    launcher += ["-x", "MASTER_ADDR=10.77.0.1", "-x", f"PYTHONPATH={ROOT}", "-x", "OMP_NUM_THREADS"]

    def run(*command: str) -> tuple[int, str]:
        log = tmp_path / "log"
        started = idle_hosts.start(
            0,
            [*launcher, *command],
            log=log,
            cwd=tmp_path,
            environment={"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        )
        code = started.wait(timeout=SLOW_MACHINE_S)
        return code, log.read_text()

    return run


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_prepare_on_two_hosts_has_the_bytes_of_one_process(
    on_both: Any, small_shards: Path, tmp_path: Path
) -> None:
    """Two prepares, one of which waits half a minute in vain; a minute in all."""
    text, model = small_shards.parent / "text.txt", small_shards.parent / "a.model"
    given = ["--input", str(text), "--tokenizer", str(model), "--validation", "0.1"]
    given += ["--slice-bytes", "4000"]
    prepare = [sys.executable, "-m", "mpi4py", "-m", "data_pipeline", "prepare", *given]
    code, said = on_both(*prepare, "--output", str(tmp_path / "shards"))
    assert code == 0, said
    assert "data_pipeline: 2 ranks on 2 hosts." in said
    assert contents(tmp_path / "shards") == contents(small_shards)
    # /dev/shm is another folder on each host.
    code, said = on_both(*prepare, "--output", "/dev/shm/shards")
    assert code == 2, said
    lines = [line for line in said.splitlines() if line.startswith("data_pipeline: ")]
    assert "on host1 is not the folder of that name that rank 0 writes to" in lines[-1]
    clean = ["rm", "-rf", "/dev/shm/.shards.partial"]
    assert on_both(*clean)[0] == 0


def test_a_training_has_a_rank_on_each_host(
    on_both: Any, small_shards: Path, tmp_path: Path
) -> None:
    """Two steps; half a minute."""
    script, recipe = ROOT / "launch/pretrain_glm.sh", ROOT / "launch/recipes/debug.yaml"
    given = ["--config", str(recipe), "--data.shards", str(small_shards), "--steps", "2"]
    code, said = on_both(str(script), *given, "--name", "m", "--interface", "eth0")
    assert code == 0, said
    lines = (tmp_path / "runs/m/metrics.jsonl").read_text().splitlines()
    assert sum("loss/total_nats" in json.loads(line) for line in lines) == 2
    for rank in (0, 1):
        log = (tmp_path / f"runs/m/logs/rank-{rank}.log").read_text()
        assert f" host{rank} rank {rank} " in log


def test_without_an_address_of_rank_0_one_line_asks_for_it(
    idle_hosts: Any, mpirun: Any, tmp_path: Path
) -> None:
    """A few seconds."""
    launcher = [*mpirun(2), "--host", "10.77.0.1,10.77.0.2", "--mca", "oob_tcp_if_include", "eth0"]
    started: subprocess.Popen[bytes] = idle_hosts.start(
        0,
        [*launcher, "-x", "PYTHON", str(ROOT / "launch/pretrain_glm.sh")],
        log=tmp_path / "log",
        cwd=tmp_path,
        environment={"PYTHON": sys.executable},
    )
    assert started.wait(timeout=SLOW_MACHINE_S) == 2
    said = (tmp_path / "log").read_text()
    assert said.count("launch: ") == 1 and "mpirun -x MASTER_ADDR=host0" in said

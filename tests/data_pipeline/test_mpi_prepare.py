"""prepare on the ranks of MPI: the bytes of one process, and no rank outlives another's end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from data_pipeline import mpi_launch
from data_pipeline.__main__ import main
from data_pipeline.preparing.output_folder import OutputFolder

MODULE = [sys.executable, "-m", "mpi4py", "-m", "data_pipeline", "prepare"]
PLAIN = [sys.executable, "-m", "data_pipeline", "prepare"]
FAILS_ON_RANK_1 = """
import os, sys
from data_pipeline.__main__ import main
from data_pipeline.preparing import ranks
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    ranks.prepare_slice = None
sys.exit(main())
"""


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def finished(output: Path) -> set[str]:
    return {p.stem for p in OutputFolder(output).slices.glob("*.json")}


def segments() -> set[str]:
    """What Open MPI leaves in shared memory."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("vader", "ompi"))}


@pytest.fixture
def options(tmp_path, model_file, mixed_folder):
    """The words behind `prepare`, for an output in tmp_path."""

    def build(name, *more, of=mixed_folder, slice_bytes=6000) -> list[str]:
        given = ["--input", of, "--tokenizer", model_file, "--output", tmp_path / name]
        return [str(a) for a in (*given, "--slice-bytes", slice_bytes, *more)]

    return build


@pytest.fixture
def start(started, repository, tmp_path):
    """Starts a command with the session of Open MPI in tmp_path."""

    def start_command(words: list[str], **environment: str) -> subprocess.Popen[str]:
        session = tmp_path / "session"
        session.mkdir(exist_ok=True)
        own = {"PYTHONPATH": str(repository), "TMPDIR": str(session)}
        return started(words, env={**os.environ, **own, **environment}, stderr=subprocess.PIPE)

    return start_command


@pytest.fixture
def run(start, mpirun):
    """Runs a command on two ranks and gives exit code, stdout and our own lines of stderr."""

    def run_command(words: list[str], **environment: str) -> tuple[int, str, list[str]]:
        process = start([*mpirun(2), *words], **environment)
        printed, said = process.communicate(timeout=120)
        lines = [line for line in said.splitlines() if line.startswith("data_pipeline: ")]
        assert process.returncode == 0 or lines or "Traceback" in said, said
        return process.returncode, printed, lines

    return run_command


def ranks_of(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """The processes that an mpirun has started, by rank."""
    children = psutil.Process(process.pid).children()
    return {child.environ()["OMPI_COMM_WORLD_RANK"]: child for child in children}


@pytest.mark.mpi
@pytest.mark.parametrize("command", [MODULE, PLAIN], ids=["mpi4py in front", "plain"])
def test_two_ranks_give_the_bytes_of_one_process(run, options, tmp_path, command):
    chosen = ["--dedup", "exact", "--mix", "2", "--validation", "0.2"]
    assert main(["prepare", *options("one", "--workers", "1", *chosen)]) == 0
    code, printed, said = run([*command, *options("two", *chosen)])
    assert code == 0
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert printed.count("vocabulary") == 1  # rank 0 alone tells what was made
    assert said[0] == "data_pipeline: 2 ranks on 1 host."
    assert said[1].startswith("data_pipeline: 12 slices were prepared, ")


@pytest.mark.mpi
@pytest.mark.parametrize("killed", ["0", "1"])
def test_a_rank_that_is_killed_ends_all_and_the_next_run_goes_on(
    start, run, mpirun, options, mixed_folder, tmp_path, killed
):
    folder = tmp_path / "in"
    folder.mkdir()
    lines = (mixed_folder / "a.txt").read_text().splitlines()
    (folder / "a.txt").write_text("".join(f"{n} {line}\n" for n in range(30) for line in lines))
    words = options("x", of=folder, slice_bytes=20_000)
    before = segments()
    process = start([*mpirun(2), *PLAIN, *words])
    while len(finished(tmp_path / "x")) < 3 and process.poll() is None:
        time.sleep(0.01)
    ranks = ranks_of(process)
    ranks[killed].kill()
    killed_at_s = time.monotonic()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    _, alive = psutil.wait_procs(ranks.values(), timeout=20)
    assert not alive and time.monotonic() - killed_at_s < 30
    kept = len(finished(tmp_path / "x"))
    assert kept >= 3 and not (tmp_path / "x").exists()
    assert segments() <= before and not any((tmp_path / "session").iterdir())
    code, _, said = run([*PLAIN, *words])
    assert code == 0 and f"{kept} of " in said[0] and "were finished before." in said[0]
    assert main(["prepare", *options("one", of=folder)]) == 0
    assert contents(tmp_path / "x") == contents(tmp_path / "one")


@pytest.mark.mpi
def test_a_mistake_is_one_line_of_rank_0(run, options):
    code, printed, said = run([*MODULE, *options("x", "--mux", "3")])
    assert (code, printed) == (2, "")
    assert said == ["data_pipeline: unknown setting 'mux'. Did you mean 'mix'?"]
    code, _, said = run([*PLAIN, *options("x", "--workers", "4")])
    assert code == 2 and len(said) == 1
    assert said[0].startswith("data_pipeline: --workers 4 under mpirun: its 2 ranks are the")


@pytest.mark.mpi
def test_a_mistake_that_one_rank_alone_meets_is_one_line(start, mpirun, options, tmp_path):
    one, other = ([*PLAIN, *options("x", *more)] for more in ([], ["--document", "file"]))
    process = start([*mpirun(1), *one, ":", "-n", "1", *other])
    _, errors = process.communicate(timeout=60)
    said = [line for line in errors.splitlines() if line.startswith("data_pipeline: ")]
    assert process.returncode == 2 and len(said) == 1
    assert "rank 1 on " in said[0] and "finds other input files than rank 0" in said[0]
    absent = [*PLAIN, *options("x", "--input", tmp_path / "absent.txt")]
    process = start([*mpirun(1), *one, ":", "-n", "1", *absent])
    _, errors = process.communicate(timeout=60)
    said = [line for line in errors.splitlines() if line.startswith("data_pipeline: ")]
    assert process.returncode == 2 and len(said) == 1
    assert "absent.txt does not exist. (rank 1 on " in said[0]


@pytest.mark.mpi
def test_an_unexpected_error_on_one_rank_ends_all(start, mpirun, options):
    process = start([*mpirun(2), sys.executable, "-c", FAILS_ON_RANK_1, "prepare", *options("x")])
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "TypeError: 'NoneType' object is not callable" in errors


@pytest.mark.mpi
def test_without_a_library_of_mpi_one_line_says_so(run, options):
    code, _, said = run([*PLAIN, *options("x")], MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert code == 2 and len(said) == 1
    assert "cannot use MPI" in said[0] and "start prepare without mpirun" in said[0]


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, 8),
        ({"PMI_SIZE": "4"}, 4),
    ],
)
def test_a_rank_is_known_by_its_environment(monkeypatch, environment, size):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert mpi_launch.num_launched() == size
    assert mpi_launch.is_rank() == (size > 1)

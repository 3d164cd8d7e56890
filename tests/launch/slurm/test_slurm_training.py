"""Training as a job of a private SLURM: across nodes, asked to stop and requeued, in arrays."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.ranks]
SCRIPT = "launch/pretrain_glm.sh"
Arguments = Callable[..., Sequence[str]]


def test_a_job_on_two_nodes_saves_at_usr1_and_goes_on_when_requeued(
    queue, clone: Path, debug_run: Arguments, tmp_path: Path
) -> None:
    log = tmp_path / "job.log"
    job = queue.sbatch(
        "-N2", "-n2", f"--output={log}", SCRIPT, *debug_run(tmp_path / "runs"), cwd=clone
    )
    queue.until_line(log, "step 3/20")
    queue.ask_to_stop(job)
    queue.until_line(log, "goes back into the queue")
    queue.start_again(job)
    assert queue.wait(job) == ("COMPLETED", "0")

    assert queue.job(job)["Restarts"] == "1"
    said = log.read_text()
    assert "4 rows a micro-batch x 2 ranks" in said
    saved = int(re.findall(r"stopped by SIGUSR1, step (\d+) of 20 is saved", said)[0])
    assert 3 <= saved < 20
    assert f"step-{saved:08d}: step {saved} is done" in said  # resumed
    assert "done: step 20 of 20" in said
    assert queue.steps_of(tmp_path / "runs/debug") == list(range(1, 21))


def test_tasks_of_two_arrays_have_ports_and_folders_of_their_own(
    queue, clone: Path, debug_run: Arguments, tmp_path: Path
) -> None:
    arguments = debug_run(tmp_path / "runs", "--name", "glm_%A_%a", "--steps", "2", "--seed", "%a")
    options = ["--array=1-2", "-N1", "-n1", f"--output={tmp_path}/%A_%a.log"]
    arrays = [queue.sbatch(*options, SCRIPT, *arguments, cwd=clone) for _ in range(2)]
    tasks = [f"{array}_{task}" for array in arrays for task in (1, 2)]
    for task in tasks:
        assert queue.wait(task) == ("COMPLETED", "0"), (tmp_path / f"{task}.log").read_text()
    jobs = [queue.job(task) for task in tasks]
    assert max(job["StartTime"] for job in jobs) < min(job["EndTime"] for job in jobs)  # at once
    runs = {f"glm_{task}" for task in tasks}
    assert {run.name for run in (tmp_path / "runs").iterdir()} == runs
    for run in runs:
        assert queue.steps_of(tmp_path / "runs" / run) == [1, 2]
        seed = int(run[-1])
        assert f"seed: {seed}\n" in (tmp_path / "runs" / run / "config.yaml").read_text()

"""What a cluster does to a training, done to it: each drill starts a shipped file as it is."""

import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.ranks, pytest.mark.slow]
Arguments = Callable[..., Sequence[str]]
TWO_NODES = ["--partition=usual", "--nodes=2", "--ntasks-per-node=1", "--time=30"]
LONG = ["--steps", "4000", "--evaluation.every_steps", "0"]  # the drill ends it


def submit(queue, clone: Path, template: str, folder: Path, *arguments: str, **environment: str):
    """The number of a job of launch/slurm/TEMPLATE, whose logs are in `folder`."""
    options = [*TWO_NODES, f"--output={folder}/%x.log", "--parsable"]
    script = str(clone / "launch/slurm/submit.sh")
    extra = environment.pop("options", "").split()
    command = [script, *options, *extra, str(clone / "launch/slurm" / template), *arguments]
    return queue.run(*command, cwd=clone, **environment).strip()


def saved_steps(log: Path) -> list[int]:
    """Of each time that the ranks saved and left, the step."""
    return [int(s) for s in re.findall(r"stopped by SIG\w+: step (\d+) of", log.read_text())]


def test_the_time_limit_saves_and_requeues(queue, clone, debug_run: Arguments, tmp_path) -> None:
    """About 2 minutes: --signal=B:USR1@120 of the template, in a job of 3 minutes."""
    log = tmp_path / "pretrain.log"
    arguments = debug_run(tmp_path / "runs", *LONG)
    job = submit(queue, clone, "pretrain.sbatch", tmp_path, *arguments, options="--time=3")
    queue.until_line(log, "goes back into the queue")
    queue.start_again(job)
    queue.until_line(log, f"step {saved_steps(log)[0]} is done")
    assert queue.job(job)["Restarts"] == "1"


def test_a_job_with_priority_takes_the_nodes_and_gives_them_back(
    queue, clone, debug_run: Arguments, tmp_path
) -> None:
    """About a minute: SLURM itself requeues what it preempts."""
    log = tmp_path / "pretrain.log"
    arguments = debug_run(tmp_path / "runs", *LONG)
    job = submit(queue, clone, "pretrain.sbatch", tmp_path, *arguments, options="--exclusive")
    queue.until_line(log, "step 3/")
    urgent = queue.sbatch(
        "--partition=urgent", "-N2", "--exclusive", "--output=/dev/null", "--wrap=true",
        cwd=tmp_path,
    )  # fmt: skip
    assert queue.wait(urgent) == ("COMPLETED", "0")
    queue.start_again(job)
    queue.until_line(log, f"step {saved_steps(log)[0]} is done")
    assert "launch: job" in log.read_text()


def test_a_lost_node_gives_the_job_back_to_the_queue(
    queue, clone, debug_run: Arguments, tmp_path
) -> None:
    """About a minute."""
    log = tmp_path / "pretrain.log"
    arguments = debug_run(tmp_path / "runs", *LONG, "--checkpoints.every_steps", "2")
    job = submit(queue, clone, "pretrain.sbatch", tmp_path, *arguments)
    queue.until_line(log, "step 5/")
    try:
        queue.run("scontrol", "update", "NodeName=node1", "State=DOWN", "Reason=drill")
        queue.until_pending(job)
    finally:
        queue.tried("scontrol", "update", "NodeName=node1", "State=RESUME")  # may be back
    queue.start_again(job)
    queue.until_line(log, "resumed from")


def test_requeued_and_killed_in_mid_save_it_goes_on_from_a_whole_checkpoint(
    queue, clone, debug_run: Arguments, tmp_path
) -> None:
    """About 90 s: a save at every step; first SLURM requeues during one, then a rank is killed."""
    log, run = tmp_path / "pretrain.log", tmp_path / "runs/debug"
    arguments = debug_run(
        tmp_path / "runs", "--steps", "40", "--checkpoints.every_steps", "1",
        "--evaluation.every_steps", "0",
    )  # fmt: skip
    job = submit(queue, clone, "pretrain.sbatch", tmp_path, *arguments)
    queue.until_line(log, "step 3/40")
    queue.until_path(run / "checkpoints", "*.partial")
    queue.run("scontrol", "requeue", job)
    queue.start_again(job)
    queue.until_line(log, "resumed from")
    queue.until_line(log, "step 20/40")
    queue.until_path(run / "checkpoints", "*.partial")
    os.kill(queue.ranks_of(job)[0], signal.SIGKILL)
    queue.until_line(log, "goes back into the queue")
    queue.start_again(job)
    assert queue.wait(job) == ("COMPLETED", "0"), log.read_text()
    assert queue.steps_of(run) == list(range(1, 41))


def test_a_chain_ends_by_itself(queue, clone, debug_run: Arguments, tmp_path) -> None:
    """About a minute: two segments of a chain of four, the others end at once."""
    log = tmp_path / "chain.log"
    arguments = debug_run(tmp_path / "runs")
    chain = submit(queue, clone, "chain.sbatch", tmp_path, *arguments, options="--array=1-4%1")
    queue.until_line(log, "step 3/20")
    queue.ask_to_stop(f"{chain}_1")
    ends = [queue.wait(f"{chain}_{task}") for task in (1, 2, 3, 4)]
    assert ends == [("COMPLETED", "0")] * 4
    said = log.read_text()
    assert "the next task of the chain goes on" in said
    assert "done: step 20 of 20" in said
    assert said.count("step 20 of 20 is saved, nothing left to do") == 2
    assert queue.steps_of(tmp_path / "runs/debug") == list(range(1, 21))


def test_a_chain_stops_at_a_mistake(queue, clone, debug_run: Arguments, tmp_path) -> None:
    """A quarter of a minute: of four tasks one is started."""
    log = tmp_path / "chain.log"
    arguments = debug_run(tmp_path / "runs", "--data.shards", str(tmp_path / "none"))
    chain = submit(queue, clone, "chain.sbatch", tmp_path, *arguments, options="--array=1-4%1")
    assert queue.wait(f"{chain}_1") == ("FAILED", "2")
    assert queue.run("squeue", "--noheader", f"--job={chain}", "--states=PENDING,RUNNING") == ""
    said = log.read_text()
    assert "no prepared shards in" in said
    assert said.count("a mistake of yours, which every task of the chain would meet") == 1


def test_ranks_that_did_not_meet_are_started_again(
    queue, clone, debug_run: Arguments, tmp_path
) -> None:
    """About a minute: the second rank begins when the first has given up."""
    log, python = tmp_path / "pretrain.log", tmp_path / "python"
    python.write_text(
        f"""#!/bin/bash
if [[ "$SLURM_PROCID" == 1 && "$*" == *" train "* && ! -e {tmp_path}/met ]]; then
  until grep -q "the ranks did not find each other" {log}; do sleep 1; done
  exit 0
fi
exec "{clone}/.venv/bin/python" "$@"
"""
    )
    python.chmod(0o755)
    arguments = debug_run(tmp_path / "runs", "--timeout_s", "30")
    job = submit(queue, clone, "pretrain.sbatch", tmp_path, *arguments, PYTHON=str(python))
    queue.until_line(log, "goes back into the queue")
    assert "the ranks did not find each other, step 0 of 20 is saved, crashes" in log.read_text()
    (tmp_path / "met").touch()
    queue.start_again(job)
    queue.until_line(log, "step 1/20")


def test_a_run_that_crashes_again_and_again_stays_out(
    queue, clone, debug_run: Arguments, tmp_path
) -> None:
    """About a minute: each time a rank is killed before anything is saved."""
    log = tmp_path / "pretrain.log"
    arguments = debug_run(tmp_path / "runs", *LONG, "--checkpoints.every_steps", "0")
    job = submit(queue, clone, "pretrain.sbatch", tmp_path, *arguments, MAX_CRASHES="2")
    queue.until_line(log, "step 1/")
    os.kill(queue.ranks_of(job)[-1], signal.SIGKILL)
    queue.until_line(log, "goes back into the queue")
    queue.start_again(job)
    queue.until_line(log, "step 1/", times=2)
    os.kill(queue.ranks_of(job)[-1], signal.SIGKILL)
    assert queue.wait(job) == ("FAILED", "137"), log.read_text()
    assert "crashed 2 times at step 0" in log.read_text()


def test_tasks_of_a_sweep_keep_their_folders_when_requeued(
    queue, clone, small_shards: Path, tmp_path
) -> None:
    """About a minute: two tasks, one of them asked to save and started again."""
    sweep = tmp_path / "rates.yaml"
    recipe = clone / "launch/recipes/debug.yaml"
    sweep.write_text(f"recipe: {recipe}\ngrid:\n  optimizer.lr: [0.001, 0.002]\n")
    arguments = [str(sweep), "--data.shards", str(small_shards), "--runs", str(tmp_path / "runs")]
    options = f"--array=0-1 --output={tmp_path}/%a.log --nodes=1"
    array = submit(queue, clone, "sweep.sbatch", tmp_path, *arguments, options=options)
    queue.until_line(tmp_path / "1.log", "step 3/20")
    queue.ask_to_stop(f"{array}_1")
    queue.until_line(tmp_path / "1.log", "goes back into the queue")
    queue.start_again(f"{array}_1")
    ends = [queue.wait(f"{array}_{task}") for task in (0, 1)]
    assert ends == [("COMPLETED", "0")] * 2, (tmp_path / "1.log").read_text()
    runs = [path.parent for path in sorted((tmp_path / "runs").rglob("metrics.jsonl"))]
    assert len(runs) == 2 and all(array in str(run) for run in runs)
    assert [queue.steps_of(run) for run in runs] == [list(range(1, 21))] * 2

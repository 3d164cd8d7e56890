"""What launch/slurm.bash does around the ranks, with pretend srun, scontrol and interpreter.

tests/launch/slurm/ does the same under a real SLURM, which takes a hundred times as long.
"""

import fcntl
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = {
    "python": f"""#!/bin/bash
case " $* " in
  *" -c "*) exec {sys.executable} "$@" ;;
  *" progress "*) echo "$*" >> "$HERE/progress"; printf "$PROGRESS"; exit ${{PROGRESS_RC:-0}} ;;
  *) env > "$HERE/rank"; grep SigIgn /proc/$$/status | tr : = >> "$HERE/rank" ;;
esac
""",
    "srun": """#!/bin/bash
trap 'kill $sleeper; exit 85' USR1
if [[ -n "${SRUN_WAITS:-}" ]]; then sleep 60 & sleeper=$!; fi
printf "%s\n" "$@" > "$HERE/srun"
[[ -z "${SRUN_WAITS:-}" ]] || wait
exit ${SRUN_RC:-0}
""",
    "scancel": '#!/bin/bash\necho "$*" >> "$HERE/scancel"\nexit ${SCANCEL_RC:-0}\n',
    "scontrol": """#!/bin/bash
case "$1 $2" in
  "show hostnames") printf "node7\\nnode8\\n" ;;
  "show node")
    [[ -z "${NODE_UNKNOWN:-}" ]] || exit 1
    echo "NodeName=$3 Arch=x NodeAddr=10.0.0.7 NodeHostName=x" ;;
  "show job")
    printf "JobId=1 ${THROTTLE:-} JobName=x\\n   Command=$COMMAND --config x\\n   WorkDir=/\\n" ;;
  "requeue "*) echo "$2" >> "$HERE/requeue"; ${REQUEUES:-kill $PPID} ;;
esac
"""
}  # fmt: skip
NODES = {"SLURM_JOB_NODELIST": "node[7-8]"}
ARRAY = {
    "SLURM_ARRAY_JOB_ID": "40",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_ARRAY_TASK_COUNT": "20",
    "SLURM_ARRAY_TASK_MAX": "20",
}
SIGTERM = -15  # how a batch script ends that SLURM has requeued


@dataclass(frozen=True)
class Ended:
    """How a batch script or a task ended, and what it called."""

    code: int
    said: str
    folder: Path

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def arguments(self) -> list[str]:
        """Of the training that srun started, behind the script."""
        lines = self.lines("srun")
        return lines[lines.index("--steps") :]


@dataclass(frozen=True)
class Cluster:
    """A checkout, and a folder in which pretend programs write down how they were called."""

    checkout: Path
    folder: Path
    run: Path

    def start(self, *arguments: str, spooled: bool = False, **environment: str) -> Ended:
        return self._end(self._popen(*arguments, spooled=spooled, **environment))

    def signalled(self, number: signal.Signals, **environment: str) -> Ended:
        """How a batch script ends that gets a signal while srun runs until it is asked to stop."""
        process = self._popen(SRUN_WAITS="yes", **environment)
        deadline = time.monotonic() + 60
        while not (self.folder / "srun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        return self._end(process)

    def _end(self, process: subprocess.Popen[str]) -> Ended:
        said = process.communicate(timeout=60)[1]
        return Ended(process.returncode, said, self.folder)

    def _popen(
        self, *arguments: str, spooled: bool = False, **environment: str
    ) -> subprocess.Popen[str]:
        for name in ("srun", "requeue", "scancel", "progress"):
            (self.folder / name).unlink(missing_ok=True)
        script = self.checkout / "launch/pretrain_glm.sh"
        copy = self.folder / "slurm_script"
        shutil.copy(script, copy)
        return subprocess.Popen(
            ["/bin/bash", str(copy if spooled else script), "--steps", "9", *arguments],
            env={
                "PATH": f"{self.folder / 'bin'}:{self.folder / 'tools'}", "HERE": str(self.folder),
                "PYTHON": str(self.folder / "bin/python"), "COMMAND": str(script),
                "SLURM_JOB_ID": "77", **NODES, "PROGRESS": self.progress(0), **environment,
            },
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def progress(self, step: int, reason: str = "-") -> str:
        return f"{step}\\t9\\t{reason}\\t{self.run}\\n"


@pytest.fixture
def cluster(tmp_path: Path, repository: Path) -> Cluster:
    checkout, folder = tmp_path / "a checkout", tmp_path / "pretend"
    shutil.copytree(repository / "launch", checkout / "launch")
    (folder / "bin").mkdir(parents=True)
    for name, text in PROGRAMS.items():
        path = folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    (folder / "tools").mkdir()  # a PATH without the SLURM of this machine
    for tool in (
        "bash",
        "basename",
        "cat",
        "dirname",
        "env",
        "flock",
        "grep",
        "mkdir",
        "sleep",
        "sed",
        "python3",
        "tr",
    ):
        found = shutil.which(tool)
        assert found is not None
        (folder / "tools" / tool).symlink_to(found)
    return Cluster(checkout, folder, tmp_path / "runs/a run")


def rank_of(cluster: Cluster, **environment: str) -> dict[str, str]:
    step = {
        "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[7-8]", "SLURM_PROCID": "5",
        "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    }  # fmt: skip
    ended = cluster.start(**(step | environment))
    assert ended.code == 0, ended.said
    return dict(line.split("=", 1) for line in ended.lines("rank") if "=" in line)


def test_a_task_of_srun_becomes_the_rank_that_slurm_says(cluster: Cluster) -> None:
    rank = rank_of(cluster, SLURM_CPUS_PER_TASK="3")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    assert [rank[n] for n in names] == ["5", "8", "1", "4", "10.0.0.7"]
    assert rank["OMP_NUM_THREADS"] == "3"
    assert 10000 <= int(rank["MASTER_PORT"]) < 30000


def test_a_rank_that_still_starts_is_not_killed_by_the_request_to_save(cluster: Cluster) -> None:
    ignored = int(rank_of(cluster)["SigIgn"], 16)
    assert ignored >> (signal.SIGUSR1 - 1) & 1


def test_a_task_that_sees_one_gpu_uses_it(cluster: Cluster) -> None:
    assert rank_of(cluster, CUDA_VISIBLE_DEVICES="2")["LOCAL_RANK"] == "0"
    assert rank_of(cluster, CUDA_VISIBLE_DEVICES="2,3")["LOCAL_RANK"] == "1"


def test_the_address_of_another_job_is_not_believed(cluster: Cluster) -> None:
    other = {"MASTER_ADDR": "10.9.9.9", "MASTER_PORT": "1", "RENDEZVOUS_OF": "76"}
    assert rank_of(cluster, **other)["MASTER_ADDR"] == "10.0.0.7"
    ours = rank_of(cluster, **(other | {"RENDEZVOUS_OF": "77"}))
    assert (ours["MASTER_ADDR"], ours["MASTER_PORT"]) == ("10.9.9.9", "1")


def test_no_two_jobs_or_steps_on_a_node_share_a_port(repository: Path) -> None:
    steps = "for step in {0..15}; do port_of_step $step; done"
    jobs = f"for SLURM_JOB_ID in {{1..70}} {{99000..99070}}; do {steps}; done"
    program = f". '{repository}/launch/slurm.bash'; {jobs}"
    said = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    ports = said.stdout.split()
    assert len(set(ports)) == len(ports) == 141 * 16


def test_a_batch_script_starts_itself_again_on_every_task(cluster: Cluster) -> None:
    ended = cluster.start("--seed", "two words", spooled=True, SLURM_CPUS_PER_TASK="3")
    assert ended.code == 0
    called = ended.lines("srun")
    script = called.index(str(cluster.checkout / "launch/pretrain_glm.sh"))
    assert called[script + 1 :][-4:] == ["--steps", "9", "--seed", "two words"]
    assert "--cpus-per-task=3" in called[:script]
    assert ended.lines("requeue") == []


def test_gpus_without_a_task_are_refused(cluster: Cluster) -> None:
    few = {"SLURM_TASKS_PER_NODE": "2(x4)", "SLURM_GPUS_ON_NODE": "8"}
    ended = cluster.start(**few)
    assert (ended.code, ended.lines("srun")) == (2, [])
    assert "8 GPUs on a node and 2 tasks" in ended.said
    assert cluster.start(**(few | {"SLURM_NTASKS_PER_NODE": "8"})).code == 0


def test_inside_of_a_container_without_slurm_it_says_so(cluster: Cluster) -> None:
    (cluster.folder / "bin/srun").unlink()
    ended = cluster.start()
    assert ended.code == 2
    assert "outside of the container" in ended.said
    (cluster.folder / "bin/scontrol").unlink()
    assert rank_of(cluster, SLURM_LAUNCH_NODE_IPADDR="10.1.1.1")["MASTER_ADDR"] == "10.1.1.1"


def test_a_saved_run_is_requeued_and_goes_on(cluster: Cluster) -> None:
    ended = cluster.start(SRUN_RC="85", PROGRESS=cluster.progress(4, "SIGUSR1"))
    assert (ended.code, ended.lines("requeue")) == (SIGTERM, ["77"])
    assert ended.arguments == ["--steps", "9"]
    begun = ("--init-from", "a b", "--resume=c")
    again = cluster.start(*begun, SLURM_RESTART_COUNT="1", PROGRESS=cluster.progress(4))
    assert again.arguments == ["--steps", "9", "--resume", "auto"]
    # Nothing was saved before a node was lost: it begins as it was told.
    lost = cluster.start(*begun, SLURM_RESTART_COUNT="1")
    assert lost.arguments == ["--steps", "9", *begun]


def test_without_an_address_no_rank_is_started_and_it_is_tried_again(cluster: Cluster) -> None:
    """An empty address would end the ranks with 2, as a mistake of the user."""
    ended = cluster.start(NODE_UNKNOWN="yes")
    assert (ended.lines("srun"), ended.lines("requeue")) == ([], ["77"])
    assert "does not tell the address of the first node" in ended.said


def test_a_restart_waits_for_ranks_that_a_lost_node_has_left(cluster: Cluster) -> None:
    """They hold the folder until they notice; the new ranks would end with 2, for good."""
    cluster.run.mkdir(parents=True)
    with open(cluster.run / ".lock", "w+") as lock:
        lock.write("process 7 on node9")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        let_go = threading.Timer(3, fcntl.flock, (lock, fcntl.LOCK_UN))
        let_go.start()
        ended = cluster.start(SLURM_RESTART_COUNT="1", PROGRESS=cluster.progress(4))
        let_go.join()
    assert "still being written by process 7 on node9" in ended.said
    assert ended.arguments == ["--steps", "9", "--resume", "auto"]


def test_a_disk_without_locks_is_not_waited_for(cluster: Cluster) -> None:
    cluster.run.mkdir(parents=True)
    (cluster.run / ".lock").touch()
    flock = cluster.folder / "bin/flock"
    flock.write_text("#!/bin/bash\nexit 71\n")
    flock.chmod(0o755)
    ended = cluster.start(SLURM_RESTART_COUNT="1", PROGRESS=cluster.progress(4))
    assert ended.code == 0 and "still being written" not in ended.said


def test_the_next_task_of_a_chain_waits_for_them_too(cluster: Cluster) -> None:
    """Its ranks would end with 2, and the chain with them."""
    cluster.run.mkdir(parents=True)
    with open(cluster.run / ".lock", "w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        let_go = threading.Timer(2, fcntl.flock, (lock, fcntl.LOCK_UN))
        let_go.start()
        ended = cluster.start(**ARRAY, THROTTLE="ArrayTaskThrottle=1")
        let_go.join()
    assert ended.code == 0 and "still being written" in ended.said


def test_asked_to_save_it_asks_the_ranks_and_is_requeued(cluster: Cluster) -> None:
    ended = cluster.signalled(signal.SIGUSR1)
    assert (ended.code, ended.lines("requeue")) == (SIGTERM, ["77"])
    assert "the ranks are asked to save" in ended.said


def test_a_job_that_slurm_ends_is_not_requeued(cluster: Cluster) -> None:
    ended = cluster.signalled(signal.SIGTERM)
    assert (ended.code, ended.lines("requeue")) == (85, [])
    assert "SLURM has ended this job" in ended.said


def test_a_finished_run_is_not_started_again(cluster: Cluster) -> None:
    ended = cluster.start(SLURM_RESTART_COUNT="1", PROGRESS=cluster.progress(9))
    assert (ended.code, ended.lines("srun")) == (0, [])


def test_a_mistake_of_the_user_is_not_requeued(cluster: Cluster) -> None:
    ended = cluster.start(SRUN_RC="2")
    assert (ended.code, ended.lines("requeue")) == (2, [])


def test_a_file_stop_means_stop(cluster: Cluster) -> None:
    stopped = {"SRUN_RC": "85", "PROGRESS": cluster.progress(4, "the file STOP")}
    assert cluster.start(**stopped).lines("requeue") == []
    chain = cluster.start(**stopped, **ARRAY, THROTTLE="ArrayTaskThrottle=1")
    assert (chain.code, chain.lines("scancel")) == (85, ["--state=PENDING 40"])


def test_crashes_without_progress_end_the_requeueing(cluster: Cluster) -> None:
    def crash(step: int, **environment: str) -> list[str]:
        progress = cluster.progress(step)
        return cluster.start(SRUN_RC="1", PROGRESS=progress, **environment).lines("requeue")

    assert [crash(4), crash(4), crash(4)] == [["77"], ["77"], []]
    assert crash(5) == ["77"]  # a checkpoint more
    assert crash(5, SLURM_JOB_ID="78") == ["78"]  # another job counts from the beginning
    assert [crash(5, MAX_CRASHES="1", SLURM_JOB_ID="79")] == [[]]


def test_ranks_that_did_not_meet_are_a_crash_that_may_pass(cluster: Cluster) -> None:
    never_met = {"SRUN_RC": "75", "PROGRESS": cluster.progress(4), "MAX_CRASHES": "2"}
    first = cluster.start(**never_met)
    assert (first.code, first.lines("requeue")) == (SIGTERM, ["77"])
    assert "the ranks did not find each other, step 4 of 9 is saved" in first.said
    second = cluster.start(**never_met)
    assert (second.code, second.lines("requeue")) == (75, [])
    assert "crashed 2 times at step 4" in second.said


def test_where_slurm_refuses_to_requeue_it_says_what_to_do(cluster: Cluster) -> None:
    ended = cluster.start(SRUN_RC="85", REQUEUES="exit 1")
    assert ended.code == 85
    assert "Submit it again, with --resume auto" in ended.said


def test_numbers_of_the_array_stand_in_arguments(cluster: Cluster) -> None:
    ended = cluster.start("--name", "glm_%A_%a", "--seed=%a", **ARRAY, SRUN_RC="85")
    assert ended.arguments == ["--steps", "9", "--name", "glm_40_3", "--seed=3"]
    assert ended.lines("requeue") == ["40_3"]


def test_tasks_of_one_run_must_wait_for_each_other(cluster: Cluster) -> None:
    ended = cluster.start("--seed", "%a", **ARRAY)
    assert (ended.code, ended.lines("srun")) == (2, [])
    assert "all 20 tasks of this array would train" in ended.said
    alone = cluster.start(**(ARRAY | {"SLURM_ARRAY_TASK_COUNT": "1"}), SRUN_RC="85")
    assert alone.lines("requeue") == ["40_3"]


def test_a_chain_goes_on_segment_after_segment(cluster: Cluster) -> None:
    chain = {**ARRAY, "THROTTLE": "ArrayTaskThrottle=1"}
    segment = cluster.start(**chain, SRUN_RC="85", PROGRESS=cluster.progress(4))
    assert (segment.code, segment.lines("requeue")) == (0, [])
    assert segment.arguments == ["--steps", "9", "--resume", "auto"]
    last = cluster.start(**(chain | {"SLURM_ARRAY_TASK_ID": "20"}), SRUN_RC="85")
    assert last.code == 85
    done = cluster.start(**chain, PROGRESS=cluster.progress(9))
    assert (done.code, done.lines("srun")) == (0, [])


def test_a_chain_that_crashes_without_progress_ends(cluster: Cluster) -> None:
    def crash(task: int) -> tuple[int, list[str]]:
        chain = {**ARRAY, "THROTTLE": "ArrayTaskThrottle=1", "SLURM_ARRAY_TASK_ID": str(task)}
        ended = cluster.start(**chain, SRUN_RC="1", PROGRESS=cluster.progress(4))
        return ended.code, ended.lines("scancel")

    assert [crash(1), crash(2)] == [(1, []), (1, [])]
    assert crash(3) == (1, ["--state=PENDING 40"])


def test_a_chain_goes_on_after_ranks_that_did_not_meet(cluster: Cluster) -> None:
    chain = {**ARRAY, "THROTTLE": "ArrayTaskThrottle=1", "PROGRESS": cluster.progress(4)}
    for _ in range(2):
        ended = cluster.start(**chain, SRUN_RC="75")
        assert (ended.code, ended.lines("scancel")) == (75, [])
        assert "the next task of the chain goes on" in ended.said
    ended = cluster.start(**chain, SRUN_RC="75")
    assert (ended.code, ended.lines("scancel")) == (75, ["--state=PENDING 40"])


MISTAKES = {
    "of the ranks": {"SRUN_RC": "2"},
    "in the recipe": {"PROGRESS_RC": "2"},
    "in the request": {"SLURM_GPUS_ON_NODE": "8"},
    "in the array": {"THROTTLE": "ArrayTaskThrottle=4"},
}


@pytest.mark.parametrize("where", MISTAKES)
def test_a_mistake_ends_the_whole_chain(cluster: Cluster, where: str) -> None:
    chain = {**ARRAY, "THROTTLE": "ArrayTaskThrottle=1", **MISTAKES[where]}
    ended = cluster.start(**chain)
    assert (ended.code, ended.lines("scancel")) == (2, ["--state=PENDING 40"])
    assert ended.said.count("a mistake of yours, which every task of the chain would meet") == 1
    last = cluster.start(**(chain | {"SLURM_ARRAY_TASK_ID": "20"}))
    assert (last.code, last.lines("scancel")) == (2, [])
    refused = cluster.start(**chain, SCANCEL_RC="1")
    assert refused.code == 2 and "they are not: scancel 40" in refused.said


def test_a_chain_without_an_interpreter_ends_too(cluster: Cluster) -> None:
    ended = cluster.start(**ARRAY, PYTHON="")
    assert (ended.code, ended.lines("scancel")) == (2, ["--state=PENDING 40"])


@pytest.mark.parametrize("more", [["--name", "glm_%a"], ["--sweep", "s.yaml"]])
def test_a_mistake_of_one_run_leaves_the_other_tasks_alone(
    cluster: Cluster, more: list[str]
) -> None:
    ended = cluster.start(*more, **ARRAY, SRUN_RC="2")
    assert (ended.code, ended.lines("scancel")) == (2, [])


def test_a_sweep_is_no_chain(cluster: Cluster) -> None:
    ended = cluster.start("--sweep", "s.yaml", **ARRAY, SRUN_RC="85")
    assert ended.lines("requeue") == ["40_3"]
    assert "--config" not in ended.lines("srun")

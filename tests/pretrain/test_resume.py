"""Kill -9 and go on: the curve of the unbroken run, bit for bit, dropout on, two ranks, ZeRO-3."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from pretrain.checkpoints.checkpoint_files import complete, find

pytestmark = pytest.mark.ranks

WORKER = str(Path(__file__).parent / "train_cases.py")
DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
STEPS, EVERY = 30, 10
Start = Callable[..., list[subprocess.Popen[str]]]
Run = Callable[..., list[int]]


def _train(name: str, runs: Path, shards: Path, *more: str) -> list[str]:
    flags = {
        "config": DEBUG,
        "name": name,
        "runs": str(runs),
        "data.shards": str(shards),
        "data.num_workers": 1,
        "steps": STEPS,
        "batch.global_rows": 8,
        "batch.micro_rows": 2,
        "model.dropout_prob": 0.1,
        "model.attention_dropout_prob": 0.1,
        "evaluation.every_steps": 12,
        "evaluation.texts": "['the [MASK] sees.']",
        "checkpoints.every_steps": EVERY,
        "checkpoints.keep_last": 2,
        "timeout_s": 60,
    }
    return ["-m", "pretrain", "train", *(f"--{k}={v}" for k, v in flags.items()), *more]


def _rows(run: Path) -> list[dict[str, float]]:
    path = run / "metrics.jsonl"
    if not path.is_file():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _curve(run: Path) -> list[tuple[float, ...]]:
    """Step, loss, gradient norm and held-out loss: all that no clock goes into."""
    tags = ("step", "loss/total_nats", "optimizer/gradient_norm", "validation/glm_total_nats")
    return [tuple(row.get(tag, -1.0) for tag in tags) for row in _rows(run)]


def _wait_for_step(run: Path, step: int, ranks: list[subprocess.Popen[str]]) -> None:
    for _ in range(12000):
        rows = _rows(run)
        if rows and rows[-1]["step"] >= step:
            return
        assert all(p.poll() is None for p in ranks), "a rank ended before it was killed"
        time.sleep(0.01)
    raise AssertionError(f"no step {step} within two minutes")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, shards: Path, start_ranks: Start) -> Path:
    """`unbroken` ran to its end; `killed` lost both ranks to SIGKILL after step 13."""
    folder = tmp_path_factory.mktemp("resume")
    unbroken = start_ranks(2, _train("unbroken", folder, shards), folder / "unbroken.log")
    assert [p.wait(timeout=240) for p in unbroken] == [0, 0]
    killed = start_ranks(2, _train("killed", folder, shards), folder / "killed.log")
    _wait_for_step(folder / "killed", 13, killed)
    for process in killed:
        process.send_signal(signal.SIGKILL)
    assert [p.wait(timeout=30) for p in killed] == [-9, -9]
    return folder


def test_the_curve_after_kill_9_is_that_of_the_unbroken_run(
    runs: Path, shards: Path, run_ranks: Run
) -> None:
    last_before = _rows(runs / "killed")[-1]["step"]
    assert 13 <= last_before < STEPS
    run_ranks(2, _train("killed", runs, shards, "--resume=auto"), runs / "resumed.log")
    assert "resumed from" in (runs / "resumed.log.0").read_text()
    assert _curve(runs / "killed") == _curve(runs / "unbroken")


def test_only_the_newest_checkpoints_stay_and_latest_names_the_last(runs: Path) -> None:
    checkpoints = runs / "unbroken" / "checkpoints"
    assert sorted(p.name for p in checkpoints.iterdir()) == [
        "latest",
        "step-00000020",
        "step-00000030",
    ]
    assert (checkpoints / "latest").read_text().strip() == "step-00000030"


def test_a_start_beside_checkpoints_is_refused(runs: Path, shards: Path, run_ranks: Run) -> None:
    log = runs / "again.log"
    codes = run_ranks(2, _train("unbroken", runs, shards), log, succeeds=False)
    assert codes == [2, 2]
    assert "already holds checkpoints of this run" in (runs / "again.log.0").read_text()


def test_a_signal_to_one_rank_saves_on_all_and_the_curve_goes_on(
    runs: Path, shards: Path, start_ranks: Start, run_ranks: Run
) -> None:
    ranks = start_ranks(2, _train("signalled", runs, shards), runs / "signalled.log")
    _wait_for_step(runs / "signalled", 13, ranks)
    ranks[1].send_signal(signal.SIGUSR1)
    assert [p.wait(timeout=90) for p in ranks] == [85, 85]
    status = json.loads((runs / "signalled" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("preempted", "SIGUSR1")
    assert status["step"] == status["checkpoint_step"] == _rows(runs / "signalled")[-1]["step"]
    run_ranks(2, _train("signalled", runs, shards, "--resume=auto"), runs / "signalled2.log")
    assert _curve(runs / "signalled") == _curve(runs / "unbroken")
    assert json.loads((runs / "signalled" / "status.json").read_text())["state"] == "finished"


def test_going_back_gives_up_what_lay_ahead(runs: Path, shards: Path, run_ranks: Run) -> None:
    folder = runs / "branch"
    cases = [
        _train("branch", runs, shards)[3:],
        _train(
            "branch",
            runs,
            shards,
            f"--resume={folder}/checkpoints/step-00000020",
            "--stop_at_step=25",
            "--checkpoints.keep_last=1",
        )[3:],
        _train("branch", runs, shards, "--resume=auto")[3:],
    ]
    for number, case in enumerate(cases):
        (runs / f"branch{number}.json").write_text(json.dumps([case]))
    # Going back counts from the load on: this one ends before its first save.
    unreadable = _train("branch", runs, shards, cases[1][-3], "--evaluation.texts=['no blank']")
    ends_early = {"arguments": unreadable[3:], "faults": {}, "fails": True}
    whole = _train("whole", runs, shards)[3:]
    (runs / "branch0.json").write_text(json.dumps([whole, cases[0], ends_early]))
    run_ranks(1, [WORKER, str(runs / "branch0.json")], runs / "branch0.log")
    saves = folder / "checkpoints"
    assert [p.name for p in complete(saves)] == ["step-00000020", "step-00000030"]
    assert find(saves, "auto") == saves / "step-00000020"
    unbroken = _curve(runs / "whole")
    run_ranks(1, [WORKER, str(runs / "branch1.json")], runs / "branch1.log")
    assert (folder / "checkpoints" / "latest").read_text().strip() == "step-00000025"
    assert [p.name for p in (folder / "checkpoints").glob("step-*")] == ["step-00000025"]
    run_ranks(1, [WORKER, str(runs / "branch2.json")], runs / "branch2.log")
    assert _curve(folder) == unbroken
    assert _text_steps(folder) == sorted(set(_text_steps(folder)))


def _text_steps(run: Path) -> list[int]:
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    return [event.step for event in board.Tensors("samples/filled_text/text_summary")]


def test_a_rank_that_stops_answering_ends_the_other_in_time(
    runs: Path, shards: Path, start_ranks: Start
) -> None:
    flags = ("--steps=100000", "--timeout_s=5")
    ranks = start_ranks(2, _train("silent", runs, shards, *flags), runs / "silent.log")
    _wait_for_step(runs / "silent", 3, ranks)
    ranks[1].send_signal(signal.SIGSTOP)
    try:
        assert ranks[0].wait(timeout=60) == 1
    finally:
        ranks[1].send_signal(signal.SIGKILL)
    _one_line_names_the_lost_rank(runs / "silent.log.0", "no sign of life for ")
    status = json.loads((runs / "silent" / "status.json").read_text())
    assert (status["state"], status["reason"][:14]) == ("failed", "LostRankError:")


def _one_line_names_the_lost_rank(log: Path, reason: str) -> None:
    text = log.read_text()
    assert "Traceback" not in text
    said = [line for line in text.splitlines() if line.startswith("pretrain: ")]
    assert len(said) == 1
    lost = f"rank 1 on {socket.gethostname()} is lost: "
    assert said[0].startswith(f"pretrain: rank 0: {lost}") and reason in said[0]


def test_a_rank_that_dies_ends_the_other_and_a_second_training_is_refused(
    runs: Path, shards: Path, start_ranks: Start, run_ranks: Run
) -> None:
    first = start_ranks(2, _train("pair", runs, shards, "--steps=100000"), runs / "pair.log")
    _wait_for_step(runs / "pair", 3, first)
    second = run_ranks(1, _train("pair", runs, shards), runs / "second.log", succeeds=False)
    assert second == [2]
    assert "is being written by process" in (runs / "second.log.0").read_text()
    first[1].send_signal(signal.SIGKILL)
    assert first[0].wait(timeout=90) == 1
    _one_line_names_the_lost_rank(runs / "pair.log.0", "its process ended")

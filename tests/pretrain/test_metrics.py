"""pretrain/training/metrics.py: no step twice, none backward."""

import json
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pretrain.recording.run_folder import RunFolder
from pretrain.recording.status import read
from pretrain.training.metrics import Metrics


def _record(folder: RunFolder, first: int, last: int, value: float) -> None:
    metrics = Metrics(folder, first_step=first, total_steps=10)
    for step in range(first, last + 1):
        scalars = {
            "loss/total_nats": value,
            "optimizer/learning_rate": 0.1,
            "optimizer/gradient_norm": 1.0,
            "speed/tokens_per_second": 10.0,
        }
        metrics.step(step, scalars)
    metrics.close()


def _lines(folder: RunFolder) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return [(row["step"], row["loss/total_nats"]) for row in rows]


def test_a_resume_overwrites_the_steps_after_its_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    _record(folder, 1, 5, value=1.0)
    _record(folder, 4, 6, value=2.0)
    assert _lines(folder) == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0)]
    board = EventAccumulator(str(folder.tensorboard))
    board.Reload()
    seen = [(event.step, event.value) for event in board.Scalars("loss/total_nats")]
    assert seen == _lines(folder)


def test_a_line_that_a_kill_cut_off_is_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    _record(folder, 1, 2, value=1.0)
    with open(folder.metrics, "a") as lines:
        lines.write('{"step": 3, "loss/tot')
    _record(folder, 3, 3, value=5.0)
    assert _lines(folder) == [(1, 1.0), (2, 1.0), (3, 5.0)]


def test_tokens_of_steps_that_are_done_again_count_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for first, last, tokens in ((1, 5, 100.0), (4, 6, 10.0)):
        metrics = Metrics(folder, first_step=first, total_steps=6)
        for step in range(first, last + 1):
            metrics.step(step, {"data/tokens_per_step": tokens, "loss/total_nats": 1.0})
        metrics.finish(None)
        metrics.close()
    assert read(tmp_path).tokens == 3 * 100 + 3 * 10


def test_an_evaluation_that_comes_again_stands_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for first_step, again in ((2, False), (3, True)):
        metrics = Metrics(folder, first_step=first_step, total_steps=6, evaluates_again=again)
        if first_step == 2:
            metrics.step(2, {"data/tokens_per_step": 7.0, "loss/total_nats": 1.0})
        metrics.evaluation(2, {"validation/total_nats": 1.0})
        metrics.histogram(2, "validation/kl", [1.0, 2.0])
        metrics.finish(None)
        metrics.close()
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [len(row) for row in rows] == [3, 2, 2]
    assert read(tmp_path).tokens == 7.0

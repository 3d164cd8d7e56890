"""pretrain/recording/heartbeat.py: a run says that it lives, what it cost, and how it ended."""

import errno
import logging
import os
import time
from pathlib import Path

import pytest

from pretrain.recording import heartbeat, status
from pretrain.recording.heartbeat import Heartbeat
from pretrain.recording.status import Status, note_failure, read, state_of


def test_a_heart_beats_while_the_run_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    heart = Heartbeat(tmp_path, step=3, steps=10)
    first = read(tmp_path)
    until = time.monotonic() + 60
    while read(tmp_path).written_at == first.written_at:
        assert time.monotonic() < until, "no second beat"
    heart.end("finished")
    later = read(tmp_path)
    assert (first.state, first.step, first.pid, first.ranks) == ("running", 3, os.getpid(), 1)
    assert later.written_at > first.written_at and later.state == "finished"


def test_the_last_word_holds_what_was_noted_since_the_last_beat(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path, step=0, steps=10)
    heart.note(step=7, loss_nats=1.5, tokens=1000.0)
    assert read(tmp_path).step == 0
    heart.end("preempted", "SIGUSR1")
    last = read(tmp_path)
    assert (last.step, last.loss_nats, last.tokens) == (7, 1.5, 1000.0)
    assert (last.state, last.reason) == ("preempted", "SIGUSR1")


def test_the_cost_of_earlier_starts_is_counted_on(tmp_path: Path) -> None:
    status.write(tmp_path, Status(state="preempted", step=5, steps=10, device_seconds=1000.0))
    Heartbeat(tmp_path, step=5, steps=10, ranks=4).stop()
    assert read(tmp_path).device_seconds > 1000.0
    assert read(tmp_path).ranks == 4


def test_a_full_disk_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(status, "write", full)
    with caplog.at_level(logging.ERROR):
        heart = Heartbeat(tmp_path, step=0, steps=10)
        heart.end("finished")
    assert len(caplog.records) == 1 and "No space left" in caplog.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "failed"),
        ("running", "failed"),
        ("preempted", "failed"),
        ("finished", "finished"),
        ("stopped", "stopped"),
    ],
)
def test_a_start_that_fails_leaves_what_was_done(
    before: str | None, after: str, tmp_path: Path
) -> None:
    if before:
        status.write(tmp_path, Status(state=before, step=5, steps=10))
    note_failure(tmp_path, 10, ValueError("no room"))
    found = read(tmp_path)
    assert (found.state, found.step) == (after, 5 if before else 0)
    assert (found.reason == "ValueError: no room") == (after == "failed")


def test_a_heart_that_stopped_is_a_lost_run(tmp_path: Path) -> None:
    assert state_of(tmp_path) is None
    status.write(tmp_path, Status(state="running", step=5, steps=10))
    assert state_of(tmp_path) == "running"
    assert state_of(tmp_path, now=time.time() + 121) == "lost"
    status.write(tmp_path, Status(state="finished", step=10, steps=10))
    assert state_of(tmp_path, steps=10) == "finished"
    assert state_of(tmp_path, steps=20) == "stopped"

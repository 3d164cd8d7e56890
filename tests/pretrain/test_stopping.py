"""pretrain/distributed/stopping.py: the first signal is remembered, the second Ctrl-C acts."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pretrain.distributed.launching import launchers
from pretrain.distributed.stop_signs import SIGNALS, STOP_FILE
from pretrain.distributed.stopping import StopRequests
from pretrain.distributed.world import World, join_world, leave_world

ALONE = World(0, 1, 0, torch.device("cpu"), timeout_s=60)


@pytest.fixture(autouse=True)
def _same_handlers_afterwards() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def stops(tmp_path: Path) -> StopRequests:
    return StopRequests(tmp_path, ALONE)


def test_without_a_request_the_run_goes_on(stops: StopRequests) -> None:
    assert stops.agreed(stops.votes().tolist()) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_the_reason(stops: StopRequests, number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    assert stops.agreed(stops.votes().tolist()) == number.name


def test_what_follows_the_first_signal_changes_nothing(stops: StopRequests) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        os.kill(os.getpid(), number)
    assert stops.agreed(stops.votes().tolist()) == "SIGINT"


def test_a_stop_file_is_taken_away_when_it_is_obeyed(stops: StopRequests, tmp_path: Path) -> None:
    (tmp_path / STOP_FILE).touch()
    assert stops.agreed(stops.votes().tolist()) == "the file STOP"
    assert not (tmp_path / STOP_FILE).exists()


def test_one_rank_of_many_is_enough(tmp_path: Path) -> None:
    other_ranks = torch.tensor([3.0, 0, 1, 0, 0, 0])  # three have no reason, one got SIGTERM
    world = World(1, 5, 1, torch.device("cpu"), timeout_s=60, launchers=launchers())
    requests = StopRequests(tmp_path, world)
    assert requests.agreed((requests.votes() + other_ranks).tolist()) == "SIGTERM"


@pytest.mark.parametrize(
    "cannot", ["a folder", "no permission"], ids=lambda cannot: cannot.replace(" ", "_")
)
def test_a_stop_file_that_cannot_go_does_not_spoil_the_save(
    cannot: str, stops: StopRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cannot == "a folder":  # which asks for nothing
        (tmp_path / STOP_FILE).mkdir()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops.agreed(stops.votes().tolist()) == "SIGTERM"
        return
    (tmp_path / STOP_FILE).touch()

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "unlink", refused)
    assert stops.agreed(stops.votes().tolist()) == "the file STOP"


@pytest.mark.parametrize(("launched", "reason"), [(True, "the launcher is gone"), (False, None)])
def test_only_a_launched_rank_follows_its_parent(
    launched: bool, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent is gone before the first step: who it was is taken when the rank joins."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    placed = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (placed | {"MASTER_PORT": port}).items():
        monkeypatch.setenv(name, value)
        if not launched:
            monkeypatch.delenv(name)
    world = join_world(timeout_s=60)
    leave_world()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    requests = StopRequests(tmp_path, world)
    assert requests.agreed(requests.votes().tolist()) == reason


_PROGRAM = """
import signal, sys, time, torch
from pathlib import Path
from pretrain.distributed.stopping import StopRequests
from pretrain.distributed.world import World
StopRequests(Path(sys.argv[1]), World(0, 1, 0, torch.device("cpu"), 60))
print("ready", flush=True)
time.sleep(60)
"""


def test_a_second_ctrl_c_a_moment_later_stops_at_once(tmp_path: Path, repository: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, cwd=repository
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(signal.SIGINT)
        time.sleep(1.2)  # a Ctrl-C within a second of the first is the same one, seen twice
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        assert program.wait(timeout=20) == -signal.SIGINT

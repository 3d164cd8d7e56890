"""roll_call.py: who is lost is named to all, and nothing else is taken for a loss."""

import dataclasses
import functools
import itertools
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pretrain.distributed import lost_ranks
from pretrain.distributed.roll_call import Loss, Member, Patience, RollCall
from pretrain.distributed.roll_caller import Caller

# Silence of 1.2 s: short for a test, long beside the pauses of a busy machine's threads.
QUICK = Patience(beat_s=0.1, silence_s=1.2, return_s=0.6, end_s=0.3)
HOSTS = ["node0", "node1", "node2"]


class Ended:
    """Takes what a rank says when the watch ends it."""

    def __init__(self) -> None:
        self.by: list[Loss] = []
        self.happened = threading.Event()

    def __call__(self, loss: Loss) -> None:
        self.by.append(loss)
        self.happened.set()


class Cable:
    """A relay before rank 0 that can be cut, closed for a moment, or refuse."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.is_cut = False
        self.ends: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            self.ends += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(4096):
                if not self.is_cut:
                    target.sendall(data)
        except OSError:
            return

    def drop(self) -> None:
        """Close the connections that there are."""
        for end in self.ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
            finally:
                end.close()
        self.ends.clear()

    def close(self) -> None:
        if self._listener.fileno() < 0:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()


class Ranks:
    """Three ranks of one process, the last behind a cable."""

    def __init__(self, patience: Patience = QUICK) -> None:
        self.ended = [Ended() for _ in HOSTS]
        self.caller = Caller(HOSTS, patience, self.ended[0], host="127.0.0.1")
        self.cable = Cable(self.caller.port)
        self.members = [
            Member(rank, ("127.0.0.1", port), self.caller.word, patience, self.ended[rank], "node0")
            for rank, port in ((1, self.caller.port), (2, self.cable.port))
        ]
        self.all: list[RollCall] = [self.caller, *self.members]

    def losses(self, wait_s: float) -> list[Loss | None]:
        return [roll.answered(wait_s) for roll in self.all]


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    _until(lambda: all(member._was_heard for member in made.members))
    yield made
    for roll in made.all[::-1]:
        roll.close()
    made.cable.close()


def _until(is_so: Callable[[], bool], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_silent_rank_is_named_to_all(ranks: Ranks) -> None:
    ranks.cable.is_cut = True
    first, second, third = ranks.losses(wait_s=20)
    assert first == second and first is not None and third is not None
    assert (first.rank, first.host) == (2, "node2") and first.how.startswith("no sign of life")
    # Behind the cut it is rank 0 that does not answer.
    assert (third.rank, third.host) == (0, "node0")


def test_a_rank_whose_process_ends_is_named_at_once(ranks: Ranks) -> None:
    started_at = time.monotonic()
    ranks.cable.close()
    first, second = [roll.answered(20) for roll in ranks.all[:2]]
    assert first == second == Loss(2, "node2", "its process ended")
    assert time.monotonic() - started_at < QUICK.silence_s


def test_rank_0_is_missed_by_the_others(ranks: Ranks) -> None:
    # As the kernel does where its process is killed: nobody listens, and no farewell.
    ranks.caller._tell = lambda line: None  # type: ignore[method-assign]
    ranks.cable.close()
    ranks.caller.close()
    assert [roll.answered(20) for roll in ranks.members] == [
        Loss(0, "node0", "its process ended")
    ] * 2


def test_a_connection_that_is_made_again_means_nothing(ranks: Ranks) -> None:
    for _ in range(3):
        ranks.cable.drop()
        _until(lambda: ranks.caller._members[2].connection is None)
        _until(lambda: ranks.caller._members[2].connection is not None)
    assert ranks.losses(wait_s=0) == [None] * 3


def test_a_connection_that_breaks_while_it_is_read_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the watch of rank 0 all others would take it for lost, and end."""
    monkeypatch.setattr(Caller, "_start", lambda self, work, name: None)
    caller = Caller(HOSTS, QUICK, Ended(), host="127.0.0.1")

    def connected() -> tuple[socket.socket, socket.socket]:
        member = socket.create_connection(("127.0.0.1", caller.port), timeout=20)
        member.sendall(f"{caller.word} 1\n".encode())
        known = set(caller._of)
        _until(lambda: caller._accept() or bool(set(caller._of) - known))
        (theirs,) = set(caller._of) - known
        assert select.select([theirs], [], [], 20)[0]
        return member, theirs

    first, theirs = connected()
    caller._read(theirs)
    second, newer = connected()
    caller._read(newer)  # takes the place of the first, which was ready in the same round
    caller._read(theirs)
    assert list(caller._of) == [newer]
    third, newest = connected()
    with monkeypatch.context() as breaks:
        breaks.setattr(caller, "_send", lambda connection, line: caller._drop(connection))
        caller._read(newest)  # reset as it is greeted
    assert caller._members[1].closed_at is not None
    caller._tell(b".\n")
    for end in (first, second, third, caller._listener):
        end.close()


def test_who_leaves_in_order_is_not_lost(ranks: Ranks) -> None:
    ranks.members[1].close()
    _until(lambda: ranks.caller._members[2].has_left)
    ranks.cable.close()
    assert ranks.caller.answered(QUICK.return_s + QUICK.silence_s) is None
    ranks.caller.close()
    assert ranks.members[0].answered(QUICK.return_s) is None


def test_who_still_waits_is_ended_and_who_has_noticed_is_not(ranks: Ranks) -> None:
    assert ranks.members[0].answered(0) is None  # a rank whose collective has failed by itself
    ranks.cable.close()
    assert ranks.ended[0].happened.wait(20)
    assert ranks.ended[0].by == [Loss(2, "node2", "its process ended")]
    _until(lambda: ranks.members[0].loss is not None)
    assert not ranks.ended[1].happened.wait(2 * QUICK.end_s)


def test_a_stranger_is_sent_away(ranks: Ranks) -> None:
    for said in (b"GET / HTTP/1.1\n", b"x" * 9000, b"\xff\n", f"{'0' * 32} 1\n".encode()):
        with socket.create_connection(("127.0.0.1", ranks.caller.port), timeout=20) as stranger:
            stranger.sendall(said)
            try:
                assert stranger.recv(100) == b""
            except ConnectionResetError:  # part of what it said was never read
                continue
    assert ranks.losses(wait_s=0) == [None] * 3


def test_a_rank_that_never_came_is_not_taken_for_lost(caplog: pytest.LogCaptureFixture) -> None:
    ended = Ended()
    caller = Caller(["node0", "node1"], QUICK, ended, host="127.0.0.1")
    closed = socket.create_server(("127.0.0.1", 0))
    nobody = closed.getsockname()
    closed.close()
    member = Member(1, nobody, caller.word, QUICK, ended, "node0")
    _until(lambda: "will not be named" in caplog.text)
    assert member.answered(0) is None and caller.answered(0) is None
    caller.close()
    assert not ended.by


class Counted(Ranks):
    """Ranks that enter collectives when a test says so."""

    def __init__(self) -> None:
        self.entered = [7, 7, 7]
        patience = dataclasses.replace(QUICK, hang_s=1.0)
        self.ended = [Ended() for _ in HOSTS]
        given = [functools.partial(self.entered.__getitem__, rank) for rank in range(3)]
        self.caller = Caller(HOSTS, patience, self.ended[0], "127.0.0.1", given[0])
        self.members = [
            Member(rank, ("127.0.0.1", self.caller.port), self.caller.word, patience,
                   self.ended[rank], "node0", given[rank])
            for rank in (1, 2)
        ]  # fmt: skip
        self.all = [self.caller, *self.members]


@pytest.fixture
def counted() -> Iterator[Counted]:
    made = Counted()
    _until(lambda: all(m.entered == 7 for m in made.caller._members.values()))
    yield made
    for roll in made.all[::-1]:
        roll.close()


@pytest.mark.parametrize("hangs", [0, 1])
def test_a_rank_that_answers_and_does_not_come_forward_is_named(
    counted: Counted, hangs: int
) -> None:
    counted.entered[:] = [7 if rank == hangs else 8 for rank in range(3)]
    first, *others = counted.losses(wait_s=20)
    assert first is not None and others == [first, first]
    assert (first.rank, first.host) == (hangs, HOSTS[hangs])
    assert first.how.startswith("it answers but hangs: after 7 collectives it has not entered")


def test_who_comes_forward_or_waits_with_all_does_not_hang(counted: Counted) -> None:
    for number in range(8, 12):  # always behind, never at one place for long
        counted.entered[:] = [number + 1, number, number + 1]
        assert counted.caller.answered(0.4) is None
    counted.entered[:] = [20, 20, 20]
    assert counted.caller.answered(1.5) is None


def test_who_never_came_and_so_tells_no_number_does_not_hang() -> None:
    ended = Ended()
    patience = dataclasses.replace(QUICK, hang_s=0.5)
    caller = Caller(["node0", "node1"], patience, ended, "127.0.0.1", itertools.count(1).__next__)
    assert caller.answered(1.5) is None
    caller.close()


def test_rank_0_does_not_hang_while_its_process_stands_still(counted: Counted) -> None:
    counted.entered[1:] = [8, 8]
    caller = counted.caller
    _until(lambda: caller._own.behind_since is not None)
    caller.close()  # its thread: what it does next is done here
    assert caller._own.behind_since is not None
    caller._looked_at -= 60  # as if it had been stopped for a minute
    caller._own.behind_since -= 60
    caller._look()
    assert caller.loss is None


def test_silence_ends_before_the_collectives_give_up() -> None:
    for timeout_s in (5.0, 60.0, 1800.0):
        patience = Patience.of(timeout_s)
        noticed_s = patience.silence_s + patience.beat_s + patience.end_s
        assert noticed_s < timeout_s
        assert patience.silence_s > 3 * patience.beat_s
        assert patience.hang_s + 2 * patience.beat_s <= timeout_s


HANGS_IN_ITS_LOG = """
import logging, threading, time
from types import SimpleNamespace
from pretrain.distributed import lost_ranks
from pretrain.distributed.roll_call import Loss
lost_ranks.LAST_S = 0.5
handler = logging.StreamHandler()
logging.getLogger().addHandler(handler)
world, loss = SimpleNamespace(rank=0, before_end=[]), Loss(0, "node0", "it hangs")
with handler.lock:  # as of a line that the disk does not take
    threading.Thread(target=lost_ranks._end, args=(world, loss), daemon=True).start()
    time.sleep(60)
"""


def test_a_rank_that_hangs_in_its_own_log_is_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS_IN_ITS_LOG],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("pretrain: rank 0: rank 0 on node0 is lost: it hangs. ")


HANGS = """
import os, sys, time
from pretrain.distributed.lost_ranks import lost_ranks_named, roll_called
from pretrain.distributed.world import join_world
from pretrain.settings.mistakes import LostRankError, say_alone
world = join_world(12.0)
try:
    with roll_called(world) as world, lost_ranks_named(world):
        for _ in range(5):
            world.barrier()
        if world.rank == 1:
            time.sleep(600)
        world.barrier()
except LostRankError as error:
    say_alone(str(error))
    os._exit(1)
"""


@pytest.mark.ranks
def test_a_real_rank_that_hangs_ends_with_the_others_in_time(environments) -> None:
    """Both say who it was; a quarter of a minute."""
    ranks = [
        subprocess.Popen([sys.executable, "-c", HANGS], env=environment, stderr=subprocess.PIPE,
                         text=True)
        for environment in environments(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1], said
    for number, text in enumerate(said):
        (line,) = [line for line in text.splitlines() if line.startswith("pretrain: ")]
        assert line.startswith(f"pretrain: rank {number}: rank 1 on {socket.gethostname()} is lost")
        assert "it answers but hangs: after" in line and "logs/rank-1.log" in line
    assert "this rank hangs here:" in said[1]
    assert 'File "<string>", line 12, in <module>' in said[1]  # time.sleep


def test_a_library_that_keeps_no_count_names_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever became of torch's own fields, the roll call goes on."""
    monkeypatch.setattr(lost_ranks.c10d, "_world", object())
    assert lost_ranks._entered(2) == 0

"""Who is lost: every rank answers rank 0 over a connection of its own, and rank 0 tells all.

A broken collective only says that somebody is gone. Here a thread of each rank sends a byte every
few seconds, beside the training and outside its collectives:

    a process that ends          its connection closes, and nobody connects again
    SIGSTOP, a cable, a host     nothing is heard for SILENCE of the timeout
    a rank that hangs            it answers, and for HANG of the timeout has entered fewer
                                 collectives than others, who wait for it in the next one

Rank 0 names the first one to all others, and a rank that misses rank 0 names that one itself. Who
then still waits in a collective is ended, so that no survivor outlives the timeout. A connection
that breaks while both ends live is made again and means nothing.

No pickle: lines of text, and a word that the ranks of this run alone know comes first.
"""

import json
import logging
import math
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

logger = logging.getLogger(__name__)

SILENCE = 0.8  # of the timeout: before the collectives that wait for the lost rank give up
HANG = 0.9  # of the timeout: as long as can be, since a rank may be slow at what it does alone
BEATS = 20  # in a timeout
LONGEST_BEAT_S = 5.0
LINE_BYTES = 4096


class Loss(NamedTuple):
    """A rank that is lost, and how that is known."""

    rank: int
    host: str
    how: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} is lost: {self.how}"


@dataclass(frozen=True)
class Patience:
    """How long is waited for what, in seconds."""

    beat_s: float
    silence_s: float  # without a sign of life
    return_s: float  # from a closed connection to a new one
    end_s: float = 5.0  # from the naming to the end of a rank that still waits
    hang_s: float = math.inf  # behind the others in collectives, and not moving

    @classmethod
    def of(cls, timeout_s: float) -> "Patience":
        """What fits into the timeout of the collectives."""
        beat_s = min(timeout_s / BEATS, LONGEST_BEAT_S)
        end_s = min(5.0, timeout_s / 10)
        return cls(beat_s, SILENCE * timeout_s, 2 * beat_s + 1, end_s, HANG * timeout_s)


class RollCall(ABC):
    """This rank's part of the watch; `loss` is None as long as all answer.

    end(loss): called in a thread of its own when a rank is lost and this one has not noticed within
    `patience.end_s`; it is expected to end the process.
    entered(): how many collectives this rank has entered; asked in a thread of its own.
    """

    def __init__(
        self, patience: Patience, end: Callable[[Loss], None], entered: Callable[[], int]
    ) -> None:
        self.loss: Loss | None = None
        self._patience, self._end, self._entered = patience, end, entered
        self._known, self._noticed = threading.Event(), threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def answered(self, wait_s: float | None = None) -> Loss | None:
        """Who is lost, waiting as long as naming somebody can take; from now on this rank ends by
        itself."""
        patience = self._patience
        self._known.wait(patience.return_s + 3 * patience.beat_s if wait_s is None else wait_s)
        self._noticed.set()
        return self.loss

    def close(self) -> None:
        """Leave: what the others see of this rank from now on means nothing."""
        self._closing.set()
        with suppress(OSError):  # the thread has ended, or the other end
            self._wake()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    @abstractmethod
    def _wake(self) -> None:
        """Make the thread look whether it is to end."""

    def _start(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def _declare(self, loss: Loss) -> None:
        if self.loss is not None:
            return
        self.loss = loss
        self._known.set()
        threading.Thread(target=self._end_unless_noticed, args=(loss,), daemon=True).start()

    def _end_unless_noticed(self, loss: Loss) -> None:
        if not self._noticed.wait(self._patience.end_s) and not self._closing.is_set():
            self._end(loss)


class Member(RollCall):
    """The part of the other ranks: answers rank 0, hears who is lost, and misses rank 0."""

    def __init__(
        self,
        rank: int,
        caller: tuple[str, int],
        word: str,
        patience: Patience,
        end: Callable[[Loss], None],
        caller_host: str = "?",
        entered: Callable[[], int] = lambda: 0,
    ) -> None:
        """caller: address and port of rank 0's part, on the host `caller_host`."""
        super().__init__(patience, end, entered)
        self._hello = f"{word} {rank}\n".encode()
        self._caller, self._caller_host = caller, caller_host
        self._heard_at = time.monotonic()
        self._was_heard = False
        self._connection: socket.socket | None = None
        self._start(self._work, "roll call")

    def _wake(self) -> None:
        if connection := self._connection:
            connection.sendall(b"bye\n")
            connection.shutdown(socket.SHUT_RDWR)

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._answer()
            except ConnectionRefusedError:
                if self._was_heard:
                    self._declare(Loss(0, self._caller_host, "its process ended"))
            except OSError as problem:
                logger.debug("roll call: %s", problem)
            silent_s = time.monotonic() - self._heard_at
            if silent_s > self._patience.silence_s:
                if not self._was_heard:
                    logger.warning(
                        "roll call: rank 0 on %s does not answer at %s:%d. Training goes on, but a "
                        "lost rank will not be named.", self._caller_host, *self._caller,
                    )  # fmt: skip
                    return
                self._declare(Loss(0, self._caller_host, silent(silent_s)))
            if self.loss is not None:
                return
            self._closing.wait(min(self._patience.beat_s, 0.5))

    def _answer(self) -> None:
        """Answer until the connection ends, all is over, or rank 0 has not been heard too long."""
        beat_s, rest = self._patience.beat_s, b""
        with socket.create_connection(self._caller, timeout=max(2 * beat_s, 1.0)) as connection:
            connection.settimeout(beat_s)
            connection.sendall(self._hello)
            self._connection = connection
            while not self._closing.is_set():
                before = time.monotonic()
                try:
                    data = connection.recv(LINE_BYTES)
                except TimeoutError:
                    data = None
                now = time.monotonic()
                if now - before > 3 * beat_s:  # this process itself stood still
                    self._heard_at = now
                if data == b"":
                    return
                if data:
                    self._heard_at, self._was_heard = now, True
                    *lines, rest = (rest + data).split(b"\n")
                    self._hear(lines)
                    if self.loss is not None:
                        return
                if now - self._heard_at > self._patience.silence_s:
                    return
                connection.sendall(b".%d\n" % self._entered())

    def _hear(self, lines: list[bytes]) -> None:
        for line in lines:
            if line == b"bye":  # rank 0 has left in order
                self._closing.set()
            elif line.startswith(b"{"):
                self._declare(Loss(**json.loads(line)))


def silent(silent_s: float) -> str:
    """How a rank is lost of which nothing was heard for so long."""
    return (
        f"no sign of life for {silent_s:.0f} s (it is stopped, its host is down, or the network "
        "between)"
    )


def hanging(behind_s: float, entered: int) -> str:
    """How a rank is lost that answers and does not come forward."""
    return (
        f"it answers but hangs: after {entered} collectives it has not entered the next one, in "
        f"which others have waited for {behind_s:.0f} s"
    )

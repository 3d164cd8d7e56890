"""Rank 0's part of the roll call (roll_call.py): who was heard when, and who is lost."""

import json
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from pretrain.distributed.roll_call import LINE_BYTES, Loss, Patience, RollCall, hanging, silent


@dataclass
class _Rank:
    """What rank 0 knows of a rank."""

    host: str
    heard_at: float
    connection: socket.socket | None = None
    closed_at: float | None = None
    has_joined: bool = False
    has_left: bool = False
    entered: int = 0  # collectives
    behind_since: float | None = None  # when others were first seen further, and it at this number

    def compare(self, most: int, now: float) -> None:
        """Notice whether it is behind the foremost rank, which has entered `most`."""
        if self.entered >= most:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = now

    def note(self, entered: int) -> None:
        """It has entered so many."""
        if entered != self.entered:
            self.entered, self.behind_since = entered, None


class Caller(RollCall):
    """Rank 0's part: listens, remembers who was heard when, and names the first lost one."""

    def __init__(
        self,
        hosts: list[str],
        patience: Patience,
        end: Callable[[Loss], None],
        host: str = "",
        entered: Callable[[], int] = lambda: 0,
    ) -> None:
        """hosts: of all ranks, in their order. host: address to listen at, by default any."""
        super().__init__(patience, end, entered)
        self.word = secrets.token_hex(16)
        self._listener = _listener(host, len(hosts))
        self.port: int = self._listener.getsockname()[1]
        now = time.monotonic()
        self._members = {r: _Rank(h, now) for r, h in enumerate(hosts) if r}
        self._own = _Rank(hosts[0], now)
        self._of: dict[socket.socket, tuple[int | None, bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._looked_at = self._called_at = now
        self._start(self._work, "roll call")

    def _wake(self) -> None:
        self._waker.send(b".")

    def _work(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(timeout=self._patience.beat_s / 2):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._listener:
                    self._accept()
                elif connection is not self._woken:
                    self._read(connection)
            self._look()
        self._tell(b"bye\n")
        for connection in list(self._of):
            self._drop(connection)
        self._selector.close()
        for ours in (self._listener, self._waker, self._woken):
            ours.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        self._of[connection] = (None, b"")
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        if connection not in self._of:  # replaced by a new one in this very round
            return
        try:
            data = connection.recv(LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        rank, before = self._of[connection]
        if not data or len(before) > LINE_BYTES:
            self._drop(connection)
            return
        *lines, rest = (before + data).split(b"\n")
        for line in lines:
            if rank is None:
                rank = self._introduced(connection, line)
                if rank is None:
                    self._drop(connection)
                    return
            self._members[rank].heard_at = time.monotonic()
            self._members[rank].has_left |= line == b"bye"
            if line[:1] == b"." and line[1:].isdigit():
                self._members[rank].note(int(line[1:]))
        if connection in self._of:  # it may have broken as it was greeted
            self._of[connection] = (rank, rest)

    def _introduced(self, connection: socket.socket, line: bytes) -> int | None:
        word, _, rank = line.decode("utf-8", "replace").partition(" ")
        if not secrets.compare_digest(word.encode(), self.word.encode()) or not rank.isdigit():
            return None
        member = self._members.get(int(rank))
        if member is None:
            return None
        if member.connection is not None:
            self._drop(member.connection)
        member.connection, member.closed_at, member.has_joined = connection, None, True
        self._of[connection] = (int(rank), b"")
        self._send(connection, _as_line(self.loss) if self.loss else b".\n")
        return int(rank)

    def _drop(self, connection: socket.socket) -> None:
        rank, _ = self._of.pop(connection)
        self._selector.unregister(connection)
        connection.close()
        if rank is not None and self._members[rank].connection is connection:
            self._members[rank].connection = None
            self._members[rank].closed_at = time.monotonic()

    def _look(self) -> None:
        now, patience = time.monotonic(), self._patience
        asleep_s = now - self._looked_at
        self._looked_at = now
        if asleep_s > 2 * patience.beat_s:  # this process itself stood still
            for member in (self._own, *self._members.values()):
                member.heard_at += asleep_s
                member.closed_at = member.closed_at and member.closed_at + asleep_s
                member.behind_since = member.behind_since and member.behind_since + asleep_s
        if now - self._called_at >= patience.beat_s:
            self._called_at = now
            self._tell(b".\n")
        if self.loss is None and (loss := self._lost(now)):
            self._tell(_as_line(loss))
            self._declare(loss)

    def _lost(self, now: float) -> Loss | None:
        for rank, member in self._members.items():
            if member.has_left or not member.has_joined:
                continue
            if member.closed_at is not None and now - member.closed_at > self._patience.return_s:
                return Loss(rank, member.host, "its process ended")
            silent_s = now - member.heard_at
            if silent_s > self._patience.silence_s:
                return Loss(rank, member.host, silent(silent_s))
        return self._hanging(now)

    def _hanging(self, now: float) -> Loss | None:
        self._own.note(self._entered())
        joined = {r: m for r, m in self._members.items() if m.has_joined and not m.has_left}
        there = {0: self._own} | joined
        most = max(member.entered for member in there.values())
        for rank, member in there.items():
            member.compare(most, now)
            if member.behind_since and now - member.behind_since > self._patience.hang_s:
                return Loss(rank, member.host, hanging(now - member.behind_since, member.entered))
        return None

    def _tell(self, line: bytes) -> None:
        for connection, (rank, _) in list(self._of.items()):
            if rank is not None:
                self._send(connection, line)

    def _send(self, connection: socket.socket, line: bytes) -> None:
        try:
            connection.sendall(line)
        except BlockingIOError:  # it reads nothing: that is what its silence will show
            return
        except OSError:
            if connection in self._of:
                self._drop(connection)


def _as_line(loss: Loss) -> bytes:
    return json.dumps(loss._asdict()).encode() + b"\n"


def _listener(host: str, backlog: int) -> socket.socket:
    if host or not socket.has_dualstack_ipv6():
        listener = socket.create_server((host, 0), backlog=backlog)
    else:
        listener = socket.create_server(
            ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
        )
    listener.setblocking(False)
    return listener

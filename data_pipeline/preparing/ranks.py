"""The ranks of an MPI job prepare the slices of one request, each as soon as it is free.

    rank 0    finds what is missing, deals it, merges; between two looks at the others it prepares
              slices itself, in a thread
    others    {"ready": ...}, {"finished": 7}  ->  {"slice": 8}, until {"end": true}

Dealt by messages and not by a counter in shared memory (MPI.Win.Fetch_and_op): Open MPI 4.1 moves
such a counter over TCP only while its owner is inside a call of MPI, so that every rank would wait
for the slice that rank 0 has at hand.

Whatever ends one rank ends all: a mistake is told by rank 0, in one line, and an exception is
MPI_Abort, so that `python -m mpi4py` in front is welcome and not needed.
"""

import contextlib
import errno
import io
import logging
import os
import queue
import secrets
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from data_pipeline.preparing.missing_slices import Deal, large_first
from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.preparing.prepare_slice import prepare_slice
from data_pipeline.preparing.rank_messages import Message, Ranks
from data_pipeline.preparing.request import PrepareSettings, Request, open_request
from data_pipeline.watch import InLumps

_LOOK_AGAIN_S = 0.1
_SEEN_WITHIN_S = 30  # a folder that another host has made: network file systems are late

_log = logging.getLogger(__name__)


def run_on_ranks(
    lead: Callable[[Deal | None], int],
    read: Callable[[], PrepareSettings],
    num_launched: int,
) -> int:
    """The exit code of `lead`, which rank 0 calls, on every rank; the others do what it deals.

    lead: gets the function that deals slices to the ranks; None where there is one rank.
    read: the settings, by the other ranks; what it prints is not shown.
    num_launched: processes that mpirun says it has started. Raises ValueError where MPI sees fewer.
    """
    world = Ranks()
    if world.size < num_launched:
        raise ValueError(
            f"mpirun started {num_launched} processes, and MPI as mpi4py uses it sees "
            f"{world.size} ({world.library}). Use the mpirun of that "
            "library, or install mpi4py for the one whose mpirun this is."
        )
    if world.size == 1:
        return lead(None)
    # Processes enough: a library need not start threads for every CPU in each of them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if world.rank:
        return _follow(world, read)
    return _lead(world, lead)


def _lead(world: Ranks, lead: Callable[[Deal | None], int]) -> int:
    dealer = Dealer(world)
    try:
        code = lead(dealer.deal)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 whatever it is, it ends all ranks
        traceback.print_exc()
        code = 1
    if code:
        world.abort(code)
    dealer.end()
    return 0


class Dealer:
    """Rank 0's side: gives slices to ranks, itself among them, and hears what they say."""

    def __init__(self, world: Ranks) -> None:
        self._world = world
        self._own = _OwnWork()
        self._hosts: dict[int, str] = {}  # of the ranks that have said they are there

    def deal(
        self,
        request: Request,
        numbers: Sequence[int],
        folder: Path,
        on_bytes: Callable[[int], object],
        on_finished: Callable[[int], object],
    ) -> None:
        """Prepare slices `numbers` into `folder`, each by whichever rank is free.

        Raises the first ValueError or OSError of any rank.
        """
        if request.settings.workers not in (None, 1):
            raise ValueError(
                f"--workers {request.settings.workers} under mpirun: its {self._world.size} ranks "
                "are the workers, one slice each at a time. Leave --workers out."
            )
        self._hear_of_all(request.fingerprint)
        waiting = iter(large_first(request, numbers))
        marker = folder / f".seen-{secrets.token_hex(4)}"
        marker.touch()
        done: Counter[int] = Counter()
        free = list(range(self._world.size))
        num_busy = 0
        while True:
            while free and (number := next(waiting, None)) is not None:
                self._give(free.pop(0), request, number, folder, marker.name)
                num_busy += 1
            if not num_busy:
                break
            rank, message = self._next_message()
            if "bytes" in message:
                on_bytes(message["bytes"])
                continue
            on_finished(message["finished"])
            done[rank] += 1
            num_busy -= 1
            free.append(rank)
        marker.unlink()
        self._say_who_did_it(done)

    def end(self) -> None:
        """Let every rank leave, behind a success."""
        for rank in range(1, self._world.size):
            try:
                while rank not in self._hosts:
                    self._hear_of_one()
            except ValueError as error:  # it was not needed
                _log.warning("%s", error)
        for rank in range(1, self._world.size):
            self._world.send(rank, {"end": True})

    def _hear_of_all(self, fingerprint: str) -> None:
        while len(self._hosts) < self._world.size - 1:
            rank, message = self._hear_of_one()
            if message["ready"] != fingerprint:
                raise ValueError(
                    f"rank {rank} on {self._hosts[rank]} finds other input files than rank 0, or "
                    "files of other times. Input and tokenizer must be the same on every host."
                )
        hosts = {*self._hosts.values(), socket.gethostname()}
        plural = "s" if len(hosts) > 1 else ""
        _log.info("%d ranks on %d host%s.", self._world.size, len(hosts), plural)

    def _hear_of_one(self) -> tuple[int, Message]:
        rank, message = self._next_message()
        self._hosts[rank] = message["host"]
        return rank, message

    def _give(self, rank: int, request: Request, number: int, folder: Path, marker: str) -> None:
        if rank:
            self._world.send(rank, {"slice": number, "marker": marker})
        else:
            self._own.begin(request, number, folder)

    def _next_message(self) -> tuple[int, Message]:
        """Which rank says what. Raises its error."""
        while True:
            if own := self._own.heard():
                return 0, own
            if heard := self._world.heard():
                rank, message = heard
                self._hosts.setdefault(rank, message.get("host", "?"))
                if "os" in message:
                    raise OSError(*message["os"])
                if "error" in message:
                    raise ValueError(f"{message['error']} (rank {rank} on {message['host']})")
                return heard
            self._world.wait()

    def _say_who_did_it(self, done: Counter[int]) -> None:
        if done:
            each = [done[rank] for rank in range(self._world.size)]
            _log.info(
                "%d slices were prepared, %d to %d by a rank.", sum(each), min(each), max(each)
            )


class _OwnWork:
    """Slices that rank 0 prepares itself, in a thread, one at a time."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[Message | BaseException] = queue.SimpleQueue()

    def begin(self, request: Request, number: int, folder: Path) -> None:
        """Start on a slice."""

        def work() -> None:
            progress = InLumps(lambda n: self._said.put({"bytes": n}))
            try:
                prepare_slice(request, number, folder, progress)
            except BaseException as error:  # noqa: BLE001 raised where it can end all ranks
                self._said.put(error)
                return
            progress.flush()
            self._said.put({"finished": number})

        threading.Thread(target=work, daemon=True).start()

    def heard(self) -> Message | None:
        """What the work has to say, if anything. Raises its error."""
        with contextlib.suppress(queue.Empty):
            said = self._said.get_nowait()
            if isinstance(said, BaseException):
                raise said
            return said
        return None


def _follow(world: Ranks, read: Callable[[], PrepareSettings]) -> int:
    """Prepare what rank 0 deals, until it ends all ranks, by a word or by MPI_Abort."""
    host = socket.gethostname()
    try:
        request = _read_quietly(read)
        world.send(0, {"ready": request and request.fingerprint, "host": host})
        while "slice" in (order := world.next_order()):
            assert request is not None
            folder = OutputFolder(request.settings.output).slices
            _see(folder, order["marker"])
            progress = InLumps(lambda n: world.send(0, {"bytes": n}))
            prepare_slice(request, order["slice"], folder, progress)
            progress.flush()
            world.send(0, {"finished": order["slice"]})
        return 0
    except ValueError as error:
        world.send(0, {"error": str(error), "host": host})
    except OSError as error:
        told = {"error": f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")}
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            told = {"os": [error.errno, error.strerror, error.filename]}
        world.send(0, told | {"host": host})
    except BaseException:  # noqa: BLE001 the same
        traceback.print_exc()
        world.abort(1)
    world.next_order()  # that rank 0 says it first: who leaves with an error ends all
    return 0


def _read_quietly(read: Callable[[], PrepareSettings]) -> Request | None:
    """The request, None where all that is asked for is --help. Raises ValueError."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            settings = read()
    except SystemExit as left:
        if left.code:
            raise ValueError(said.getvalue().removeprefix("data_pipeline: ").strip()) from None
        return None
    return open_request(settings)


def _see(folder: Path, marker: str) -> None:
    """Wait until a file that rank 0 has written is seen. Raises ValueError if that does not be."""
    until_s = time.monotonic() + _SEEN_WITHIN_S
    while not (folder / marker).exists():
        if time.monotonic() > until_s:
            raise ValueError(
                f"{folder} on {socket.gethostname()} is not the folder of that name that rank 0 "
                "writes to. --output must lie on a disk that all hosts share."
            )
        with contextlib.suppress(FileNotFoundError):
            os.listdir(folder)  # makes a network file system look again
        time.sleep(_LOOK_AGAIN_S)

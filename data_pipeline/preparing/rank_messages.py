"""What the ranks of an MPI job say to each other: JSON, sent and looked for by the main thread.

Nothing is pickled, and who waits sleeps: MPI's own waiting takes a whole core. This file alone
imports mpi4py.
"""

import json
import sys
import time
from typing import Any, NoReturn

import mpi4py

mpi4py.rc.thread_level = "funneled"  # the main thread alone speaks MPI
from mpi4py import MPI  # noqa: E402 what is set above is read here

Message = dict[str, Any]

_LOOK_S = 0.01  # between two looks for a message


class Ranks:
    """All ranks of the job, seen by one of them."""

    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.rank = self._world.rank
        self.size = self._world.size

    @property
    def library(self) -> str:
        """The MPI that is used, as "Open MPI v4.1.4"."""
        return MPI.Get_library_version().split(",")[0]

    def send(self, rank: int, message: Message) -> None:
        """Say something to a rank."""
        self._world.Send([json.dumps(message).encode(), MPI.BYTE], dest=rank)

    def heard(self) -> tuple[int, Message] | None:
        """Which rank says what, if one does."""
        status = MPI.Status()
        if not self._world.Iprobe(status=status):
            return None
        buffer = bytearray(status.Get_count(MPI.BYTE))
        self._world.Recv([buffer, MPI.BYTE], source=status.Get_source())
        return status.Get_source(), json.loads(buffer)

    def wait(self) -> None:
        """Sleep until it is time to look again."""
        time.sleep(_LOOK_S)

    def next_order(self) -> Message:
        """What rank 0 says next."""
        while not (heard := self.heard()):
            self.wait()
        return heard[1]

    def abort(self, code: int) -> NoReturn:
        """End all ranks at once; the job's exit code is `code`."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._world.Abort(code)
        raise AssertionError("MPI_Abort has returned")

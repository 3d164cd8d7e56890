"""Several processes prepare the slices of one request; whatever fails in one ends all of them.

Each is `python -P -m data_pipeline.preparing.slice_worker`, at the other end of a socket of JSON:

    to it      the settings and the request's fingerprint, then the number of a slice at a time
    from it    {"ready": true}, {"bytes": 1048576}, {"finished": 7}, {"error": "x.jsonl:3: ..."}

A worker whose socket closes ends at once: no process outlives the one that started it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any

from data_pipeline.preparing.request import Request

_ROOT = Path(__file__).parents[2]


def prepare_in_processes(
    request: Request,
    numbers: Iterable[int],
    num_processes: int,
    folder: Path,
    on_bytes: Callable[[int], object],
    on_finished: Callable[[int], object],
) -> None:
    """Prepare slices `numbers` into `folder`, each by whichever process is free.

    on_finished: told each slice as soon as it is done.
    Raises the first ValueError or OSError of a process, ValueError if one has died.
    """
    waiting = iter(numbers)
    with ExitStack() as stack:
        busy = {}
        for _ in range(num_processes):
            worker = stack.enter_context(_Worker(request, folder))
            busy[worker.connection] = worker
        while busy:
            for connection in wait(list(busy)):
                worker = busy[connection]
                message = worker.receive()
                if "bytes" in message:
                    on_bytes(message["bytes"])
                    continue
                if "finished" in message:
                    on_finished(message["finished"])
                if (number := next(waiting, None)) is None:
                    del busy[connection]
                else:
                    worker.give(number)


class _Worker:
    """One process and our end of its socket."""

    def __init__(self, request: Request, folder: Path) -> None:
        self._request, self._doing = request, "beginning"
        self.connection, theirs = Pipe()
        worker = "data_pipeline.preparing.slice_worker"
        # -P: the user's folder is no place to import from, whatever lies beside the text.
        command = [sys.executable, "-P", "-m", worker, str(theirs.fileno())]
        path = os.pathsep.join(p for p in (str(_ROOT), os.environ.get("PYTHONPATH")) if p)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,  # whatever a library prints is not what this command prints
            pass_fds=[theirs.fileno()],
            process_group=0,  # of Ctrl-C we hear, and close the socket
            # Processes enough: a library need not start threads for every CPU in each of them.
            env={"TOKENIZERS_PARALLELISM": "false", **os.environ, "PYTHONPATH": path},
        )
        theirs.close()
        self._send(
            {
                "settings": asdict(request.settings),
                "fingerprint": request.fingerprint,
                "folder": str(folder),
            }
        )

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self._process.kill()
        self._process.wait()

    def give(self, number: int) -> None:
        """Let the process prepare a slice."""
        self._doing = f"preparing {self._request.slices[number]}"
        self._send({"slice": number})

    def receive(self) -> dict[str, Any]:
        """What the process says. Raises its error; ValueError if it has died."""
        try:
            message = json.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._death() from None
        if "os" in message:
            raise OSError(*message["os"])
        if "error" in message:
            raise ValueError(message["error"])
        return message

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self.connection.send_bytes(json.dumps(message).encode())
        except ConnectionError:
            raise self._death() from None

    def _death(self) -> ValueError:
        code = self._process.wait()
        how = f"with exit code {code}"
        if code < 0:
            how = f"by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (out of memory?)"
        return ValueError(
            f"a worker process ended {how} while it was {self._doing}. Run the same command "
            "again; with fewer --workers it needs less memory."
        )

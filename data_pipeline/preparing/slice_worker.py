"""A process that prepares slices for another one; see slice_pool.py, which starts it."""

import json
import os
import queue
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from data_pipeline.preparing.length_limits import LengthLimits
from data_pipeline.preparing.prepare_slice import prepare_slice
from data_pipeline.preparing.request import PrepareSettings, Request, open_request
from data_pipeline.reading.documents import ReadSettings
from data_pipeline.watch import InLumps


def main(handle: int) -> None:
    """Serve the process at the other end of a socket until it closes."""
    connection = Connection(handle)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    try:
        first = orders.get()
        request = _open(first)
        _send(connection, {"ready": True})
        while True:
            number = orders.get()["slice"]
            progress = InLumps(lambda n: _send(connection, {"bytes": n}))
            prepare_slice(request, number, Path(first["folder"]), progress)
            progress.flush()
            _send(connection, {"finished": number})
    except ValueError as error:
        _send(connection, {"error": str(error)})
    except OSError as error:
        _send(
            connection, {"error": str(error), "os": [error.errno, error.strerror, error.filename]}
        )


def _listen(connection: Connection, orders: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Take orders; without the other end there is nobody to work for."""
    try:
        while True:
            orders.put(json.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        os._exit(1)


def _open(order: dict[str, Any]) -> Request:
    settings = order["settings"]
    read = ReadSettings(**settings.pop("read"))
    lengths = LengthLimits(**settings.pop("lengths"))
    request = open_request(PrepareSettings(**settings, read=read, lengths=lengths))
    if request.fingerprint != order["fingerprint"]:
        raise ValueError(
            "the input files changed while prepare began. Run the same command again when they "
            "are complete."
        )
    return request


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))

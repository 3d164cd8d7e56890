"""Stands in for a training of tests/pretrain/test_sweep_here.py: `python sweep_fake.py ARGS`.

Task 1 fails. With FAKE_STOPS the training asks who started it to stop and waits for the file STOP.
"""

import os
import signal
import sys
import time
from pathlib import Path

from pretrain.recording import status
from pretrain.recording.status import Status
from pretrain.settings.cli import parse_train


def main() -> int:
    config, start = parse_train(sys.argv[1:])
    folder = Path(config.runs) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "started.txt", "a") as started:
        started.write(f"{start.task and start.task.number} {start.resume} {config.steps}\n")
    if os.environ.get("FAKE_STOPS"):
        os.kill(os.getppid(), signal.SIGTERM)
        until = time.monotonic() + 60
        while not (folder / "STOP").is_file():
            if time.monotonic() > until:
                return 3
        return 85
    if start.task and start.task.number == 1:
        return 4
    status.write(folder, Status(state="finished", step=config.steps, steps=config.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())

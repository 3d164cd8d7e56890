"""Trains and is killed, again and again: the work of tests/pretrain/test_resume_kills.py.

`python kill_cases.py FOLDER PLAN.json` with PLAN {"ranks", "kills", "seed", "arguments"}: what an
unbroken training and one under kill -9 are started with. Torch and DeepSpeed are imported once;
each life is a fork from before any of their threads, and its death is a real SIGKILL: one in five
while it starts or loads, the others within LATE_S of its first step or while it saves.
"""

import json
import logging
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from pretrain.checkpoints.checkpoint_files import complete, damage, read_manifest
from pretrain.distributed.world import join_world
from pretrain.settings.cli import parse_train
from pretrain.training.train import run_in

LONGEST_LIFE_S = 1800.0
LATE_S = 0.6


def main(folder: Path, plan: dict[str, Any]) -> None:
    """Writes what was found after each kill to FOLDER/found.json."""
    rng, ranks = random.Random(plan["seed"]), plan["ranks"]
    arguments = plan["arguments"]
    unbroken = _start(ranks, [*arguments, "--name=unbroken"], folder / "unbroken.log")
    assert _codes(unbroken) == [0] * ranks, "the unbroken run failed"
    lives: list[dict[str, Any]] = []
    killed_argv = [*arguments, "--name=killed", "--resume=auto", "--checkpoints.every_steps=1"]
    while len(lives) < plan["kills"]:
        pids = _start(ranks, killed_argv, folder / "killed.log")
        _wait(folder / "killed" / "logs" / "rank-0.log", pids, rng)
        victims = rng.choice([[pid] for pid in pids] + [pids])
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        codes = _codes(pids)
        assert 0 not in codes, f"the run had ended before kill {len(lives) + 1}: more steps"
        lives.append(found_in(folder / "killed" / "checkpoints"))
    codes = _codes(_start(ranks, killed_argv, folder / "killed.log"))
    assert codes == [0] * ranks, "the run did not go on to its end"
    (folder / "found.json").write_text(json.dumps(lives))


def _wait(log: Path, pids: list[int], rng: random.Random) -> None:
    """Until the moment at which the life is to end."""
    if rng.random() < 0.2:
        time.sleep(rng.uniform(0.0, 3.0))
        return
    seen, born_at = len(_said(log)), time.monotonic()
    while b"| loss" not in _said(log)[seen:]:
        assert time.monotonic() - born_at < LONGEST_LIFE_S, "a life without a step"
        assert not any(_has_ended(pid) for pid in pids), "a life ended before its first step"
        time.sleep(0.005)
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.0, LATE_S))
        return
    saves = log.parent.parent / "checkpoints"
    while not any(saves.glob("*.partial")):
        assert time.monotonic() - born_at < LONGEST_LIFE_S, "a life without a save"
        assert not any(_has_ended(pid) for pid in pids), "a life ended before it saved again"
    time.sleep(rng.uniform(0.0, 0.02))


def _said(log: Path) -> bytes:
    return log.read_bytes() if log.is_file() else b""


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def found_in(root: Path) -> dict[str, Any]:
    """What a kill left: steps of whole checkpoints, damage, leftovers, and what `latest` names."""
    folders = complete(root)
    problems = []
    for folder in folders:
        try:
            manifest = read_manifest(folder)
            problems.append(damage(folder, manifest, manifest.files))
        except ValueError as error:
            problems.append(str(error))
    latest = root / "latest"
    return {
        "complete": [int(folder.name[-8:]) for folder in folders],
        "damage": [problem for problem in problems if problem],
        "in_a_save": any(root.glob("*.partial")),
        "latest": latest.read_text().strip() if latest.is_file() else None,
    }


def _start(ranks: int, argv: list[str], log: Path) -> list[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            _live(rank, ranks, port, argv, log)
        pids.append(pid)
    return pids


def _live(rank: int, ranks: int, port: int, argv: list[str], log: Path) -> None:
    """A rank, from its birth to os._exit."""
    code = 1
    try:
        output = os.open(f"{log}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip
        logging.getLogger().setLevel(logging.INFO)
        run_in(join_world(timeout_s=60), *parse_train(argv))
        code = 0
    except Exception as error:  # noqa: BLE001 (the life ends here, and says why)
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    os._exit(code)


def _codes(pids: list[int]) -> list[int]:
    """Exit codes, negative for a signal; a rank that outlives the others by far is a failure."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + LONGEST_LIFE_S
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(ended[1])
        if time.monotonic() > deadline:
            for pid in pids:
                if pid not in codes:
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"a rank did not end within {LONGEST_LIFE_S:.0f} s: {codes}")
        time.sleep(0.002)
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))

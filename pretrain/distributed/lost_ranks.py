"""A lost rank ends the others: each with one line that names it, and none later than the timeout.

    with roll_called(world) as world, lost_ranks_named(world):
        ...                      # collectives

A collective that breaks raises here; one that only waits is ended from the thread that watches
(roll_call.py), in the same words.
"""

import logging
import os
import re
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from pretrain.distributed.roll_call import Loss, Member, Patience, RollCall
from pretrain.distributed.roll_caller import Caller
from pretrain.distributed.world import World
from pretrain.recording.run_log import log_end
from pretrain.settings.mistakes import AgreedError, LostRankError, say_alone

logger = logging.getLogger(__name__)

LAST_S = 5.0  # for the record and the log of a rank that is ended
# What gloo says, as a plain RuntimeError, where a peer is gone; NCCL raises a DistError.
_LOST = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "Timed out")
_ADVICE = "Its own log says why: logs/rank-{} in the run folder. Start again with --resume auto."


@contextmanager
def roll_called(world: World) -> Iterator[World]:
    """`world` with a watch over its ranks; a collective at the beginning, none later.

    A rank that leaves with an error of its own is lost to the others; one that leaves with all of
    them, or at the end, is not.
    """
    if world.world_size == 1:
        yield world
        return
    with lost_ranks_named(world):
        roll = _roll(world)
    try:
        yield replace(world, roll=roll)
    except AgreedError:
        roll.close()
        raise
    roll.close()


def _roll(world: World) -> RollCall:
    hosts = world.gather(socket.gethostname())
    patience, end = Patience.of(world.timeout_s), partial(_end, world)
    entered = partial(_entered, world.world_size)
    if not entered():  # though it has just gathered
        logger.info("roll call: torch counts no collectives here, so a rank that hangs has no name")
    caller = Caller(hosts, patience, end, entered=entered) if world.leads else None
    port, word = world.broadcast((caller.port, caller.word) if caller else None)
    if caller:
        return caller
    master = (os.environ["MASTER_ADDR"], port)
    return Member(world.rank, master, word, patience, end, hosts[0], entered)


def _entered(world_size: int) -> int:
    """Collectives of all ranks that this one has entered; 0 where the library does not count."""
    try:
        groups: list[Any] = list(c10d._world.pg_map)
        return sum(g._get_sequence_number_for_group() for g in groups if g.size() == world_size)
    except (AttributeError, RuntimeError):  # of a torch that keeps its count elsewhere, or none
        return 0


@contextmanager
def lost_ranks_named(world: World) -> Iterator[None]:
    """Inside, a collective that another rank's end has broken raises LostRankError, in one line."""
    try:
        yield
    except LostRankError:
        raise
    except RuntimeError as error:
        said = str(error)
        if not isinstance(error, dist.DistError) and not any(sign in said for sign in _LOST):
            raise
        reason = re.sub(r"^\[[^]]*\]\s*", "", said.splitlines()[0]).split(". ")[0].rstrip(".")
        raise LostRankError(_message(world.roll and world.roll.answered(), reason)) from error


def _message(loss: Loss | None, reason: str | None = None) -> str:
    found = f" ({reason})" if reason else ""
    if loss is None:
        return f"another rank ended or stopped answering{found}. {_ADVICE.format('N.log')}"
    return f"{loss}{found}. {_ADVICE.format(f'{loss.rank}.log')}"


def _end(world: World, loss: Loss) -> None:
    """End this process, which waits for a lost rank and would wait until the timeout or longer.

    A rank may hang in its own log or on its disk: what is written here waits no longer than LAST_S.
    """
    error = LostRankError(_message(loss))
    say_alone(str(error))
    sys.stderr.flush()
    at_last = threading.Timer(LAST_S, os._exit, (1,))
    at_last.daemon = True
    at_last.start()
    for act in world.before_end:
        act(error)
    log_end(error)
    if loss.rank == world.rank:
        stack = traceback.format_stack(sys._current_frames()[threading.main_thread().ident or 0])
        logger.error("this rank hangs here:\n%s", "".join(stack))
    logging.shutdown()
    os._exit(1)

"""The ranks of a run: who am I, and the few collectives that the trainer needs besides DeepSpeed's
own.

A launcher (deepspeed, torchrun) sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; a
process that nobody launched is a world of one rank and sets them itself, since DeepSpeed would
otherwise probe MPI.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from pretrain.distributed import network
from pretrain.distributed.launching import check_launch, launchers
from pretrain.distributed.roll_call import RollCall
from pretrain.distributed.stop_signs import NOT_MET_CODE
from pretrain.settings.mistakes import AgreedError, LostRankError, NotMetError, say_alone

logger = logging.getLogger(__name__)

_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

Value = TypeVar("Value")


@dataclass(frozen=True)
class World:
    """One rank's place among all ranks, and the device it computes on."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    timeout_s: float  # a collective that a lost rank blocks fails after so long
    launchers: tuple[int, ...] = ()  # processes whose end this rank should not outlive
    roll: RollCall | None = field(default=None, compare=False)  # the watch over all ranks
    # Called, in order, where the watch ends this process because another rank is lost.
    before_end: list[Callable[[LostRankError], object]] = field(default_factory=list, compare=False)

    @property
    def leads(self) -> bool:
        """Whether this rank writes logs, metrics and the run folder."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum of `values` (float64) over all ranks, the same on every rank."""
        total = values.detach().to(torch.float64).clone()
        if self.device.type == "cuda":
            total = total.to(self.device)
        dist.all_reduce(total)
        return total

    def broadcast(self, value: Any) -> Any:
        """Rank 0's `value` (a plain object), on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def broadcast_tensor(self, values: torch.Tensor) -> torch.Tensor:
        """Rank 0's `values`, on every rank."""
        dist.broadcast(values, src=0)
        return values

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value` (a plain object), in the order of the ranks, on every rank."""
        box: list[Any] = [None] * self.world_size
        dist.all_gather_object(box, value)
        return box

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def on_leader(self, act: Callable[[], Value]) -> Value:
        """What `act` gives on rank 0, on every rank; its ValueError or OSError ends all of them."""
        return self.broadcast(self.together(act if self.leads else lambda: None))

    def together(self, act: Callable[[], Value]) -> Value:
        """What `act` gives on this rank, once it went well on all; else AgreedError on all.

        So a full disk or a missing file on one rank does not leave the others in a collective.
        """
        value, error = None, None
        try:
            value = act()
        except (ValueError, OSError) as problem:
            error = str(problem)
        self.agree(error)
        return cast(Value, value)

    def agree(self, error: str | None) -> None:
        """Raise AgreedError on every rank if any rank brings an `error`; rank 0's text, else the
        first one.

        What one rank finds wrong ends all of them with the same line instead of leaving the others
        waiting.
        """
        found = [e for e in self.gather(error) if e]
        if found:
            raise AgreedError(found[0])


def join_world(
    timeout_s: float, interface: str | None = None, expected_ranks: int | None = None
) -> World:
    """Join the process group that the environment describes, or a group of one rank.

    interface: network interface for NCCL and gloo, None to let them look for one.
    expected_ranks: how many there must be; None takes what the launcher started.
    Raises ValueError where a launcher set only a part of the environment, or started something else
    than was asked for, and NotMetError where the ranks do not find each other.
    """
    given = [name for name in _LAUNCHED if name in os.environ]
    launched = "RANK" in os.environ or "WORLD_SIZE" in os.environ
    # Before anything takes time: a launcher that ends while the run is set up is missed later.
    started_by = launchers() if launched else ()
    if not launched:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
        os.environ["MASTER_PORT"] = str(_free_port())
    elif len(given) < len(_LAUNCHED):
        missing = ", ".join(name for name in _LAUNCHED if name not in os.environ)
        raise ValueError(
            f"the environment sets {', '.join(given)} but not {missing}. Start the run with "
            "launch/pretrain_glm.sh, deepspeed or torchrun, or unset RANK and WORLD_SIZE."
        )
    rank, world_size, local_rank = (int(os.environ[n]) for n in _LAUNCHED[:3])
    check_launch(world_size, expected_ranks, started_by)
    network.set_variables(interface, os.environ["MASTER_ADDR"])
    device = torch.device("cpu")
    # DeepSpeed's own switch: it would compute on the CPU and we on the GPU.
    if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            with _ended_after(timeout_s + 5, interface):
                dist.init_process_group(
                    backend,
                    timeout=timedelta(seconds=timeout_s),
                    store=_store_of_this_start(timeout_s),
                    rank=rank,
                    world_size=world_size,
                )
        except RuntimeError as error:
            raise NotMetError(_not_found(interface, str(error).splitlines()[0])) from error
    return World(rank, world_size, local_rank, device, timeout_s, started_by)


@contextmanager
def _ended_after(seconds: float, interface: str | None) -> Iterator[None]:
    """End this process if what is inside takes longer: gloo waits for a rank that has given up
    connecting without an end (seen)."""

    def end() -> None:
        say_alone(_not_found(interface, f"no answer for {seconds:.0f} s"))
        os._exit(NOT_MET_CODE)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _not_found(interface: str | None, reason: str) -> str:
    named = interface or os.environ.get(network.GLOO, "chosen by the library")
    return (
        f"the ranks did not find each other at {os.environ['MASTER_ADDR']}:"
        f"{os.environ['MASTER_PORT']} (interface {named}): {reason}. Set --interface, or look at "
        "the launcher's address and port."
    )


def _store_of_this_start(timeout_s: float) -> dist.Store | None:
    """torchrun's store, with names of its own for every restart; None where there is no torchrun.

    torch 2.13 hands the same store to the ranks of a restart, who would read in it where those that
    died could be reached.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return None
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
    )
    return dist.PrefixStore(f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)


def leave_world() -> None:
    """Leave the process group, after a success: with another rank gone this could wait for ever."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

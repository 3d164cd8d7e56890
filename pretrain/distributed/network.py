"""Which network the ranks speak over: chosen where nobody has, and told once at start.

gloo looks up the address of a host's own name, which Debian maps to 127.0.1.1: ranks on other hosts
then cannot reach it. So where MASTER_ADDR lies on another network than loopback, gloo is given the
interface from which MASTER_ADDR is reached. NCCL's own choice (InfiniBand first) is left alone.
"""

import logging
import os
import socket
from pathlib import Path

import psutil
import torch.distributed as dist

logger = logging.getLogger(__name__)

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
# A collective that fails or times out ends the process; PyTorch's default, said here so that a
# variable of the site that switches it off is seen.
ASYNC_ERROR_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
_OFF = "0"


def set_variables(interface: str | None, master: str) -> None:
    """Set what NCCL and gloo read, in this process: before the group of ranks is made.

    interface: the recipe's, which wins over the environment. Raises ValueError where this host has
    no such interface, or where the environment switches off that a lost rank ends the others.
    """
    name, wanted = ASYNC_ERROR_HANDLING
    if os.environ.setdefault(name, wanted) == _OFF:
        raise ValueError(
            f"{name}=0 would let ranks wait for a lost one for ever. Unset it, or set it to 1 or 3."
        )
    if interface is not None:
        if interface not in psutil.net_if_addrs():
            raise ValueError(
                f"interface: {socket.gethostname()} has no {interface}; it has "
                f"{', '.join(sorted(psutil.net_if_addrs()))}."
            )
        os.environ.update({NCCL: interface, GLOO: interface})
    elif GLOO not in os.environ and (found := interface_to(master)):
        os.environ[GLOO] = found


def interface_to(address: str) -> str | None:
    """The interface from which this host reaches `address`; None for loopback or an unknown one."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address, 1, type=socket.SOCK_DGRAM
        )[0]  # fmt: skip
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # of UDP: sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address.partition("%")[0] == own for known in addresses):
            stats = psutil.net_if_stats().get(name)
            is_loopback = own.startswith("127.") or own == "::1"
            return None if is_loopback or (stats and not stats.isup) else name
    return None


def infiniband(root: Path = Path("/sys/class/infiniband")) -> list[str]:
    """Host channel adapters that this host shows, as "mlx5_0 (400 Gb/sec (4X NDR))"."""
    found = []
    for device in sorted(root.iterdir()) if root.is_dir() else []:
        rates = {_first_line(rate) for rate in device.glob("ports/*/rate")}
        found.append(f"{device.name} ({', '.join(sorted(rates))})" if rates else device.name)
    return found


def say(interface: str | None, timeout_s: float) -> None:
    """Tell the log what the ranks speak over and when a lost one is noticed."""
    backend = dist.get_backend()
    variable = NCCL if backend == "nccl" else GLOO
    named = interface or os.environ.get(variable)
    chosen = f"interface {named}" if named else "interface chosen by the library"
    up = [
        f"{name} {address.address}"
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for address in addresses
        if address.family == socket.AF_INET and name != "lo"
    ]
    logger.info(
        "network: %s, %s; %s has %s; InfiniBand: %s",
        backend,
        chosen,
        socket.gethostname(),
        ", ".join(up) or "no address beside loopback",
        ", ".join(infiniband()) or "none",
    )
    others = sorted(name for name in os.environ if name.startswith("NCCL_") and name != NCCL)
    name, _ = ASYNC_ERROR_HANDLING
    logger.info(
        "network: a lost rank is noticed within %.0f s; %s",
        timeout_s,
        ", ".join(f"{n}={os.environ[n]}" for n in (name, *others)),
    )


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return "rate unknown"

"""What ends a run, as one line on stderr, and who says it when there are many ranks."""

import os
import sys

from pretrain.settings.told import told


class AgreedError(ValueError):
    """A mistake that every rank raises with the same text; rank 0 says it for all."""


class LostRankError(RuntimeError):
    """A collective failed because another rank is gone or does not answer."""


class NotMetError(RuntimeError):
    """The ranks of a start did not find each other: the network's trouble, which may pass."""


def say_alone(message: str) -> None:
    """Write `message` as one line of this rank, whichever it is."""
    _write(f"rank {os.environ.get('RANK', '0')}: ", message)


def say(message: str, *, agreed: bool) -> None:
    """Write `message` as one line.

    agreed: all ranks say the same, so rank 0 does alone. Else a rank may be the only one that met
    it (shards that one node does not see), and the first rank of every host says its own.
    """
    rank, local_rank = (os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK"))
    if (rank if agreed else local_rank) != "0":
        return
    _write("" if rank == "0" else f"rank {rank}: ", message)


def _write(where: str, message: str) -> None:
    sys.stderr.write(f"pretrain: {where}{told(' '.join(message.split()))}\n")

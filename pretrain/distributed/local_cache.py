"""Shards on each host's own disk (data.local_cache): copied and checked before the first step.

One rank of a host writes, the others wait, and all ranks meet about once a second meanwhile, so
that a copy may take longer than a collective.
"""

import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from data_pipeline.storage.local_copy import GIB, LocalCopy
from pretrain.distributed.world import World
from pretrain.settings.data_config import CorpusConfig, DataConfig

logger = logging.getLogger(__name__)

SAY_EVERY_S = 10.0


def local_sources(data: DataConfig, world: World) -> tuple[CorpusConfig, ...]:
    """The corpora of `data`, each as it lies on this host's disk; a collective.

    Without data.local_cache they are what the recipe names. Raises ValueError, the same on every
    rank, where one cannot be read, is damaged or finds no room.
    """
    if data.local_cache is None:
        return data.sources
    cache = Path(data.local_cache)
    copies = world.together(lambda: [LocalCopy(c.shards, cache) for c in data.sources])
    hosts = world.gather((socket.gethostname(), [copy.folder.name for copy in copies]))
    differing = next((host for host, names in hosts if names != hosts[0][1]), None)
    world.agree(differing and f"the shards that {differing} sees are not those of {hosts[0][0]}.")
    writes = [host for host, _ in hosts].index(socket.gethostname()) == world.rank
    work = _work(copies)
    started_at = said_at = time.monotonic()
    while True:
        copied = world.together(lambda: next(work, None) if writes else None)
        if all(left is None for left in world.gather(copied)):
            break
        if copied and world.leads and time.monotonic() - said_at >= SAY_EVERY_S:
            said_at = time.monotonic()
            logger.info("local cache: %.1f GiB copied to %s", copied / GIB, cache)
    if problem := next((p for copy in copies if (p := copy.problem())), None):
        problem = f"{problem}, although another rank of {socket.gethostname()} has just written it."
    world.agree(problem)
    if world.leads:
        logger.info("local cache: %s, in %.1f s", ", ".join(str(c.folder) for c in copies),
                    time.monotonic() - started_at)  # fmt: skip
    return tuple(
        replace(source, shards=str(copy.folder), name=source.called)
        for source, copy in zip(data.sources, copies, strict=True)
    )


def _work(copies: list[LocalCopy]) -> Iterator[int]:
    """Bytes copied so far of all of them."""
    before = 0
    for copy in copies:
        copied = 0
        for copied in copy.work():
            yield before + copied
        before += copied

"""How documents are dealt to shards, for prepare and import-megatron alike."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from data_pipeline.preparing.encode import is_validation
from data_pipeline.storage.manifest import SPLITS, Dtype, ShardEntry
from data_pipeline.storage.shard_writer import ShardWriter
from data_pipeline.storage.stored import StoredDocuments

_SHARD_BYTES = 256 << 20  # of a token file, where shard_tokens is not given
_MAX_SERIES = 256  # shards open at once, of each split


class Sharding(Protocol):
    """What settings say of it."""

    @property
    def validation(self) -> float:
        """Share of the documents that go to validation, in [0, 1)."""
        ...

    @property
    def shard_tokens(self) -> int | None:
        """Tokens after which a shard is closed; None: token files of 256 MiB."""
        ...

    @property
    def mix(self) -> int:
        """Series of shards that documents are dealt to."""
        ...


def check_sharding(settings: Sharding) -> None:
    """Raise ValueError, naming the option, where a value is not allowed."""
    if not 0.0 <= settings.validation < 1.0:
        raise ValueError(f"--validation must lie in [0, 1), got {settings.validation}.")
    if settings.shard_tokens is not None and settings.shard_tokens < 1:
        raise ValueError(f"--shard-tokens must be at least 1, got {settings.shard_tokens}.")
    if not 1 <= settings.mix <= _MAX_SERIES:
        raise ValueError(f"--mix must lie in 1..{_MAX_SERIES}, got {settings.mix}.")


def dtype_of_ids(vocab_size: int) -> Dtype:
    """The narrower type that holds all ids."""
    return "uint16" if vocab_size <= 1 << 16 else "int32"


class SplitWriters:
    """The shards of both splits inside `folder`."""

    def __init__(self, folder: Path, dtypes: Sequence[Dtype], settings: Sharding) -> None:
        """dtypes: of the ids of each stream; the first one's tokens close a shard."""
        self._validation = settings.validation
        shard_tokens = settings.shard_tokens or _SHARD_BYTES // np.dtype(dtypes[0]).itemsize
        self.writers = {
            name: ShardWriter(folder, name, dtypes[0], shard_tokens, settings.mix, *dtypes[1:])
            for name in SPLITS
        }

    def add(self, stored: StoredDocuments) -> None:
        """Append documents, each to the split that the hash of its text chooses."""
        held_out_N = is_validation(stored.text_hash_N, self._validation)
        self.writers["train"].add(stored.take(~held_out_N))
        self.writers["validation"].add(stored.take(held_out_N))

    def close(self) -> dict[str, tuple[ShardEntry, ...]]:
        """The finished shards of each split; those of a second stream are in the writers."""
        return {name: writer.close() for name, writer in self.writers.items()}

"""Writes the shards of one split, a document at a time, in the layout of shards.py.

A shard is closed once it holds `shard_tokens` tokens; documents are never divided between shards.
The tokens go to disk as they come, the index of the open shard is held in memory.
"""

from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline.manifest import FileEntry, ShardEntry
from data_pipeline.shards import INDEX_MAGIC, index_layout

_MAX_DOCUMENTS = 4_000_000  # bounds the index in memory where documents are tiny
_BUFFER_BYTES = 1 << 20


class ShardWriter:
    """The shards of one split inside `folder`, numbered from 00000."""

    def __init__(self, folder: Path, split: str, dtype: str, shard_tokens: int) -> None:
        self._folder, self._split = folder, split
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shard_tokens = shard_tokens
        self._entries: list[ShardEntry] = []
        (folder / split).mkdir(parents=True)
        self._start_shard()

    def add(self, tokens: NDArray[np.int32], prompt_length: int, ends: NDArray[np.int64]) -> None:
        """Append one document: its ids, its leading prompt tokens, its sentence ends."""
        self._pending.append(tokens.astype(self._dtype))
        self._lengths.append(len(tokens))
        self._prompt_lengths.append(prompt_length)
        self._ends.append(ends.astype("<u4"))
        self._num_tokens += len(tokens)
        self._pending_bytes += self._pending[-1].nbytes
        if self._pending_bytes >= _BUFFER_BYTES:
            self._write_pending()
        if self._num_tokens >= self._shard_tokens or len(self._lengths) >= _MAX_DOCUMENTS:
            self._finish_shard()
            self._start_shard()

    def close(self) -> tuple[ShardEntry, ...]:
        """Finish the last shard and give the entries of all."""
        if self._lengths:
            self._finish_shard()
        return tuple(self._entries)

    def _start_shard(self) -> None:
        self._file = None
        self._hash = xxhash.xxh3_128()
        self._pending: list[NDArray[np.generic]] = []
        self._lengths: list[int] = []
        self._prompt_lengths: list[int] = []
        self._ends: list[NDArray[np.uint32]] = []
        self._num_tokens = 0
        self._pending_bytes = 0

    def _path(self, ending: str) -> str:
        return f"{self._split}/{len(self._entries):05d}.{ending}"

    def _write_pending(self) -> None:
        if self._file is None:
            self._file = (self._folder / self._path("tokens")).open("xb")
        data = b"".join(a.tobytes() for a in self._pending)
        self._file.write(data)
        self._hash.update(data)
        self._pending, self._pending_bytes = [], 0

    def _finish_shard(self) -> None:
        self._write_pending()
        assert self._file is not None
        self._file.close()
        index = self._index()
        (self._folder / self._path("index")).write_bytes(index)
        self._entries.append(
            ShardEntry(
                documents=len(self._lengths),
                tokens=self._num_tokens,
                sentence_ends=sum(map(len, self._ends)),
                tokens_file=FileEntry(
                    path=self._path("tokens"),
                    size_bytes=self._num_tokens * self._dtype.itemsize,
                    xxh3=self._hash.hexdigest(),
                ),
                index_file=FileEntry(
                    path=self._path("index"),
                    size_bytes=len(index),
                    xxh3=xxhash.xxh3_128_hexdigest(index),
                ),
            )
        )

    def _index(self) -> bytes:
        counts = [len(e) for e in self._ends]
        arrays = {
            "token_offsets": np.append(0, np.cumsum(self._lengths, dtype=np.int64)),
            "sentence_offsets": np.append(0, np.cumsum(counts, dtype=np.int64)),
            "prompt_lengths": np.array(self._prompt_lengths),
            "sentence_ends": np.concatenate(self._ends),
        }
        header = np.array([len(counts), self._num_tokens, sum(counts)], "<u8").tobytes()
        layout = index_layout(len(counts), sum(counts))
        body = b"".join(arrays[name].astype(d).tobytes() for name, (d, _, _) in layout.items())
        return INDEX_MAGIC + header + body

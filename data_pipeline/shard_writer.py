"""Writes the shards of one split in the layout of shards.py.

A shard is closed once it holds `shard_tokens` tokens; documents are never divided between shards.
The tokens go to disk as they come, the index of the open shard is held in memory.
"""

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from data_pipeline import ragged
from data_pipeline.manifest import FileEntry, ShardEntry
from data_pipeline.shards import INDEX_MAGIC, index_layout
from data_pipeline.stored import StoredDocuments

_MAX_DOCUMENTS = 4_000_000  # bounds the index in memory where documents are tiny


class ShardWriter:
    """The shards of one split inside `folder`, numbered from 00000."""

    def __init__(self, folder: Path, split: str, dtype: str, shard_tokens: int) -> None:
        self._folder, self._split = folder, split
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shard_tokens = shard_tokens
        self._entries: list[ShardEntry] = []
        (folder / split).mkdir(parents=True)
        self._start_shard()

    def add(self, documents: StoredDocuments) -> None:
        """Append documents in their order."""
        while len(documents):
            totals_N = self._num_tokens + np.cumsum(documents.lengths_N)
            last = int(np.searchsorted(totals_N, self._shard_tokens))  # the one that fills it
            room = min(last + 1, _MAX_DOCUMENTS - self._num_documents)
            if room > len(documents):
                self._append(documents)
                return
            self._append(documents.part(0, room))
            self._finish_shard()
            self._start_shard()
            documents = documents.part(room, len(documents))

    def close(self) -> tuple[ShardEntry, ...]:
        """Finish the last shard and give the entries of all."""
        if self._num_documents:
            self._finish_shard()
        return tuple(self._entries)

    def _start_shard(self) -> None:
        self._file: BinaryIO | None = None
        self._hash = xxhash.xxh3_128()
        self._parts: list[StoredDocuments] = []  # without their tokens, which are on disk
        self._num_documents = 0
        self._num_tokens = 0

    def _path(self, ending: str) -> str:
        return f"{self._split}/{len(self._entries):05d}.{ending}"

    def _append(self, documents: StoredDocuments) -> None:
        if self._file is None:
            self._file = (self._folder / self._path("tokens")).open("xb")
        content = documents.tokens.astype(self._dtype).tobytes()
        self._file.write(content)
        self._hash.update(content)
        self._parts.append(replace(documents, tokens=documents.tokens[:0]))
        self._num_documents += len(documents)
        self._num_tokens += len(documents.tokens)

    def _finish_shard(self) -> None:
        assert self._file is not None
        self._file.close()
        index = self._index()
        (self._folder / self._path("index")).write_bytes(index)
        self._entries.append(
            ShardEntry(
                documents=self._num_documents,
                tokens=self._num_tokens,
                sentence_ends=sum(len(p.sentence_ends) for p in self._parts),
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
        lengths_N = np.concatenate([p.lengths_N for p in self._parts])
        num_ends_N = np.concatenate([p.num_ends_N for p in self._parts])
        arrays = {
            "token_offsets": ragged.offsets(lengths_N),
            "sentence_offsets": ragged.offsets(num_ends_N),
            "prompt_lengths": np.concatenate([p.prompt_lengths_N for p in self._parts]),
            "sentence_ends": np.concatenate([p.sentence_ends for p in self._parts]),
        }
        counts = [len(lengths_N), self._num_tokens, len(arrays["sentence_ends"])]
        header = INDEX_MAGIC + np.array(counts, "<u8").tobytes()
        layout = index_layout(counts[0], counts[2])
        return header + b"".join(arrays[n].astype(d).tobytes() for n, (d, _, _) in layout.items())

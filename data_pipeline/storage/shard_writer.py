"""Writes the shards of one split in the layout of shard_files.py.

A shard is closed once it holds `shard_tokens` tokens; documents are never divided between shards.
The tokens go to disk as they come, the index of an open shard is held in memory. With more than one
series several shards are open, and the hash of its text decides into which a document goes:

    documents  a b c d e f g     one series    00000 = a b c d   00001 = e f g
                                 two series    00000 = a c d g   00001 = b e f

Documents with a second stream (StoredDocuments.encoder) get NAME.encoder.tokens and its index too.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.hashing import mix
from data_pipeline.storage.manifest import FileEntry, ShardEntry
from data_pipeline.storage.shard_files import INDEX_MAGIC, index_layout
from data_pipeline.storage.stored import StoredDocuments

_INDEX_FIELDS = {  # array of the index: field of the documents, whether it is added up
    "token_offsets": ("lengths_N", True),
    "sentence_offsets": ("num_ends_N", True),
    "prompt_lengths": ("prompt_lengths_N", False),
    "sentence_ends": ("sentence_ends", False),
}
SUFFIXES = ("", ".encoder")  # of the files of each stream
_MAX_DOCUMENTS = 4_000_000  # bounds the index in memory where documents are tiny


class ShardWriter:
    """The shards of one split inside `folder`, numbered from 00000 by their first documents.

    Nothing depends on how the documents are divided between calls of `add`.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        dtype: str,
        shard_tokens: int,
        series: int = 1,
        encoder_dtype: str | None = None,
    ) -> None:
        """encoder_dtype: of the second stream that all documents must then have; None: none has."""
        self._folder, self._split = folder, split
        self._dtypes = [dtype] if encoder_dtype is None else [dtype, encoder_dtype]
        self._shard_tokens = shard_tokens
        self._open: list[_OpenShard | None] = [None] * series
        self._num_begun = self._num_documents = 0
        # By the number of the first document; of each stream.
        self._entries: dict[int, tuple[ShardEntry, ...]] = {}
        self.encoder_shards: tuple[ShardEntry, ...] = ()
        self.longest_tokens = [0] * len(self._dtypes)  # of a document, in each stream
        (folder / split).mkdir(parents=True)

    def add(self, documents: StoredDocuments) -> None:
        """Append documents, those of each series in their order."""
        for stream, stored in enumerate((documents, documents.encoder)):
            if stored is not None:
                longest = int(stored.lengths_N.max(initial=0))
                self.longest_tokens[stream] = max(self.longest_tokens[stream], longest)
        num_series = len(self._open)
        numbers_N = np.arange(self._num_documents, self._num_documents + len(documents))
        self._num_documents += len(documents)
        if num_series == 1:
            self._add(0, documents, numbers_N)
            return
        # The high bits decide between train and validation: mixed, all bits tell something new.
        series_N = (mix(documents.text_hash_N) % np.uint64(num_series)).astype(np.int64)
        order_N = np.argsort(series_N, kind="stable")
        ordered, numbers_N = documents.reordered(order_N), numbers_N[order_N]
        bounds = ragged.offsets(np.bincount(series_N, minlength=num_series)).tolist()
        for series, (start, stop) in enumerate(pairwise(bounds)):
            self._add(series, ordered.part(start, stop), numbers_N[start:stop])

    def close(self) -> tuple[ShardEntry, ...]:
        """Finish the open shards and give the entries of all, in the order of their numbers.

        Those of the second stream are then in `encoder_shards`.
        """
        for series in range(len(self._open)):
            self._finish(series)
        streams = [
            tuple(
                self._numbered(f"{self._split}/{number:05d}{suffix}", self._entries[first][stream])
                for number, first in enumerate(sorted(self._entries))
            )
            for stream, suffix in enumerate(SUFFIXES[: len(self._dtypes)])
        ]
        self.encoder_shards = streams[-1] if len(streams) > 1 else ()
        return streams[0]

    def _numbered(self, name: str, entry: ShardEntry) -> ShardEntry:
        """The same shard under the name of its place."""
        renamed = {}
        for kind, file in (("tokens", entry.tokens_file), ("index", entry.index_file)):
            renamed[f"{kind}_file"] = replace(file, path=f"{name}.{kind}")
            (self._folder / file.path).rename(self._folder / f"{name}.{kind}")
        return replace(entry, **renamed)

    def _add(self, series: int, documents: StoredDocuments, numbers_N: NDArray[np.int64]) -> None:
        while len(documents):
            shard = self._open[series] or self._begin(series, int(numbers_N[0]))
            totals_N = shard.num_tokens + np.cumsum(documents.lengths_N)
            last = int(np.searchsorted(totals_N, self._shard_tokens))  # the one that fills it
            room = min(last + 1, _MAX_DOCUMENTS - shard.num_documents)
            if room > len(documents):
                shard.append(documents)
                return
            shard.append(documents.part(0, room))
            self._finish(series)
            documents, numbers_N = documents.part(room, len(documents)), numbers_N[room:]

    def _begin(self, series: int, first: int) -> "_OpenShard":
        name = f"{self._split}/begun-{self._num_begun:05d}"
        shard = _OpenShard(self._folder, name, self._dtypes, first)
        self._open[series] = shard
        self._num_begun += 1
        return shard

    def _finish(self, series: int) -> None:
        if shard := self._open[series]:
            self._entries[shard.first] = shard.finish()
            self._open[series] = None


class _OpenShard:
    """One shard that is being written, each of its streams in files of its own."""

    def __init__(self, folder: Path, name: str, dtypes: list[str], first: int) -> None:
        self.first = first
        self.num_documents = self.num_tokens = 0  # tokens of the first stream
        self._streams = [
            _OpenStream(folder, name + suffix, np.dtype(dtype).newbyteorder("<"))
            for dtype, suffix in zip(dtypes, SUFFIXES)
        ]

    def append(self, documents: StoredDocuments) -> None:
        streams = (documents, documents.encoder)
        for stream, stored in zip(self._streams, streams):
            assert stored is not None, "documents without a second stream"
            stream.append(stored)
        self.num_documents += len(documents)
        self.num_tokens += len(documents.tokens)

    def finish(self) -> tuple[ShardEntry, ...]:
        return tuple(stream.finish() for stream in self._streams)


class _OpenStream:
    """NAME.tokens grows, NAME.index is written at the end."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype) -> None:
        self.name = name
        self.num_documents = self.num_tokens = 0
        self._folder, self._dtype = folder, dtype
        self._file = (folder / f"{name}.tokens").open("xb")
        self._hash = xxhash.xxh3_128()
        self._parts: list[StoredDocuments] = []  # without their tokens, which are on disk

    def append(self, documents: StoredDocuments) -> None:
        content = documents.tokens.astype(self._dtype).tobytes()
        self._file.write(content)
        self._hash.update(content)
        self._parts.append(replace(documents, tokens=documents.tokens[:0]).narrowed())
        self.num_documents += len(documents)
        self.num_tokens += len(documents.tokens)

    def finish(self) -> ShardEntry:
        self._file.close()
        num_ends = sum(len(p.sentence_ends) for p in self._parts)
        return ShardEntry(
            documents=self.num_documents,
            tokens=self.num_tokens,
            sentence_ends=num_ends,
            tokens_file=FileEntry(
                path=f"{self.name}.tokens",
                size_bytes=self.num_tokens * self._dtype.itemsize,
                xxh3=self._hash.hexdigest(),
            ),
            index_file=self._write_index(num_ends),
        )

    def _write_index(self, num_ends: int) -> FileEntry:
        """One array at a time: together they may be hundreds of megabytes."""
        name, hashed, size_bytes = f"{self.name}.index", xxhash.xxh3_128(), 0
        counts = [self.num_documents, self.num_tokens, num_ends]
        with (self._folder / name).open("xb") as file:
            for content in [INDEX_MAGIC, np.array(counts, "<u8"), *self._index_arrays(num_ends)]:
                file.write(content)
                hashed.update(content)
                size_bytes += memoryview(content).nbytes
        return FileEntry(path=name, size_bytes=size_bytes, xxh3=hashed.hexdigest())

    def _index_arrays(self, num_ends: int) -> Iterator[NDArray]:
        """The arrays of index_layout, in its order."""
        for name, (dtype, _, _) in index_layout(self.num_documents, num_ends).items():
            field, are_offsets = _INDEX_FIELDS[name]
            array = np.concatenate([getattr(part, field) for part in self._parts])
            array = ragged.offsets(array) if are_offsets else array
            yield np.ascontiguousarray(array, dtype)

"""Shards on disk and a memory-mapped view of them.

A shard is two files. NAME.tokens: little-endian uint16 (vocabularies up to 65,536) or int32 ids,
document after document, nothing between. NAME.index: a header and four arrays (index_layout).

    shards = open_shards("shards/")
    train = shards.splits["train"]
    train.lengths([0, 2])                  # array([5, 3]): stored tokens of documents 0 and 2
    train.tokens([0, 2], [0, 1], [2, 3])   # tokens 0, 1 of document 0, then 1, 2 of document 2

Reading loops over the shards touched, never over documents.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_pipeline.manifest import (
    TOKENIZER_FOLDER,
    FileEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    read_manifest,
)
from data_pipeline.special import SpecialIds
from data_pipeline.tokenizer import Tokenizer, open_tokenizer

INDEX_MAGIC = b"PALINDX1"
INDEX_HEADER_BYTES = 32  # the magic, then documents, tokens and sentence ends as uint64
_MAX_MAPPED = 128  # shards kept mapped at once: each holds two open files


def index_layout(documents: int, sentence_ends: int) -> dict[str, tuple[str, int, int]]:
    """The arrays of an index file after its header: {name: (dtype, length, first byte)}.

    token_offsets: where each document starts in the tokens, and their total, (documents + 1,).
    sentence_offsets: where each document's sentence ends start, and their total, (documents + 1,).
    prompt_lengths: leading tokens of each document that are prompt, (documents,).
    sentence_ends: token counts from the document's first token after which a sentence ends, rising.
    """
    sizes = {
        "token_offsets": ("<u8", documents + 1),
        "sentence_offsets": ("<u8", documents + 1),
        "prompt_lengths": ("<u4", documents),
        "sentence_ends": ("<u4", sentence_ends),
    }
    layout: dict[str, tuple[str, int, int]] = {}
    start = INDEX_HEADER_BYTES
    for name, (dtype, length) in sizes.items():
        layout[name] = (dtype, length, start)
        start += np.dtype(dtype).itemsize * length
    return layout


def index_size_bytes(documents: int, sentence_ends: int) -> int:
    """The size of an index file."""
    dtype, length, start = index_layout(documents, sentence_ends)["sentence_ends"]
    return start + np.dtype(dtype).itemsize * length


@dataclass(frozen=True)
class MappedShard:
    """The arrays of one shard, read from disk as they are touched."""

    tokens: NDArray[np.uint16] | NDArray[np.int32]
    token_offsets: NDArray[np.uint64]
    sentence_offsets: NDArray[np.uint64]
    prompt_lengths: NDArray[np.uint32]
    sentence_ends: NDArray[np.uint32]


def map_shard(folder: Path, entry: ShardEntry, dtype: str) -> MappedShard:
    """Map the two files of a shard. Raises ValueError where the header is not the manifest's."""
    path = folder / entry.index_file.path
    raw = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    header = raw[len(INDEX_MAGIC) : INDEX_HEADER_BYTES].view("<u8").tolist()
    expected = [entry.documents, entry.tokens, entry.sentence_ends]
    if raw[: len(INDEX_MAGIC)].tobytes() != INDEX_MAGIC or header != expected:
        raise ValueError(
            f"{path} is damaged: its header does not hold {expected}. See: verify {folder}."
        )
    arrays = {
        name: raw[start : start + np.dtype(d).itemsize * length].view(d)
        for name, (d, length, start) in index_layout(entry.documents, entry.sentence_ends).items()
    }
    if int(arrays["token_offsets"][-1]) != entry.tokens:
        raise ValueError(f"{path} is damaged: its last offset is wrong. See: verify {folder}.")
    tokens = np.memmap(folder / entry.tokens_file.path, np.dtype(dtype).newbyteorder("<"), mode="r")
    return MappedShard(tokens=tokens.view(np.ndarray), **arrays)


class Split:
    """A memory-mapped view of all shards of one split; document numbers run over the shards."""

    def __init__(self, folder: Path, name: str, entry: SplitEntry, dtype: str) -> None:
        self.name = name
        self.num_documents = entry.documents
        self.num_tokens = entry.tokens
        self.fingerprint = entry.fingerprint  # hex; changes when any shard of the split changes
        self._folder, self._entry, self._dtype = folder, entry, dtype
        counts = np.array([s.documents for s in entry.shards], np.int64)
        self._first_document = np.append(0, np.cumsum(counts))  # of each shard, then the total
        self._mapped: OrderedDict[int, MappedShard] = OrderedDict()

    def __reduce__(self) -> tuple[Callable[..., "Split"], tuple[object, ...]]:
        """Travels to other processes as a path; the files are mapped again there."""
        return Split, (self._folder, self.name, self._entry, self._dtype)

    def lengths(self, document_N: ArrayLike) -> NDArray[np.int64]:
        """Stored tokens of N documents, the prompt included, (N,)."""
        document_N = self._checked(document_N)
        length_N = np.empty(len(document_N), np.int64)
        for shard, at, local in self._by_shard(document_N):
            offsets = shard.token_offsets
            length_N[at] = (offsets[local + 1] - offsets[local]).astype(np.int64)
        return length_N

    def prompt_lengths(self, document_N: ArrayLike) -> NDArray[np.int64]:
        """Leading prompt tokens of N documents, (N,)."""
        document_N = self._checked(document_N)
        prompt_N = np.empty(len(document_N), np.int64)
        for shard, at, local in self._by_shard(document_N):
            prompt_N[at] = shard.prompt_lengths[local]
        return prompt_N

    def sentence_ends(self, document_N: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sentence ends of N documents, flat, and the offsets (N + 1,) that cut them by document.

        An end is the number of tokens, from the document's first, after which a sentence ends. The
        end of the document is always one, and so is the end of its prompt.
        """
        document_N = self._checked(document_N)
        groups = self._by_shard(document_N)
        begin_N = np.empty(len(document_N), np.int64)
        count_N = np.empty(len(document_N), np.int64)
        for shard, at, local in groups:
            begin_N[at] = shard.sentence_offsets[local]
            count_N[at] = shard.sentence_offsets[local + 1].astype(np.int64) - begin_N[at]
        offsets_N1 = np.append(0, np.cumsum(count_N))
        flat = np.empty(offsets_N1[-1], np.int64)
        for shard, at, _ in groups:
            _gather(shard.sentence_ends, begin_N[at], count_N[at], flat, offsets_N1[:-1][at])
        return flat, offsets_N1

    def tokens(
        self, document_N: ArrayLike, start_N: ArrayLike, stop_N: ArrayLike
    ) -> NDArray[np.int32]:
        """The stretches [start, stop) of N documents, end to end, counted inside the documents."""
        document_N = self._checked(document_N)
        start_N, stop_N = np.asarray(start_N, np.int64), np.asarray(stop_N, np.int64)
        count_N = stop_N - start_N
        offsets_N1 = np.append(0, np.cumsum(count_N))
        flat = np.empty(offsets_N1[-1], np.int32)
        for shard, at, local in self._by_shard(document_N):
            first = shard.token_offsets[local].astype(np.int64)
            length = shard.token_offsets[local + 1].astype(np.int64) - first
            start, stop = start_N[at], stop_N[at]
            assert ((start >= 0) & (start <= stop) & (stop <= length)).all(), "outside a document"
            _gather(shard.tokens, first + start, count_N[at], flat, offsets_N1[:-1][at])
        return flat

    def _checked(self, document_N: ArrayLike) -> NDArray[np.int64]:
        document_N = np.asarray(document_N, np.int64)
        inside = (document_N >= 0) & (document_N < self.num_documents)
        assert inside.all(), f"document outside [0, {self.num_documents})"
        return document_N

    def _by_shard(
        self, document_N: NDArray[np.int64]
    ) -> list[tuple[MappedShard, NDArray[np.int64], NDArray[np.int64]]]:
        """For each shard touched: its arrays, which of the N it holds, their numbers inside it."""
        shard_N = np.searchsorted(self._first_document, document_N, side="right") - 1
        groups = []
        for number in np.unique(shard_N).tolist():
            at = np.flatnonzero(shard_N == number)
            local = document_N[at] - self._first_document[number]
            groups.append((self._map(number), at, local))
        return groups

    def _map(self, number: int) -> MappedShard:
        if number not in self._mapped:
            if len(self._mapped) >= _MAX_MAPPED:
                self._mapped.popitem(last=False)
            entry = self._entry.shards[number]
            self._mapped[number] = map_shard(self._folder, entry, self._dtype)
        self._mapped.move_to_end(number)
        return self._mapped[number]


def _gather(
    source: NDArray[np.generic],
    begin: NDArray[np.int64],
    count: NDArray[np.int64],
    target: NDArray[np.generic],
    target_begin: NDArray[np.int64],
) -> None:
    """Copy stretches of `source` to where they belong in `target`."""
    ends = np.cumsum(count)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - count, count)
    target[within + np.repeat(target_begin, count)] = source[within + np.repeat(begin, count)]


@dataclass(frozen=True)
class Shards:
    """A finished folder of shards."""

    folder: Path
    manifest: Manifest
    splits: Mapping[str, Split]  # "train" and "validation", either may be empty

    @property
    def special(self) -> SpecialIds:
        return self.manifest.special

    @property
    def vocab_size(self) -> int:
        return self.manifest.vocab_size

    def tokenizer(self) -> Tokenizer:
        """The tokenizer the shards were made with. Raises ValueError if its files were changed."""
        tokenizer = open_tokenizer(self.folder / TOKENIZER_FOLDER)
        if tokenizer.fingerprint != self.manifest.tokenizer_fingerprint:
            raise ValueError(
                f"{self.folder / TOKENIZER_FOLDER} is not the tokenizer these shards were made "
                f"with: its fingerprint is {tokenizer.fingerprint}, "
                f"not {self.manifest.tokenizer_fingerprint}."
            )
        return tokenizer


def size_problem(folder: Path, file: FileEntry) -> str | None:
    """What is wrong with the size of a file, or None."""
    path = folder / file.path
    if not path.is_file():
        return f"{path} is missing"
    size_bytes = path.stat().st_size
    if size_bytes != file.size_bytes:
        return f"{path} has {size_bytes} bytes, not {file.size_bytes}"
    return None


def open_shards(folder: str | Path) -> Shards:
    """Open a folder written by prepare. Raises ValueError on a damaged manifest or a wrong size.

    Checksums are compared by: python -m data_pipeline verify FOLDER.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    itemsize = np.dtype(manifest.dtype).itemsize
    for shard in (s for split in manifest.splits.values() for s in split.shards):
        stated = (shard.tokens_file.size_bytes, shard.index_file.size_bytes)
        index = index_size_bytes(shard.documents, shard.sentence_ends)
        if stated != (shard.tokens * itemsize, index):
            raise ValueError(f"{folder}: sizes of {shard.tokens_file.path} contradict its counts.")
    problems = [p for p in (size_problem(folder, f) for f in manifest.files()) if p]
    if problems:
        more = f" (and {len(problems) - 1} more files)" if len(problems) > 1 else ""
        raise ValueError(f"{problems[0]}{more}. Prepare the data again, or copy it again.")
    splits = {n: Split(folder, n, s, manifest.dtype) for n, s in manifest.splits.items()}
    return Shards(folder=folder, manifest=manifest, splits=splits)

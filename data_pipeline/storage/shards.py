"""Shards on disk and a memory-mapped view of them.

    shards = open_shards("shards/")
    train = shards.splits["train"]
    train.lengths([0, 2])                  # array([5, 3]): stored tokens of documents 0 and 2
    train.tokens([0, 2], [0, 1], [2, 3])   # tokens 0, 1 of document 0, then 1, 2 of document 2

Reading loops over the shards touched, never over documents. Numbers that cannot be are an error
naming the file (damage.py), found where they are read.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_pipeline import ragged
from data_pipeline.storage.damage import (
    damaged,
    file_problem,
    first_not_rising,
    refuse,
    size_problem,
)
from data_pipeline.storage.manifest import (
    ENCODER_TOKENIZER_FOLDER,
    TOKENIZER_FOLDER,
    EncoderEntry,
    Manifest,
    SplitEntry,
    read_manifest,
)
from data_pipeline.storage.shard_files import MappedShard, index_size_bytes, map_shard
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.tokenizing.tokenizer import Tokenizer, open_tokenizer

_MAX_MAPPED = 128  # shards kept mapped at once: each holds two open files
_LONG_STRETCH = 96  # mean entries from which on stretches are copied one by one, not by index


class Split:
    """A memory-mapped view of all shards of one split; document numbers run over the shards."""

    def __init__(
        self,
        folder: Path,
        name: str,
        entry: SplitEntry,
        dtype: str,
        vocab_size: int,
        encoder: "Split | None" = None,
    ) -> None:
        """encoder: the same documents under the second tokenizer, where the folder has one."""
        self.name, self.encoder = name, encoder
        self.num_documents = entry.documents
        self.num_tokens = entry.tokens
        self.fingerprint = entry.fingerprint  # hex; changes when any shard of the split changes
        self._folder, self._entry, self._dtype = folder, entry, dtype
        self._vocab_size = vocab_size
        counts = np.array([s.documents for s in entry.shards], np.int64)
        self._first_document = ragged.offsets(counts)  # of each shard, then the total
        self._mapped: OrderedDict[int, MappedShard] = OrderedDict()

    def __reduce__(self) -> tuple[Callable[..., "Split"], tuple[object, ...]]:
        """Travels to other processes as a path; the files are mapped again there."""
        own = (self._folder, self.name, self._entry, self._dtype, self._vocab_size)
        return Split, (*own, self.encoder)

    def lengths(self, document_N: ArrayLike) -> NDArray[np.int64]:
        """Stored tokens of N documents, the prompt included, (N,)."""
        document_N = self._checked(document_N)
        length_N = np.empty(len(document_N), np.int64)
        for shard, at, local in self._by_shard(document_N):
            _, length_N[at] = shard.document_bounds(local)
        return length_N

    def prompt_lengths(self, document_N: ArrayLike) -> NDArray[np.int64]:
        """Leading prompt tokens of N documents, (N,)."""
        document_N = self._checked(document_N)
        prompt_N = np.empty(len(document_N), np.int64)
        for shard, at, local in self._by_shard(document_N):
            _, length = shard.document_bounds(local)
            prompt_N[at] = shard.prompt_lengths[local]
            is_wrong = prompt_N[at] >= length
            refuse(is_wrong, local, shard.index_path, "document {} is no longer than its prompt")
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
            begin_N[at], count_N[at] = shard.sentence_bounds(local)
        offsets_N1 = ragged.offsets(count_N)
        flat = np.empty(offsets_N1[-1], np.int64)
        for shard, at, _ in groups:
            _gather(shard.sentence_ends, begin_N[at], count_N[at], flat, offsets_N1[:-1][at])
        if (wrong := first_not_rising(flat, offsets_N1)) is not None:
            shard, number = self._owner(document_N, offsets_N1, wrong)
            raise damaged(shard.index_path, f"the sentence ends of document {number} do not rise")
        return flat, offsets_N1

    def tokens(
        self, document_N: ArrayLike, start_N: ArrayLike, stop_N: ArrayLike
    ) -> NDArray[np.int32]:
        """The stretches [start, stop) of N documents, end to end, counted inside the documents."""
        document_N = self._checked(document_N)
        start_N, stop_N = np.asarray(start_N, np.int64), np.asarray(stop_N, np.int64)
        count_N = stop_N - start_N
        offsets_N1 = ragged.offsets(count_N)
        flat = np.empty(offsets_N1[-1], np.int32)
        for shard, at, local in self._by_shard(document_N):
            first, length = shard.document_bounds(local)
            start, stop = start_N[at], stop_N[at]
            assert ((start >= 0) & (start <= stop) & (stop <= length)).all(), "outside a document"
            _gather(shard.tokens, first + start, count_N[at], flat, offsets_N1[:-1][at])
        ids = flat.view(np.uint32)  # so that negative ones lie above the vocabulary too
        if ids.max(initial=0) >= self._vocab_size:
            wrong = int(ids.argmax())
            shard, number = self._owner(document_N, offsets_N1, wrong)
            reason = f"document {number} holds the id {flat[wrong]}, outside the vocabulary"
            raise damaged(shard.tokens_path, f"{reason} [0, {self._vocab_size})")
        return flat

    def _owner(
        self, document_N: NDArray[np.int64], offsets_N1: NDArray[np.int64], entry: int
    ) -> tuple[MappedShard, int]:
        """The shard, and the number of the document in it, that an entry of a flat array is of."""
        owner = np.searchsorted(offsets_N1, entry, side="right") - 1
        ((shard, _, local),) = self._by_shard(document_N[owner : owner + 1])
        return shard, int(local[0])

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
    """Copy stretches of `source` to where they belong in `target`, in rising order of place."""
    size = int(count.sum())
    if size >= _LONG_STRETCH * len(count):
        for at, to, length in zip(begin.tolist(), target_begin.tolist(), count.tolist()):
            target[to : to + length] = source[at : at + length]
    elif target_begin[-1] + count[-1] - target_begin[0] == size:  # no gaps, as from one shard
        target[target_begin[0] : target_begin[0] + size] = source[ragged.spread(begin, count)]
    else:
        target[ragged.spread(target_begin, count)] = source[ragged.spread(begin, count)]


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

    @property
    def encoder(self) -> EncoderEntry | None:
        """What the manifest says of the second stream, where the folder has one."""
        return self.manifest.encoder

    def tokenizer(self) -> Tokenizer:
        """The tokenizer the shards were made with. Raises ValueError if its files were changed."""
        return _tokenizer_of(self.manifest, self.folder, TOKENIZER_FOLDER)

    def encoder_tokenizer(self) -> Tokenizer:
        """The same of the second stream, which must be there."""
        assert self.encoder is not None
        return _tokenizer_of(self.encoder, self.folder, ENCODER_TOKENIZER_FOLDER)


def _tokenizer_of(stated: Manifest | EncoderEntry, folder: Path, name: str) -> Tokenizer:
    for file in stated.tokenizer_files:  # before a library tries to make sense of them
        if problem := file_problem(folder, file):
            raise ValueError(f"{problem}. Prepare the data again, or copy it again.")
    tokenizer = open_tokenizer(folder / name)
    found = (tokenizer.fingerprint, tokenizer.vocab_size, tokenizer.special)
    if found != (stated.tokenizer_fingerprint, stated.vocab_size, stated.special):
        raise ValueError(
            f"{folder / name} is not the tokenizer these shards were made with: its fingerprint is "
            f"{tokenizer.fingerprint} and its vocabulary {tokenizer.vocab_size} ids, not "
            f"{stated.tokenizer_fingerprint} and {stated.vocab_size}."
        )
    return tokenizer


def open_shards(folder: str | Path) -> Shards:
    """Open a folder written by prepare. Raises ValueError on a damaged manifest or a wrong size.

    Checksums are compared by: python -m data_pipeline verify FOLDER.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for shard, stream in manifest.streams():
        stated = (shard.tokens_file.size_bytes, shard.index_file.size_bytes)
        index = index_size_bytes(shard.documents, shard.sentence_ends)
        if stated != (shard.tokens * np.dtype(stream.dtype).itemsize, index):
            raise ValueError(f"{folder}: sizes of {shard.tokens_file.path} contradict its counts.")
    problems = [p for p in (size_problem(folder, f) for f in manifest.files()) if p]
    if problems:
        more = f" (and {len(problems) - 1} more files)" if len(problems) > 1 else ""
        raise ValueError(f"{problems[0]}{more}. Prepare the data again, or copy it again.")
    splits = {name: _split(folder, name, manifest) for name in manifest.splits}
    return Shards(folder=folder, manifest=manifest, splits=splits)


def _split(folder: Path, name: str, manifest: Manifest) -> Split:
    split, encoder, second = manifest.splits[name], manifest.encoder, None
    if encoder is not None:
        shards = encoder.shards[name]
        tokens = sum(s.tokens for s in shards)
        same = replace(split, tokens=tokens, shards=shards)
        second = Split(folder, name, same, encoder.dtype, encoder.vocab_size)
    return Split(folder, name, split, manifest.dtype, manifest.vocab_size, second)


def check_one_tokenizer(opened: Sequence[Shards]) -> None:
    """Raises ValueError naming folders that were prepared with another tokenizer than the first."""
    for shards in opened:
        theirs, first = (_fingerprints(s.manifest) for s in (shards, opened[0]))
        if theirs != first:
            raise ValueError(
                f"{shards.folder} was prepared with another tokenizer than {opened[0].folder} "
                f"(fingerprints {' and '.join(theirs)}, not {' and '.join(first)}): the same ids "
                "would mean other words. Prepare all corpora of a run with the same tokenizers."
            )


def _fingerprints(manifest: Manifest) -> list[str]:
    """Of the tokenizer, and of that of a second stream."""
    encoder = manifest.encoder
    return [manifest.tokenizer_fingerprint, *([encoder.tokenizer_fingerprint] if encoder else [])]

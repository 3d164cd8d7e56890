"""The indexed datasets of Megatron-LM, NAME.bin and NAME.idx: sequences of ids, and documents.

NAME.bin: the ids of all sequences, one behind the other. NAME.idx, little-endian:

    9 bytes    4d4d 4944 4944 5800 00 ("MMIDIDX", 0, 0)
    uint64     version, 1
    uint8      code of the type of the ids, see ID_TYPES
    uint64     sequences S
    uint64     D, documents + 1
    int32[S]   ids of each sequence
    int64[S]   byte of .bin at which each begins
    int64[D]   number of each document's first sequence, and S

Older versions of Megatron-LM, DeepSpeed and GPT-NeoX write the same. Every number is checked
before an id is read: a file that is cut off, or an index beside another's ids, is an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged

MAGIC = b"MMIDIDX\0\0"
HEADER_BYTES = len(MAGIC) + 8 + 1 + 8 + 8
ID_TYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOAT_TYPES = (6, 7)
_BLOCK = 1 << 20  # numbers of the index that are checked at once


@dataclass(frozen=True)
class IndexedBatch:
    """N documents that follow one another: their ids end to end, and the sequences they are of."""

    first_document: int
    ids: NDArray[np.int64]
    sequence_lengths: NDArray[np.int64]
    sequences_N: NDArray[np.int64]  # how many of them each document has

    @property
    def lengths_N(self) -> NDArray[np.int64]:
        """Ids of each document."""
        return ragged.sums(self.sequence_lengths, ragged.offsets(self.sequences_N))


class IndexedFiles:
    """Both files of a data set, mapped. Raises ValueError where they are not what they should be.

    prefix: "NAME", "NAME.bin" or "NAME.idx".
    """

    def __init__(self, prefix: str | Path) -> None:
        name = str(prefix)
        for ending in (".bin", ".idx"):
            name = name.removesuffix(ending)
        self.tokens_path, self.index_path = Path(f"{name}.bin"), Path(f"{name}.idx")
        for path in (self.index_path, self.tokens_path):
            if not path.is_file():
                raise ValueError(f"--input {prefix}: there is no file {path}.")
        self._read_index()
        _, itemsize = divmod(self.tokens_path.stat().st_size, self._dtype.itemsize)
        if itemsize:
            raise self._error(
                f"its size is no multiple of {self._dtype.itemsize}, the bytes of an id"
            )
        self._ids = _mapped(self.tokens_path, self._dtype)
        self._check_sequences()
        self._check_documents()

    @property
    def num_documents(self) -> int:
        """Documents, those without an id included."""
        return len(self._firsts) - 1

    def batches(self, max_ids: int, max_document_ids: int) -> Iterator[IndexedBatch]:
        """All documents in their order, about `max_ids` at a time but whole ones.

        Raises ValueError at a document of more than `max_document_ids`, before it is read.
        """
        begin = 0
        while begin < self.num_documents:
            firsts = self._firsts[begin : begin + 65_537].astype(np.int64)
            places = self._places(firsts)
            take = int(np.searchsorted(places, places[0] + max_ids, side="right")) - 1
            take = min(max(take, 1), len(firsts) - 1)
            is_too_long = np.diff(places[: take + 1]) > max_document_ids
            if is_too_long.any():
                number = begin + int(is_too_long.argmax())
                raise too_many_ids(self.tokens_path, number, max_document_ids)
            yield IndexedBatch(
                first_document=begin,
                ids=self._ids[places[0] : places[take]].astype(np.int64),
                sequence_lengths=self._lengths[firsts[0] : firsts[take]].astype(np.int64),
                sequences_N=np.diff(firsts[: take + 1]),
            )
            begin += take

    def _places(self, sequence_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where sequences begin among the ids; the one behind the last at their number."""
        if not len(self._lengths):
            return np.zeros(len(sequence_N), np.int64)
        inside = np.minimum(sequence_N, len(self._lengths) - 1)
        begins = self._pointers[inside] // self._dtype.itemsize
        return np.where(sequence_N == len(self._lengths), len(self._ids), begins)

    def _read_index(self) -> None:
        size_bytes = self.index_path.stat().st_size
        with self.index_path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        if not header.startswith(MAGIC):
            raise self._error(f"it does not begin with {MAGIC!r}", self.index_path)
        if len(header) < HEADER_BYTES:
            raise self._error("it is cut off inside its header", self.index_path)
        version, sequences, documents = (
            int.from_bytes(header[at : at + 8], "little") for at in (9, 18, 26)
        )
        if version != 1:
            raise self._error(f"it is of version {version}, this program reads 1", self.index_path)
        self._dtype = self._id_type(header[17])
        needed_bytes = HEADER_BYTES + 12 * sequences + 8 * documents
        if size_bytes == needed_bytes + sequences > needed_bytes:
            raise self._error("it has a mode for each sequence, so it is no text", self.index_path)
        if size_bytes != needed_bytes:
            reason = f"it has {size_bytes} bytes, its header asks for {needed_bytes}"
            raise self._error(reason, self.index_path)
        raw = _mapped(self.index_path, np.dtype(np.uint8))
        first, second = HEADER_BYTES + 4 * sequences, HEADER_BYTES + 12 * sequences
        self._lengths = raw[HEADER_BYTES:first].view("<i4")
        self._pointers = raw[first:second].view("<i8")
        self._firsts = raw[second:].view("<i8")

    def _id_type(self, code: int) -> np.dtype:
        if code in ID_TYPES:
            return np.dtype(ID_TYPES[code])
        reason = "ids that are no integers" if code in _FLOAT_TYPES else "ids of an unknown type"
        raise self._error(f"it has {reason} (code {code})", self.index_path)

    def _check_sequences(self) -> None:
        """Sequences must follow one another from the first byte of .bin to its last."""
        place, itemsize = 0, self._dtype.itemsize
        for at in range(0, len(self._lengths), _BLOCK):
            lengths = self._lengths[at : at + _BLOCK]
            if (is_wrong := lengths < 0).any():
                number = at + int(is_wrong.argmax())
                raise self._error(f"sequence {number} has a length below 0", self.index_path)
            ends = place + np.cumsum(lengths, dtype=np.int64)
            begins = np.append(place, ends[:-1]) * itemsize
            if (is_wrong := self._pointers[at : at + _BLOCK] != begins).any():
                number = at + int(is_wrong.argmax())
                reason = f"sequence {number} does not begin where the one before it ends"
                raise self._error(reason, self.index_path)
            place = int(ends[-1])
        if place != len(self._ids):
            raise self._error(
                f"it holds {len(self._ids)} ids, {self.index_path.name} tells of {place}: it is "
                "cut off, or the two files do not belong together"
            )

    def _check_documents(self) -> None:
        if not len(self._firsts) or self._firsts[0] or self._firsts[-1] != len(self._lengths):
            reason = f"its documents do not go from sequence 0 to {len(self._lengths)}"
            raise self._error(reason, self.index_path)
        for at in range(0, len(self._firsts), _BLOCK):
            if (is_wrong := np.diff(self._firsts[at : at + _BLOCK + 1]) < 0).any():
                number = at + int(is_wrong.argmax())
                raise self._error(f"document {number} ends before it begins", self.index_path)

    def _error(self, reason: str, path: Path | None = None) -> ValueError:
        return ValueError(f"{path or self.tokens_path}: {reason}. Copy both files again.")


def too_many_ids(path: Path, document: int, limit: int) -> ValueError:
    """A document that is too long to be one, by its number."""
    return ValueError(
        f"{path}: document {document} has more than {limit:,} ids, the most that is read as one."
    )


def _mapped(path: Path, dtype: np.dtype) -> NDArray:
    if not path.stat().st_size:  # which cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r").view(np.ndarray)

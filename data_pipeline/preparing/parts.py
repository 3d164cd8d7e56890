"""The part of a slice: its documents, tokenized, until all parts are merged into shards.

    slices/FINGERPRINT.part     blocks of documents in their order
    slices/FINGERPRINT.json     what the part holds and left out; there means the slice is finished

A block: three uint64 (documents N, tokens, sentence ends), with a second stream two more (its
tokens and sentence ends), then, all little-endian, the fields of `_block_layout`. Both files are
written under a name of their own and renamed, so that a slice that two processes work on at once is
right whoever comes last: it depends on the input alone.
"""

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline.storage.stored import StoredDocuments

_ENCODER = "encoder_"  # before the names of a second stream's fields
_COUNTED_BY_DOCUMENT = ("lengths_N", "prompt_lengths_N", "num_ends_N")
_COUNTS = (3, 5)  # numbers in front of a block of one stream, and of two


@dataclass(frozen=True, kw_only=True)
class PieceRecord:
    """What was read of one piece; size_bytes and xxh3 are None where it has no bytes."""

    documents: int
    size_bytes: int | None
    xxh3: str | None


@dataclass(frozen=True, kw_only=True)
class SliceRecord:
    """What a finished part holds, and what reading the slice left out."""

    fingerprint: str
    documents: int
    size_bytes: int
    xxh3: str
    pieces: tuple[PieceRecord, ...]
    skipped: dict[str, int]
    cleaned: dict[str, int]
    unusable: dict[str, int]


class PartWriter:
    """The part of one slice in `folder`, there once `finish` has returned.

    with PartWriter(folder, fingerprint, dtype) as part:
        part.add(stored, identity_N2)
        part.finish(pieces, ...)
    """

    def __init__(self, folder: Path, fingerprint: str, *dtypes: str) -> None:
        """dtypes: of the ids of each stream."""
        self._folder, self._fingerprint, self._dtypes = folder, fingerprint, dtypes
        self._partial = folder / f".{fingerprint}.{secrets.token_hex(4)}"
        self._hash = xxhash.xxh3_128()
        self._size_bytes = self.documents = 0

    def __enter__(self) -> "PartWriter":
        self._file = self._partial.open("xb")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def add(self, stored: StoredDocuments, identity_N2: NDArray[np.uint64]) -> None:
        """Append documents as one block."""
        counts = [len(stored), len(stored.tokens), len(stored.sentence_ends)]
        arrays = vars(stored) | {"identity_N2": identity_N2}
        if len(self._dtypes) > 1:
            second = stored.encoder
            assert second is not None
            counts += [len(second.tokens), len(second.sentence_ends)]
            arrays |= {_ENCODER + name: array for name, array in vars(second).items()}
        content = [np.array(counts, "<u8").tobytes()]
        content += [
            arrays[n].astype(d).tobytes() for n, d, _ in _block_layout(counts, self._dtypes)
        ]
        block = b"".join(content)
        self._file.write(block)
        self._hash.update(block)
        self._size_bytes += len(block)
        self.documents += len(stored)

    def finish(
        self,
        pieces: list[PieceRecord],
        skipped: dict[str, int],
        cleaned: dict[str, int],
        unusable: dict[str, int],
    ) -> SliceRecord:
        """Put the part and its record in place, safe against a loss of power."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        record = SliceRecord(
            fingerprint=self._fingerprint,
            documents=self.documents,
            size_bytes=self._size_bytes,
            xxh3=self._hash.hexdigest(),
            pieces=tuple(pieces),
            skipped=skipped,
            cleaned=cleaned,
            unusable=unusable,
        )
        text = json.dumps(asdict(record), ensure_ascii=False)
        os.rename(self._partial, part_path(self._folder, self._fingerprint))
        with self._partial.open("x", encoding="utf-8") as file:
            file.write(f"{text}\n{_checksum(text)}\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(self._partial, _record_path(self._folder, self._fingerprint))
        return record


def part_path(folder: Path, fingerprint: str) -> Path:
    """The file of a part."""
    return folder / f"{fingerprint}.part"


def finished_slice(folder: Path, fingerprint: str) -> SliceRecord | None:
    """The record of a slice if it is finished, else None; whole is only what `blocks` has read."""
    try:
        text, checksum, _ = _record_path(folder, fingerprint).read_text("utf-8").split("\n")
        size_bytes = part_path(folder, fingerprint).stat().st_size
    except (FileNotFoundError, ValueError):
        return None
    if checksum != _checksum(text):
        return None
    content = json.loads(text)
    pieces = tuple(PieceRecord(**p) for p in content["pieces"])
    record = SliceRecord(**content | {"pieces": pieces})
    return record if (record.fingerprint, record.size_bytes) == (fingerprint, size_bytes) else None


def remove_slice(folder: Path, fingerprint: str) -> None:
    """Remove a part, its record and its download, the record first."""
    _record_path(folder, fingerprint).unlink(missing_ok=True)
    part_path(folder, fingerprint).unlink(missing_ok=True)
    (folder / f"{fingerprint}.bytes").unlink(missing_ok=True)  # see downloads.py


def blocks(
    folder: Path, record: SliceRecord, *dtypes: str
) -> Iterator[tuple[StoredDocuments, NDArray[np.uint64]]]:
    """The documents of a part and what tells equal ones, (N, 2), a block at a time.

    Raises ValueError at its end, or before, if the part is not what its record says; it is removed
    then, so that the slice is done again by the next run.
    """
    hashed, left, documents_left = xxhash.xxh3_128(), record.size_bytes, record.documents
    is_whole = False
    with part_path(folder, record.fingerprint).open("rb") as file:
        num_counts = _COUNTS[len(dtypes) - 1]
        while left:
            header = file.read(8 * num_counts)
            is_cut_off = len(header) < 8 * num_counts
            counts = [] if is_cut_off else np.frombuffer(header, "<u8").tolist()
            layout = _block_layout(counts, dtypes) if counts else []
            size_bytes = sum(np.dtype(d).itemsize * length for _, d, length in layout)
            left -= len(header) + size_bytes
            if not layout or left < 0:
                break
            content = file.read(size_bytes)
            hashed.update(header)
            hashed.update(content)
            stored, identity_N2 = _block(content, layout)
            documents_left -= len(stored)
            # The hash is known at the end: counts that tell of other arrays must not get so far.
            streams = [stored, *([stored.encoder] if stored.encoder else [])]
            if not all(map(_adds_up, streams)) or documents_left < 0:
                break
            yield stored, identity_N2
        else:
            is_whole = documents_left == 0 and hashed.hexdigest() == record.xxh3
    if not is_whole:
        remove_slice(folder, record.fingerprint)
        raise ValueError(
            f"{part_path(folder, record.fingerprint)} is damaged and was removed. Run the same "
            "command again: it makes this slice anew."
        )


def _block_layout(counts: Sequence[int], dtypes: Sequence[str]) -> list[tuple[str, str, int]]:
    """The fields of a block of documents, tokens, sentence ends: name, dtype, length."""
    documents, tokens, sentence_ends, *second = counts
    ids = [np.dtype(dtype).newbyteorder("<").str for dtype in dtypes]
    layout = [
        ("lengths_N", "<u4", documents),
        ("prompt_lengths_N", "<u4", documents),
        ("num_ends_N", "<u4", documents),
        ("text_hash_N", "<u8", documents),
        ("identity_N2", "<u8", 2 * documents),
        ("sentence_ends", "<u4", sentence_ends),
        ("tokens", ids[0], tokens),
    ]
    if second:
        layout += [(f"{_ENCODER}{name}", "<u4", documents) for name in _COUNTED_BY_DOCUMENT]
        layout += [
            (f"{_ENCODER}sentence_ends", "<u4", second[1]),
            (f"{_ENCODER}tokens", ids[1], second[0]),
        ]
    return layout


def _block(
    content: bytes, layout: list[tuple[str, str, int]]
) -> tuple[StoredDocuments, NDArray[np.uint64]]:
    arrays: dict[str, NDArray] = {}
    start = 0
    for name, dtype, length in layout:
        arrays[name] = np.frombuffer(content, dtype, length, start)
        start += arrays[name].nbytes
    identity_N2 = arrays.pop("identity_N2").reshape(-1, 2)
    second = {n.removeprefix(_ENCODER): a for n, a in arrays.items() if n.startswith(_ENCODER)}
    first = {name: array for name, array in arrays.items() if not name.startswith(_ENCODER)}
    stored = StoredDocuments(**_wide(first))
    if second:
        encoder = StoredDocuments(**_wide(second), text_hash_N=stored.text_hash_N)
        stored = replace(stored, encoder=encoder)
    return stored, identity_N2


def _wide(arrays: dict[str, NDArray]) -> dict[str, Any]:
    """The same with counts of 64 bits."""
    counts = (*_COUNTED_BY_DOCUMENT, "sentence_ends")
    return arrays | {name: arrays[name].astype(np.int64) for name in counts}


def _adds_up(stored: StoredDocuments) -> bool:
    """True where the documents own all tokens and sentence ends, and no other."""
    owned = (int(stored.lengths_N.sum()), int(stored.num_ends_N.sum()))
    return owned == (len(stored.tokens), len(stored.sentence_ends))


def _record_path(folder: Path, fingerprint: str) -> Path:
    return folder / f"{fingerprint}.json"


def _checksum(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8"))

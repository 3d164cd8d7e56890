"""What the manifest says of a merged folder: its shards, its sources, what was left out."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline.preparing.downloads import open_again
from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.preparing.parts import PieceRecord, SliceRecord, remove_slice
from data_pipeline.preparing.prepare_slice import counted
from data_pipeline.preparing.request import PrepareSettings, Request, Slice
from data_pipeline.preparing.sharding import SplitWriters, dtype_of_ids
from data_pipeline.reading.byte_stream import CHUNK_BYTES, size_and_hash
from data_pipeline.reading.file_kinds import Source
from data_pipeline.storage.manifest import (
    ENCODER_TOKENIZER_FOLDER,
    FORMAT,
    TOKENIZER_FOLDER,
    EncoderEntry,
    FileEntry,
    Manifest,
    ShardEntry,
    SourceEntry,
    SplitEntry,
    split_fingerprint,
)
from data_pipeline.tokenizing.tokenizer import Tokenizer


def build_manifest(
    request: Request,
    records: list[SliceRecord],
    repeats: NDArray[np.bool_] | None,
    written: SplitWriters,
    work: OutputFolder,
    folder: Path,
    on_bytes: Callable[[int], object],
) -> Manifest:
    """Close the shards in `folder`, write the tokenizer beside them, and say what all of it is.

    repeats: which of all documents were left out as duplicates; None: not looked for.
    on_bytes: told the bytes of input that are read once more, `bytes_read_again` in all.
    Raises ValueError if no document is there to train on, or an input is not what was read.
    """
    request.tokenizer.save(folder / TOKENIZER_FOLDER)
    second = request.encoder_tokenizer
    if second is not None:
        second.save(folder / ENCODER_TOKENIZER_FOLDER)
    sources = tuple(_source_entries(request, records, repeats, work.slices, on_bytes))
    settings, tokenizer = request.settings, request.tokenizer
    skipped = total([request.skipped, *(c for r in records for c in (r.skipped, r.unusable))])
    if repeats is not None:
        skipped["duplicate"] = int(repeats.sum())
    shards = written.close()
    encoder = _encoder_entry(second, written, folder) if second else None
    splits = split_entries(shards, request.dtype, tokenizer.fingerprint, encoder)
    _refuse_empty(splits, settings, skipped)
    return Manifest(
        format=FORMAT,
        dtype=request.dtype,
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
        aliases=tokenizer.aliases,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokenizer_files=file_entries(folder / TOKENIZER_FOLDER),
        settings=settings.recorded(),
        source=settings.source,
        licence=settings.licence,
        sources=sources,
        skipped=counted(skipped),
        cleaned=counted(total([r.cleaned for r in records])),
        splits=splits,
        encoder=encoder,
    )


def _encoder_entry(tokenizer: Tokenizer, written: SplitWriters, folder: Path) -> EncoderEntry:
    """What the manifest says of the second stream, whose shards are closed."""
    writers = written.writers.items()
    return EncoderEntry(
        dtype=dtype_of_ids(tokenizer.vocab_size),
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
        aliases=tokenizer.aliases,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokenizer_files=file_entries(folder / ENCODER_TOKENIZER_FOLDER),
        shards={name: writer.encoder_shards for name, writer in writers},
        longest_tokens={n: (w.longest_tokens[0], w.longest_tokens[1]) for n, w in writers},
    )


def bytes_read_again(request: Request) -> int:
    """Bytes of the files that lie in several slices: each is hashed as a whole, in the merge."""
    return sum(s.size_bytes for s in request.slices if s.pieces[0].end is not None)


def total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Counts by reason, added up."""
    added: Counter[str] = Counter()
    for one in counts:
        added.update(one)
    return added


def split_entries(
    shards: Mapping[str, tuple[ShardEntry, ...]],
    dtype: str,
    tokenizer: str,
    encoder: EncoderEntry | None = None,
) -> dict[str, SplitEntry]:
    """What the manifest says of the splits with these shards.

    tokenizer: its fingerprint. encoder: the second stream, where there is one.
    """
    entries = {}
    for name, own in shards.items():
        second = encoder and (encoder.dtype, encoder.tokenizer_fingerprint, encoder.shards[name])
        entries[name] = SplitEntry(
            documents=sum(s.documents for s in own),
            tokens=sum(s.tokens for s in own),
            fingerprint=split_fingerprint(dtype, tokenizer, own, second),
            shards=own,
        )
    return entries


def _refuse_empty(
    splits: dict[str, SplitEntry], settings: PrepareSettings, skipped: Counter[str]
) -> None:
    if splits["train"].documents:
        return
    left_out = ", ".join(f"{n} {reason}" for reason, n in counted(skipped).items())
    if splits["validation"].documents:
        raise ValueError(
            "all documents fell to validation, none to train. --validation is "
            f"{settings.validation}; choose a smaller share."
        )
    raise ValueError(f"the inputs hold no document ({left_out or 'nothing to read'}).")


def _source_entries(
    request: Request,
    records: list[SliceRecord],
    repeats: NDArray[np.bool_] | None,
    folder: Path,
    on_bytes: Callable[[int], object],
) -> Iterator[SourceEntry]:
    """What was read of each source, its pieces put together again.

    Raises ValueError if a file is not the one any more that was read; its parts are removed then.
    """
    pieces: dict[int, list[tuple[Slice, PieceRecord]]] = {}
    documents: Counter[int] = Counter()
    first = 0
    for work, record in zip(request.slices, records, strict=True):
        for piece, read in zip(work.pieces, record.pieces, strict=True):
            stop = first + read.documents
            left_out = int(repeats[first:stop].sum()) if repeats is not None else 0
            documents[piece.number] += read.documents - left_out
            pieces.setdefault(piece.number, []).append((work, read))
            first = stop
    for number, source in enumerate(request.sources):
        _, read = pieces[number][0]
        size_bytes, xxh3 = read.size_bytes, read.xxh3
        if len(pieces[number]) > 1:
            if not (joined := _joined(source, pieces[number], folder, on_bytes)):
                raise _changed(request, number, folder)
            size_bytes, xxh3 = joined
        yield SourceEntry(
            path=source.name, documents=documents[number], size_bytes=size_bytes, xxh3=xxh3
        )


def _joined(
    source: Source,
    pieces: list[tuple[Slice, PieceRecord]],
    folder: Path,
    on_bytes: Callable[[int], object],
) -> tuple[int, str] | None:
    """Size and hash of a whole file; None unless its pieces are those that were read."""
    whole, size_bytes = xxhash.xxh3_128(), 0
    for work, piece in pieces:
        assert piece.size_bytes is not None
        hashed, left = xxhash.xxh3_128(), piece.size_bytes
        with open_again(source, work, size_bytes, left, folder) as raw:
            while left and (content := raw.read(min(left, CHUNK_BYTES))):
                whole.update(content)
                hashed.update(content)
                on_bytes(len(content))
                left -= len(content)
        if left or hashed.hexdigest() != piece.xxh3:
            return None
        size_bytes += piece.size_bytes
    return size_bytes, whole.hexdigest()


def _changed(request: Request, number: int, folder: Path) -> ValueError:
    """A file that changed without its size and time doing so; its parts go."""
    for work in request.slices:
        if work.pieces[0].number == number:
            remove_slice(folder, work.fingerprint)
    name = request.sources[number].name
    return ValueError(f"{name} has changed since it was read. Run the same command again.")


def file_entries(folder: Path) -> tuple[FileEntry, ...]:
    """The files of a folder inside the one of the manifest, by name."""
    entries = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as raw:
            size_bytes, xxh3 = size_and_hash(raw)
        entries.append(
            FileEntry(path=f"{folder.name}/{path.name}", size_bytes=size_bytes, xxh3=xxh3)
        )
    return tuple(entries)

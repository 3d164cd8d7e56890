"""Documents to shards: `python -m data_pipeline prepare`. The same inputs give the same bytes.

    files -> documents -> ids and sentence ends -> train or validation -> shards -> manifest, last

A document goes to validation by the hash of its text, so the choice is the same in every corpus.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline.byte_stream import size_and_hash
from data_pipeline.documents import Document, ReadSettings, Tally, read_source
from data_pipeline.file_kinds import Source
from data_pipeline.manifest import (
    FORMAT,
    MANIFEST_FILE,
    SPLITS,
    TOKENIZER_FOLDER,
    FileEntry,
    Manifest,
    SourceEntry,
    SplitEntry,
    read_manifest,
    split_fingerprint,
    write_manifest,
)
from data_pipeline.output_folder import OutputFolder, check_named
from data_pipeline.sentences import ends_in_tokens
from data_pipeline.shard_writer import ShardWriter
from data_pipeline.sources import find_sources, total_bytes
from data_pipeline.stored import StoredDocuments
from data_pipeline.text_lines import text_encoding
from data_pipeline.tokenizer import Tokenizer, open_tokenizer
from data_pipeline.watch import Watch, unwatched

_SHARD_BYTES = 256 << 20  # of a token file, where shard_tokens is not given
_MAX_SERIES = 256  # shards open at once, of each split
_BATCH_CHARACTERS = 1 << 20  # text encoded in one call of the tokenizer


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """What prepare is asked for."""

    input: list[str]
    tokenizer: str
    output: str
    validation: float = 0.0
    """Share of the documents that go to validation, in [0, 1)."""
    shard_tokens: int | None = None
    """Tokens after which a shard is closed; None: token files of 256 MiB."""
    mix: int = 1
    """Series of shards that documents are dealt to by the hash of their text; 1: in their order."""
    aliases: dict[str, str] = field(default_factory=dict)
    source: str | None = None
    licence: str | None = None
    read: ReadSettings = field(default_factory=ReadSettings)

    def __post_init__(self) -> None:
        check_named("--output", self.output)
        check_named("--tokenizer", self.tokenizer)
        if not 0.0 <= self.validation < 1.0:
            raise ValueError(f"--validation must lie in [0, 1), got {self.validation}.")
        if self.shard_tokens is not None and self.shard_tokens < 1:
            raise ValueError(f"--shard-tokens must be at least 1, got {self.shard_tokens}.")
        if not 1 <= self.mix <= _MAX_SERIES:
            raise ValueError(f"--mix must lie in 1..{_MAX_SERIES}, got {self.mix}.")
        text_encoding(self.read.encoding)

    def recorded(self) -> dict[str, Any]:
        """The part that decides about the bytes of the shards, as the manifest holds it."""
        return {
            "validation": self.validation,
            "shard_tokens": self.shard_tokens,
            "mix": self.mix,
            **asdict(self.read),
        }


class AlreadyPrepared(Exception):
    """The output is finished and was made by the same request from the same files."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__()
        self.manifest = manifest


def prepare(settings: PrepareSettings, watch: Watch = unwatched) -> Manifest:
    """Write the folder of shards that `settings` asks for and give its manifest.

    watch: opens a progress bar over the bytes of the inputs.
    Raises ValueError on anything wrong with the inputs, AlreadyPrepared if there is nothing to do.
    """
    settings = replace(
        settings, read=replace(settings.read, encoding=text_encoding(settings.read.encoding))
    )
    tokenizer = open_tokenizer(settings.tokenizer, settings.aliases or None)
    tally = Tally()
    sources = find_sources(settings.input, tally.skipped)
    output = Path(settings.output)
    if (output / MANIFEST_FILE).exists():
        _refuse_finished(output, settings, tokenizer, sources)
    with OutputFolder(output) as partial, watch(total_bytes(sources)) as on_bytes:
        return _write(partial, settings, tokenizer, sources, tally, on_bytes)


def encode_documents(
    documents: Iterable[Document], tokenizer: Tokenizer, tally: Tally
) -> Iterator[StoredDocuments]:
    """Documents with their ids and sentence ends, in order; those without a token are counted."""
    for batch in _batches(documents):
        texts = [d.text for d in batch]
        encoded = tokenizer.encode_with_offsets(texts)
        ends, num_ends_N = ends_in_tokens(texts, encoded)
        hashes = [xxhash.xxh3_64_intdigest(t.encode("utf-8")) for t in texts]
        stored = StoredDocuments(
            tokens=encoded.ids,
            lengths_N=np.diff(encoded.offsets_N1),
            prompt_lengths_N=np.zeros(len(batch), np.int64),
            sentence_ends=ends,
            num_ends_N=num_ends_N,
            text_hash_N=np.array(hashes, np.uint64),
        )
        if any(d.prompt for d in batch):
            stored = stored.with_prompts(tokenizer.encode([d.prompt for d in batch]))
        has_text_N = np.diff(encoded.offsets_N1) > 0
        tally.skipped["no_tokens"] += int((~has_text_N).sum())
        yield stored.take(has_text_N)


def is_validation(text_hash_N: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """True for a `share` of all hashes, always the same ones and growing with the share."""
    return text_hash_N < np.uint64(share * 2.0**64)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document.text) + len(document.prompt)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _write(
    folder: Path,
    settings: PrepareSettings,
    tokenizer: Tokenizer,
    sources: list[Source],
    tally: Tally,
    on_bytes: Callable[[int], object],
) -> Manifest:
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "int32"
    shard_tokens = settings.shard_tokens or _SHARD_BYTES // np.dtype(dtype).itemsize
    writers = {
        name: ShardWriter(folder, name, dtype, shard_tokens, settings.mix) for name in SPLITS
    }
    entries = []
    for source in sources:
        documents = 0
        read = read_source(source, settings.read, tally, on_bytes)
        for stored in encode_documents(read, tokenizer, tally):
            held_out_N = is_validation(stored.text_hash_N, settings.validation)
            writers["train"].add(stored.take(~held_out_N))
            writers["validation"].add(stored.take(held_out_N))
            documents += len(stored)
        entries.append(
            SourceEntry(
                path=source.name, documents=documents, size_bytes=tally.size_bytes, xxh3=tally.xxh3
            )
        )
    tokenizer.save(folder / TOKENIZER_FOLDER)
    splits = {
        name: _split_entry(writer, dtype, tokenizer.fingerprint) for name, writer in writers.items()
    }
    _refuse_empty(splits, settings, tally)
    manifest = Manifest(
        format=FORMAT,
        dtype=dtype,
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
        aliases=tokenizer.aliases,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokenizer_files=_file_entries(folder / TOKENIZER_FOLDER),
        settings=settings.recorded(),
        source=settings.source,
        licence=settings.licence,
        sources=tuple(entries),
        skipped=dict(sorted((+tally.skipped).items())),
        cleaned=dict(sorted((+tally.cleaned).items())),
        splits=splits,
    )
    write_manifest(manifest, folder)
    return manifest


def _split_entry(writer: ShardWriter, dtype: str, tokenizer_fingerprint: str) -> SplitEntry:
    shards = writer.close()
    return SplitEntry(
        documents=sum(s.documents for s in shards),
        tokens=sum(s.tokens for s in shards),
        fingerprint=split_fingerprint(dtype, tokenizer_fingerprint, shards),
        shards=shards,
    )


def _refuse_empty(splits: dict[str, SplitEntry], settings: PrepareSettings, tally: Tally) -> None:
    if splits["train"].documents:
        return
    left_out = ", ".join(f"{n} {reason}" for reason, n in sorted((+tally.skipped).items()))
    if splits["validation"].documents:
        raise ValueError(
            "all documents fell to validation, none to train. --validation is "
            f"{settings.validation}; choose a smaller share."
        )
    raise ValueError(f"the inputs hold no document ({left_out or 'nothing to read'}).")


def _file_entries(folder: Path) -> tuple[FileEntry, ...]:
    entries = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as raw:
            size_bytes, xxh3 = size_and_hash(raw)
        entries.append(
            FileEntry(path=f"{folder.name}/{path.name}", size_bytes=size_bytes, xxh3=xxh3)
        )
    return tuple(entries)


def _refuse_finished(
    output: Path, settings: PrepareSettings, tokenizer: Tokenizer, sources: list[Source]
) -> None:
    """Raise AlreadyPrepared if a finished output answers this request, else ValueError."""
    manifest = read_manifest(output)
    asked = settings.recorded()
    made = {"mix": 1} | manifest.settings  # folders older than the option have one series
    changed = [name for name in asked if asked[name] != made.get(name)]
    if tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        changed.append("tokenizer")
    if (settings.source, settings.licence) != (manifest.source, manifest.licence):
        changed.append("source or licence")
    if not changed:
        changed = _changed_files(sources, manifest.sources)
    if not changed:
        raise AlreadyPrepared(manifest)
    raise ValueError(
        f"--output {output} is finished already, made by another request (changed: "
        f"{', '.join(changed)}). Choose another name, or remove it."
    )


def _changed_files(sources: list[Source], made: tuple[SourceEntry, ...]) -> list[str]:
    if [s.name for s in sources] != [m.path for m in made]:
        return ["the list of input files"]
    changed = []
    for source, entry in zip(sources, made, strict=True):
        if source.open is None or "://" in source.name:  # not fetched only to be compared
            if source.size_bytes != entry.size_bytes:
                changed.append(source.name)
            continue
        with source.open() as raw:
            _, xxh3 = size_and_hash(raw)
        if xxh3 != entry.xxh3:
            changed.append(source.name)
    return changed

"""Indexed datasets of Megatron-LM to shards: `python -m data_pipeline import-megatron`.

Ids stay as they are. They must be of the tokenizer that is named, which is not taken on trust: an
id outside its own vocabulary is an error, a control id too, and the text of a document, tokenized
again, must give the same ids for at least half of the documents of the first batch.

The end-of-document id that Megatron's --append-eod leaves is taken off: training adds its own.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from data_pipeline.preparing.megatron_documents import IndexedReader
from data_pipeline.preparing.megatron_files import IndexedFiles
from data_pipeline.preparing.merged_manifest import file_entries, split_entries
from data_pipeline.preparing.output_folder import OutputFolder, check_named
from data_pipeline.preparing.sharding import SplitWriters, check_sharding, dtype_of_ids
from data_pipeline.reading.byte_stream import size_and_hash
from data_pipeline.reading.file_kinds import scrubbed
from data_pipeline.storage.manifest import (
    FORMAT,
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    Manifest,
    SourceEntry,
    write_manifest,
)
from data_pipeline.tokenizing.tokenizer import Tokenizer, open_tokenizer
from data_pipeline.watch import Watch, unwatched

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """What import-megatron is asked for."""

    input: list[str]
    tokenizer: str
    output: str
    validation: float = 0.0
    """Share of the documents that go to validation, in [0, 1)."""
    shard_tokens: int | None = None
    """Tokens after which a shard is closed; None: token files of 256 MiB."""
    mix: int = 1
    """Series of shards that documents are dealt to by the hash of their text; 1: in their order."""
    end_id: int | Literal["auto", "none"] = "auto"
    """The id taken off where it ends a document; auto: eos, where the tokenizer itself has one."""
    vocab_size: int | None = None
    """Ids that the tokenizer must have by itself, without those added here; None: any number."""
    retokenize: Literal["check", "ignore"] = "check"
    """ignore: import ids that their own text does not give again."""
    aliases: dict[str, str] = field(default_factory=dict)
    source: str | None = None
    licence: str | None = None

    def __post_init__(self) -> None:
        if self.source is not None:  # as the manifest names it
            object.__setattr__(self, "source", scrubbed(self.source))
        check_named("--output", self.output)
        check_named("--tokenizer", self.tokenizer)
        check_sharding(self)


def parse_end_id(text: str) -> int | Literal["auto", "none"]:
    """--end-id as a number or one of its words. Raises ValueError on anything else."""
    if text == "auto" or text == "none":
        return text
    if not text.isdecimal():
        raise ValueError(f"--end-id must be auto, none or the number of an id, got {text}.")
    return int(text)


def import_megatron(settings: ImportSettings, watch: Watch = unwatched) -> Manifest:
    """Write the folder of shards that `settings` asks for and give its manifest.

    watch: opens a progress bar over the bytes of the .bin files.
    Raises ValueError on anything wrong with the files, or if their ids are not of the tokenizer.
    """
    if (Path(settings.output) / MANIFEST_FILE).exists():
        raise ValueError(
            f"--output {settings.output} is finished already. Choose another name, or remove it."
        )
    tokenizer = open_tokenizer(settings.tokenizer, settings.aliases or None)
    end_id = _end_id(settings, tokenizer)
    files = [IndexedFiles(prefix) for prefix in settings.input]
    with OutputFolder(settings.output) as work:
        folder = work.begin()
        total_bytes = sum(f.tokens_path.stat().st_size for f in files)
        with watch(total_bytes) as on_bytes:
            manifest = _write(folder, settings, tokenizer, end_id, files, on_bytes)
        write_manifest(manifest, folder)
        work.complete()
    return manifest


def _end_id(settings: ImportSettings, tokenizer: Tokenizer) -> int | None:
    """The id that is taken off the end of documents, after the vocabulary has been checked."""
    if settings.vocab_size not in (None, tokenizer.num_pieces):
        raise ValueError(
            f"--vocab-size says {settings.vocab_size} ids, the tokenizer {settings.tokenizer} has "
            f"{tokenizer.num_pieces} by itself. Name the tokenizer that the files were made with."
        )
    if settings.end_id == "none":
        return None
    if settings.end_id == "auto":
        eos = tokenizer.special.eos
        return eos if eos < tokenizer.num_pieces else None
    if not 0 <= settings.end_id < tokenizer.num_pieces:
        raise ValueError(
            f"--end-id must be auto, none or lie in [0, {tokenizer.num_pieces}), "
            f"got {settings.end_id}."
        )
    return settings.end_id


def _write(
    folder: Path,
    settings: ImportSettings,
    tokenizer: Tokenizer,
    end_id: int | None,
    files: list[IndexedFiles],
    on_bytes: Callable[[int], object],
) -> Manifest:
    dtype = dtype_of_ids(tokenizer.vocab_size)
    written = SplitWriters(folder, [dtype], settings)
    reader = IndexedReader(tokenizer, end_id, settings.retokenize == "check")
    entries: list[SourceEntry] = []
    for one in files:
        documents = 0
        for stored in reader.documents(one):
            written.add(stored)
            documents += len(stored)
        entries += [_source(one.tokens_path, documents, on_bytes), _source(one.index_path, 0)]
    tokenizer.save(folder / TOKENIZER_FOLDER)
    splits = split_entries(written.close(), dtype, tokenizer.fingerprint)
    if not splits["train"].documents:
        raise ValueError("no document is left to train on. Choose a smaller --validation.")
    _report(reader)
    return Manifest(
        format=FORMAT,
        dtype=dtype,
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
        aliases=tokenizer.aliases,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokenizer_files=file_entries(folder / TOKENIZER_FOLDER),
        settings=_recorded(settings, end_id),
        source=settings.source,
        licence=settings.licence,
        sources=tuple(entries),
        skipped=dict(+reader.skipped),
        cleaned={"end_ids": reader.num_ends} if reader.num_ends else {},
        splits=splits,
    )


def _recorded(settings: ImportSettings, end_id: int | None) -> dict[str, Any]:
    return {
        "imported": "megatron",
        "validation": settings.validation,
        "shard_tokens": settings.shard_tokens,
        "mix": settings.mix,
        "end_id": end_id,
        "retokenize": settings.retokenize,
    }


def _source(
    path: Path, documents: int, on_bytes: Callable[[int], object] = lambda _: None
) -> SourceEntry:
    with path.open("rb") as raw:
        size_bytes, xxh3 = size_and_hash(raw, on_bytes)
    return SourceEntry(path=str(path), documents=documents, size_bytes=size_bytes, xxh3=xxh3)


def _report(reader: IndexedReader) -> None:
    """Say what was assumed: whoever knows better can say so."""
    if reader.end_id is None:
        _log.info("No id was taken off the ends of documents.")
    else:
        name = reader.tokenizer.pieces([reader.end_id])[0]
        _log.info(
            "%d of %d documents ended with the id %d (%s), which was taken off: training adds it.",
            reader.num_ends, reader.num_documents, reader.end_id, name,
        )  # fmt: skip
    _log.info(
        "%d of %d stretches of text gave the same ids when tokenized again.",
        reader.num_same, reader.num_compared,
    )  # fmt: skip

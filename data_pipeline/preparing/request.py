"""What prepare is asked for, and everything that follows from it before a document is read.

Two processes that open the same request over the same files get the same slices under the same
fingerprints, wherever they run; that is all they need to know of each other.
"""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import xxhash

from data_pipeline.preparing.length_limits import LengthLimits
from data_pipeline.preparing.output_folder import check_named
from data_pipeline.preparing.sharding import check_sharding, dtype_of_ids
from data_pipeline.preparing.slices import Piece, plan_slices
from data_pipeline.reading import saved_dataset
from data_pipeline.reading.documents import ReadSettings
from data_pipeline.reading.file_kinds import Source, scrubbed
from data_pipeline.reading.sources import find_sources
from data_pipeline.reading.text_lines import text_encoding
from data_pipeline.reading.unusable import OnError, policy
from data_pipeline.storage.manifest import Dtype
from data_pipeline.tokenizing.tokenizer import Tokenizer, open_tokenizer

PART_FORMAT = 1  # raised whenever the same input would give other parts


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
    dedup: Literal["none", "exact"] = "none"
    """exact: a document whose text and prompt an earlier one has is left out."""
    on_error: OnError = "stop"
    """What is done about lines, rows and files that cannot be used; skip: left out and counted."""
    max_skipped: int = 1000
    """Lines, rows and files that may be skipped before the run ends after all."""
    workers: int | None = None
    """Processes at work; None: one for each CPU this process may use."""
    slice_bytes: int = 64 << 20
    """Input that is one piece of work, kept once it is finished; a whole file may be more."""
    aliases: dict[str, str] = field(default_factory=dict)
    encoder_tokenizer: str | None = None
    """A second tokenizer: shards then hold a second stream, the same documents in its ids."""
    encoder_aliases: dict[str, str] = field(default_factory=dict)
    lengths: LengthLimits = field(default_factory=LengthLimits)
    """Documents of other lengths are left out and counted."""
    source: str | None = None
    licence: str | None = None
    read: ReadSettings = field(default_factory=ReadSettings)

    def __post_init__(self) -> None:
        if self.source is not None:  # as the manifest names it
            object.__setattr__(self, "source", scrubbed(self.source))
        check_named("--output", self.output)
        check_named("--tokenizer", self.tokenizer)
        if self.encoder_tokenizer is not None:
            check_named("--encoder-tokenizer", self.encoder_tokenizer)
        elif self.encoder_aliases:
            raise ValueError("--encoder-alias has no effect without --encoder-tokenizer.")
        check_sharding(self)
        policy(self.on_error, self.max_skipped)
        for name in ("workers", "slice_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} must be at least 1, got {value}.")
        text_encoding(self.read.encoding)

    def recorded(self) -> dict[str, Any]:
        """The part that decides about the bytes of the shards, as the manifest holds it.

        Limits that are not set are left out, so that a folder without any is what it always was.
        """
        return {
            "validation": self.validation,
            "shard_tokens": self.shard_tokens,
            "mix": self.mix,
            "dedup": self.dedup,
            "on_error": self.on_error,
            **self.lengths.set_limits(),
            **asdict(self.read),
        }


@dataclass(frozen=True)
class Slice:
    """Work that is done at once, and a hex number that changes with anything it depends on."""

    pieces: tuple[Piece, ...]
    fingerprint: str

    @property
    def size_bytes(self) -> int:
        """About how many bytes are read."""
        sizes = [p.source.size_bytes if p.end is None else p.end - p.begin for p in self.pieces]
        return sum(size or 0 for size in sizes)

    def __str__(self) -> str:
        first, last = self.pieces[0], self.pieces[-1]
        if first.end is not None:
            return f"{first.source.name}, bytes {first.begin} to {first.end}"
        if len(self.pieces) == 1:
            return first.source.name
        return f"{first.source.name} to {last.source.name}"


@dataclass(frozen=True)
class Request:
    """Settings with all that they name, found and opened."""

    settings: PrepareSettings
    tokenizer: Tokenizer
    encoder_tokenizer: Tokenizer | None
    sources: list[Source]
    skipped: Counter[str]
    """Files that were left out when the sources were looked for."""
    versions: list[list[Any]]
    """Of each source, what changes when it does."""
    slices: list[Slice]

    @property
    def dtype(self) -> Dtype:
        """Of the ids in parts and shards."""
        return dtype_of_ids(self.tokenizer.vocab_size)

    @property
    def dtypes(self) -> list[Dtype]:
        """Of the ids of each stream."""
        second = self.encoder_tokenizer
        return [self.dtype, *([dtype_of_ids(second.vocab_size)] if second else [])]

    @property
    def fingerprint(self) -> str:
        """Changes with any slice."""
        return _hash([s.fingerprint for s in self.slices])


def open_request(settings: PrepareSettings) -> Request:
    """Find the sources, open the tokenizer, and plan the slices.

    Raises ValueError if an input or the tokenizer is not there or not what it must be.
    """
    encoding = text_encoding(settings.read.encoding)
    settings = replace(settings, read=replace(settings.read, encoding=encoding))
    tokenizer = open_tokenizer(settings.tokenizer, settings.aliases or None)
    encoder = None
    if settings.encoder_tokenizer is not None:
        try:
            encoder = open_tokenizer(settings.encoder_tokenizer, settings.encoder_aliases or None)
        except ValueError as error:
            said = str(error).replace("--alias", "--encoder-alias")
            raise ValueError(f"--encoder-tokenizer: {said}") from error
    skipped: Counter[str] = Counter()
    sources = find_sources(settings.input, skipped)
    _refuse_output_in_input(settings)
    common: list[Any] = [PART_FORMAT, tokenizer.fingerprint, settings.on_error]
    common.append(asdict(settings.read))
    if limits := settings.lengths.set_limits():
        common.append(limits)
    if encoder is not None:
        common.append({"encoder": encoder.fingerprint})
    versions = [_version(source) for source in sources]
    slices = [
        Slice(pieces, _hash([common, [[versions[p.number], p.begin, p.end] for p in pieces]]))
        for pieces in plan_slices(sources, settings.read, settings.slice_bytes)
    ]
    return Request(settings, tokenizer, encoder, sources, skipped, versions, slices)


def _refuse_output_in_input(settings: PrepareSettings) -> None:
    """Raise ValueError if what is written would be read, by this run or the next."""
    output = os.path.realpath(settings.output)
    for given in settings.input:
        folder = os.path.realpath(given)
        if os.path.isdir(folder) and output.startswith(os.path.join(folder, "")):
            raise ValueError(
                f"--output {settings.output} lies inside --input {given}, so that it would be "
                "input of the next run. Choose a place outside."
            )


def refuse_changed(request: Request, piece: Piece) -> None:
    """Raise ValueError if a file is not the one any more that was found."""
    if _version(piece.source) != request.versions[piece.number]:
        raise ValueError(
            f"{piece.source.name} was written to while it was read. Run the same command again "
            "when it is complete."
        )


def _version(source: Source) -> list[Any]:
    """What changes when a source does: its size, and on a disk the time it was written."""
    if source.kind == "saved_dataset":
        return [source.name, saved_dataset.version(source.location)]
    if source.open is None or "://" in source.name:
        return [source.name, source.size_bytes]
    now = os.stat(source.location)
    return [source.name, now.st_size, now.st_mtime_ns]


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogateescape"))

"""Documents out of sources. Nothing is dropped in silence: what is left out is counted by reason.

    "a\\n\\nb" in x.txt -> Document("x.txt:1", "a"), Document("x.txt:3", "b"), skipped {"blank": 1}

A missing, null or wrong field, broken JSON and bytes of another encoding are errors naming file and
line.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

from data_pipeline.sources import Source
from data_pipeline.text_lines import CountedStream, lines


@dataclass(frozen=True)
class Document:
    """One document. `prompt` stands in front of the text and is never learned."""

    id: str  # file and line, or row, it came from
    text: str
    prompt: str = ""


@dataclass(frozen=True, kw_only=True)
class ReadSettings:
    """How documents are cut out of files."""

    document: Literal["line", "paragraph", "file"] = "line"
    text_field: str = "text"
    prompt_field: str | None = None
    encoding: str = "utf-8"


@dataclass
class Tally:
    """What reading has left out or cleaned so far, and what the source read last was."""

    skipped: Counter[str] = field(default_factory=Counter)
    cleaned: Counter[str] = field(default_factory=Counter)
    size_bytes: int | None = None
    xxh3: str | None = None


def read_source(
    source: Source, settings: ReadSettings, tally: Tally, on_bytes: Callable[[int], object]
) -> Iterator[Document]:
    """The documents of one source; at its end `tally` holds its size and hash, if it has bytes."""
    tally.size_bytes, tally.xxh3 = None, None
    if source.open is None:
        yield from _kept(_dataset_rows(source, settings), tally)
        return
    with source.open() as raw:
        if source.kind == "parquet":
            tally.size_bytes, tally.xxh3 = _hash_and_rewind(raw)
            yield from _kept(_parquet_rows(raw, source.name, settings), tally)
            on_bytes(tally.size_bytes)
            return
        stream = CountedStream(raw, on_bytes)
        read = _jsonl_rows if source.kind == "jsonl" else _text_documents
        yield from _kept(read(stream, source.name, settings, tally), tally)
    tally.size_bytes, tally.xxh3 = stream.size_bytes, stream.xxh3
    if not stream.size_bytes:
        tally.skipped["empty_file"] += 1


def _kept(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
    """Documents without NULs; the blank ones are counted."""
    for document in documents:
        text, prompt = document.text.replace("\0", ""), document.prompt.replace("\0", "")
        tally.cleaned["nul_characters"] += (
            len(document.text) + len(document.prompt) - len(text) - len(prompt)
        )
        if text.strip():
            yield Document(document.id, text, prompt)
        else:
            tally.skipped["blank"] += 1


def _text_documents(
    stream: CountedStream, name: str, settings: ReadSettings, tally: Tally
) -> Iterator[Document]:
    numbered = lines(stream, name, settings.encoding)
    if settings.document == "line":
        for number, line in numbered:
            yield Document(f"{name}:{number}", line)
    elif settings.document == "paragraph":
        yield from _paragraphs(numbered, name)
    else:
        text = "\n".join(line for _, line in numbered)
        if stream.size_bytes:
            yield Document(name, text.strip("\n"))


def _paragraphs(numbered: Iterable[tuple[int, str]], name: str) -> Iterator[Document]:
    """Lines joined up to the next blank one."""
    start, paragraph = 0, []
    for number, line in numbered:
        if line.replace("\0", "").strip():
            start = start if paragraph else number
            paragraph.append(line)
        elif paragraph:
            yield Document(f"{name}:{start}", "\n".join(paragraph))
            paragraph = []
    if paragraph:
        yield Document(f"{name}:{start}", "\n".join(paragraph))


def _jsonl_rows(
    stream: CountedStream, name: str, settings: ReadSettings, tally: Tally
) -> Iterator[Document]:
    for number, line in lines(stream, name, settings.encoding, only_newline=True):
        where = f"{name}:{number}"
        if not line.strip():
            tally.skipped["blank"] += 1
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{where}: broken JSON ({error}). Correct or remove the line."
            ) from error
        if not isinstance(row, dict):
            raise ValueError(
                f"{where}: each line must be an object as {{{settings.text_field!r}: ...}}, got "
                f"{type(row).__name__}."
            )
        yield _row_document(row, where, settings)


def _row_document(row: Mapping[str, Any], where: str, settings: ReadSettings) -> Document:
    text = _field(row, settings.text_field, where, "--text-field")
    if settings.prompt_field is None:
        return Document(where, text)
    return Document(where, text, _field(row, settings.prompt_field, where, "--prompt-field"))


def _field(row: Mapping[str, Any], name: str, where: str, option: str) -> str:
    if name not in row:
        present = ", ".join(map(str, list(row)[:8])) or "none"
        raise ValueError(f"{where}: no field {name!r}; it has: {present}. Name one with {option}.")
    value = row[name]
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise ValueError(f"{where}: field {name!r} must be a string, got {kind}.")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{where}: field {name!r} holds half a character (a lone surrogate, "
                f"\\u{ord(value[error.start]):04x}) at {error.start}. Correct or remove the line."
            ) from error
    return value


def _parquet_rows(raw: BinaryIO, name: str, settings: ReadSettings) -> Iterator[Document]:
    import pyarrow
    import pyarrow.parquet

    wanted = [settings.text_field, *([settings.prompt_field] if settings.prompt_field else [])]
    try:
        file = pyarrow.parquet.ParquetFile(raw)
        present = file.schema_arrow.names
        # Columns that are missing are reported by the first row, in the words JSON Lines gets.
        chosen = [c for c in wanted if c in present] or present[:1]
        row_number = 0
        for batch in file.iter_batches(columns=chosen, batch_size=1024):
            for row in batch.to_pylist():
                row_number += 1
                if not set(wanted) <= set(row):
                    row = dict.fromkeys(present)
                yield _row_document(row, f"{name}, row {row_number}", settings)
    except pyarrow.ArrowException as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{name} is no readable Parquet file ({reason}).") from error


def _dataset_rows(source: Source, settings: ReadSettings) -> Iterator[Document]:
    """Rows of a dataset on the hub (streamed) or saved with save_to_disk, in their order."""
    import datasets

    try:
        if source.kind == "saved_dataset":
            rows = datasets.load_from_disk(source.location)
        else:
            location, _, split = source.location.removeprefix("datasets/").partition(":")
            owner, _, rest = location.partition("/")
            name, _, config = rest.partition("/")
            rows = datasets.load_dataset(
                f"{owner}/{name}" if name else owner,
                config or None,
                split=split or "train",
                streaming=True,
            )
    except Exception as error:  # datasets raises nearly every class for a name it cannot open
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"datasets cannot open {source.name}: {reason}") from error
    for number, row in enumerate(rows, start=1):
        yield _row_document(row, f"{source.name}, row {number}", settings)


def _hash_and_rewind(raw: BinaryIO) -> tuple[int, str]:
    whole = CountedStream(raw, lambda _: None)
    for _ in whole.chunks():
        pass
    raw.seek(0)
    return whole.size_bytes, whole.xxh3

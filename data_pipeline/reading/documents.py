"""Documents out of sources. Nothing is dropped in silence: what is left out is counted by reason.

    "a\\n\\nb" in x.txt -> Document("x.txt:1", "a"), Document("x.txt:3", "b"), skipped {"blank": 1}

A missing, null or wrong field, broken JSON and bytes of another encoding are Unusable, named by
file and line, and handed to the tally's policy: the run ends, or they are counted and left out
whole.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

from data_pipeline.reading.byte_stream import CountedStream, decompressed, size_and_hash
from data_pipeline.reading.file_kinds import Source
from data_pipeline.reading.records import Record, dataset_records, file_records, parquet_records
from data_pipeline.reading.saved_dataset import size_and_hash_of_data
from data_pipeline.reading.text_lines import MAX_CHARACTERS, Line, lines, too_long, usable
from data_pipeline.reading.unusable import Refuse, Unusable, stop


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

    def fields(self) -> list[str]:
        """The fields of a row that are read."""
        return [self.text_field, *([self.prompt_field] if self.prompt_field else [])]


@dataclass
class Tally:
    """What reading has left out or cleaned so far, and what the source read last was."""

    skipped: Counter[str] = field(default_factory=Counter)
    cleaned: Counter[str] = field(default_factory=Counter)
    refuse: Refuse = stop  # what is done about a line, row or source that cannot be used
    size_bytes: int | None = None
    xxh3: str | None = None


def read_source(
    source: Source, settings: ReadSettings, tally: Tally, on_bytes: Callable[[int], object]
) -> Iterator[Document]:
    """The documents of one source; at its end `tally` holds its size and hash, if it has bytes.

    Those of a saved dataset are of its data files, one behind the other.
    """
    tally.size_bytes, tally.xxh3 = None, None
    if source.open is None:
        yield from _kept(_of_records(dataset_records(source), settings, tally), tally)
        if source.kind == "saved_dataset":
            tally.size_bytes, tally.xxh3 = size_and_hash_of_data(source.location)
        return
    with source.open() as raw:
        if source.kind == "parquet":
            tally.size_bytes, tally.xxh3 = size_and_hash(raw)
            raw.seek(0)
            yield from _of_parquet(raw, source, settings, tally)
            on_bytes(tally.size_bytes)
            return
        stream = CountedStream(raw, on_bytes)
        content = decompressed(stream.chunks(), source.compression, source.name)
        try:
            if first := next(content, b""):
                content = itertools.chain([first], content)
                yield from _kept(_of_file(content, source, settings, tally), tally)
            else:
                tally.skipped["empty_file"] += 1
        except Unusable as error:
            tally.refuse(error)
            for _ in stream.chunks():  # its rest is left out, its size and hash are known
                pass
    tally.size_bytes, tally.xxh3 = stream.size_bytes, stream.xxh3


def _of_parquet(
    raw: BinaryIO, source: Source, settings: ReadSettings, tally: Tally
) -> Iterator[Document]:
    try:
        rows = parquet_records(raw, source.name, settings.fields(), tally.refuse)
        yield from _kept(_of_records(rows, settings, tally), tally)
    except Unusable as error:
        tally.refuse(error)


def _of_file(
    content: Iterator[bytes], source: Source, settings: ReadSettings, tally: Tally
) -> Iterator[Document]:
    if source.kind == "text":
        return _text_documents(content, source, settings, tally)
    records = file_records(content, source, settings.encoding, tally.skipped, tally.refuse)
    return _of_records(records, settings, tally)


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
    content: Iterator[bytes], source: Source, settings: ReadSettings, tally: Tally
) -> Iterator[Document]:
    name = source.name
    numbered = lines(
        content,
        name,
        settings.encoding,
        first_line=source.first_line,
        first_byte=source.first_byte,
    )
    if settings.document == "line":
        for number, line in usable(numbered, tally.refuse):
            yield Document(f"{name}:{number}", line)
    elif settings.document == "paragraph":
        yield from _paragraphs(numbered, name, tally.refuse)
    else:
        whole = _Gathered(name)
        for number, line in numbered:
            whole.add(number, line)
        yield from whole.documents(name, tally.refuse)


def _paragraphs(numbered: Iterable[Line], name: str, refuse: Refuse) -> Iterator[Document]:
    """Lines joined up to the next blank one."""
    paragraph = _Gathered(name)
    for number, line in numbered:
        if isinstance(line, Unusable) or line.replace("\0", "").strip():
            paragraph.add(number, line)
        elif paragraph.first_line:
            yield from paragraph.documents(f"{name}:{paragraph.first_line}", refuse)
            paragraph = _Gathered(name)
    if paragraph.first_line:
        yield from paragraph.documents(f"{name}:{paragraph.first_line}", refuse)


class _Gathered:
    """The lines of one document, or why it cannot be one: it is left out whole, never in part."""

    def __init__(self, name: str) -> None:
        self.first_line = 0
        self._name = name
        self._lines: list[str] = []
        self._characters = 0
        self._problem: Unusable | None = None

    def add(self, number: int, line: str | Unusable) -> None:
        self.first_line = self.first_line or number
        if self._problem:
            return
        if isinstance(line, Unusable):
            self._problem = line
        else:
            self._lines.append(line)
            self._characters += len(line) + 1
        if self._characters > MAX_CHARACTERS + 1:
            self._problem = too_long(f"{self._name}:{self.first_line}", "a document")
        if self._problem:
            self._lines.clear()

    def documents(self, name: str, refuse: Refuse) -> Iterator[Document]:
        """The document, or none after `refuse` was told why."""
        if self._problem:
            refuse(self._problem)
        else:
            yield Document(name, "\n".join(self._lines).strip("\n"))


def _of_records(
    records: Iterable[Record], settings: ReadSettings, tally: Tally
) -> Iterator[Document]:
    for where, row in records:
        try:
            document = _row_document(row, where, settings)
        except Unusable as error:
            tally.refuse(error)
            continue
        yield document


def _row_document(row: Mapping[str, Any], where: str, settings: ReadSettings) -> Document:
    text = _field(row, settings.text_field, where, "--text-field")
    if settings.prompt_field is None:
        return Document(where, text)
    return Document(where, text, _field(row, settings.prompt_field, where, "--prompt-field"))


def _field(row: Mapping[str, Any], name: str, where: str, option: str) -> str:
    if name not in row:
        present = ", ".join(ascii(str(n))[1:-1][:40] for n in list(row)[:8]) or "none"
        detail = f"no field {name!r}; it has: {present}. Name one with {option}."
        raise Unusable("no_field", where, detail)
    value = row[name]
    if value is None:
        raise Unusable("null_field", where, f"field {name!r} must be a string, got null.")
    if not isinstance(value, str):
        kind = type(value).__name__
        raise Unusable("no_string", where, f"field {name!r} must be a string, got {kind}.")
    if len(value) > MAX_CHARACTERS:
        raise too_long(where, f"field {name!r}")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Unusable(
                "lone_surrogate",
                where,
                f"field {name!r} holds half a character (a lone surrogate, "
                f"\\u{ord(value[error.start]):04x}) at {error.start}. Correct or remove the line.",
            ) from error
    return value

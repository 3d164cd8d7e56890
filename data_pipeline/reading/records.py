"""Rows of files and datasets, each with the place it stands at; what is no row is refused.

    x.jsonl   {"text": "a"}        -> ("x.jsonl:1", {"text": "a"})       json_rows.py
    x.csv     id,text / 7,"a, b"   -> ("x.csv:2", {"id": "7", "text": "a, b"})
    x.parquet                      -> ("x.parquet, row 1", {"text": "a"})

Places are file and line where a file has lines, else file and row. Blank lines are counted.
"""

import csv
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from data_pipeline.reading.byte_stream import CHUNK_BYTES
from data_pipeline.reading.decoded_text import DecodedText
from data_pipeline.reading.file_kinds import Source, scrubbed
from data_pipeline.reading.json_rows import Record, json_file, json_lines
from data_pipeline.reading.text_lines import (
    MAX_CHARACTERS,
    Line,
    WrongBytes,
    lines_of,
    text_encoding,
    too_long,
)
from data_pipeline.reading.unusable import Refuse, Unusable

_UNPACKED_BYTES = 1 << 29
_DELIMITERS = {"csv": ",", "tsv": "\t"}


def file_records(
    chunks: Iterator[bytes], source: Source, encoding: str, skipped: Counter[str], refuse: Refuse
) -> Iterator[Record]:
    """The rows of a .jsonl, .json, .csv or .tsv file whose content comes in chunks.

    refuse: is told of each row that cannot be used. Raises Unusable where what follows cannot
    either.
    """
    text = DecodedText(
        chunks,
        source.name,
        text_encoding(encoding),
        newlines="kept",
        first_line=source.first_line,
        first_byte=source.first_byte,
    )
    if source.kind == "json":
        return json_file(text, skipped, refuse)
    numbered = lines_of(text, text, source.first_line)
    if source.kind in _DELIMITERS:
        return _delimited(numbered, source.name, _DELIMITERS[source.kind], skipped, refuse)
    return json_lines(numbered, source.name, skipped, refuse)


def _delimited(
    numbered: Iterator[Line], name: str, delimiter: str, skipped: Counter[str], refuse: Refuse
) -> Iterator[Record]:
    """Rows below a first one that names the fields; quotes may hold delimiters and newlines."""
    csv.field_size_limit(sys.maxsize)  # the process's; rows have a limit of their own
    rows = _Rows(numbered, name, delimiter)
    names: list[str] | None = None
    for where, row in rows:
        if isinstance(row, Unusable):
            if names is None:
                raise row
            refuse(row)
        elif not row:
            skipped["blank"] += 1
        elif names is None:
            names = row
            if len(set(names)) < len(names):
                shown = ", ".join(names)[:200]
                raise Unusable("broken_row", where, f"two fields have one name: {shown}.")
        elif len(row) != len(names):
            detail = f"{len(row)} fields, the first row names {len(names)}. Correct the row."
            refuse(Unusable("field_count", where, detail))
        else:
            yield where, dict(zip(names, row, strict=True))


class _TooLongError(Exception):
    """A row, or a line of it, that is too long: what follows it can be read."""

    def __init__(self, problem: Unusable) -> None:
        super().__init__()
        self.problem = problem


class _Rows:
    """(place, fields or what is wrong) of each row.

    Of a broken one its first line is given up, and those behind are read again: quotes that are
    never closed do not swallow the rest of the file.
    """

    def __init__(self, numbered: Iterator[Line], name: str, delimiter: str) -> None:
        self._numbered, self._name, self._delimiter = numbered, name, delimiter
        self._again: list[Line] = []  # in reverse
        self._of_row: list[Line] = []
        self._characters = 0  # of them
        self._wrong: WrongBytes | None = None  # the first of them that is one

    def __iter__(self) -> Iterator[tuple[str, list[str] | Unusable]]:
        reader = self._reader()
        while True:
            self._of_row, self._characters, self._wrong = [], 0, None
            try:
                row: list[str] | Unusable = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                row = self._broken(str(error))
                self._again += reversed(self._of_row[1:])
                reader = self._reader()
            except _TooLongError as error:
                row = error.problem
                used = -1 if isinstance(self._of_row[-1][1], Unusable) else None
                self._again += reversed(self._of_row[1:used])
                reader = self._reader()
            yield self._where(), self._wrong or row

    def _reader(self) -> Iterator[list[str]]:
        return csv.reader(self._lines(), delimiter=self._delimiter, strict=True)

    def _lines(self) -> Iterator[str]:
        """Lines as the reader asks for them: never one behind the row at hand."""
        while line := self._again.pop() if self._again else next(self._numbered, None):
            self._of_row.append(line)
            content = line[1]
            if isinstance(content, WrongBytes):
                self._wrong = self._wrong or content
                content = content.text
            elif isinstance(content, Unusable):
                raise _TooLongError(content)
            self._characters += len(content) + 1
            if self._characters > MAX_CHARACTERS + 1:
                raise _TooLongError(too_long(self._where(), "a row"))
            yield f"{content}\n"

    def _where(self) -> str:
        return f"{self._name}:{self._of_row[0][0]}"

    def _broken(self, reason: str) -> Unusable:
        return Unusable(
            "broken_row",
            self._where(),
            f"broken row ({reason}). Fields are parted by {self._delimiter!r}; one that "
            'begins with " ends with one, and doubles those inside.',
        )


def parquet_records(
    raw: BinaryIO, name: str, wanted: list[str], refuse: Refuse
) -> Iterator[Record]:
    """Rows of a Parquet file, the wanted columns alone where all are there.

    Raises Unusable where the file cannot be read on.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        # Buffered: else whole groups of rows are held.
        file = pyarrow.parquet.ParquetFile(raw, pre_buffer=False, buffer_size=CHUNK_BYTES)
        present = file.schema_arrow.names
        # Columns that are missing are reported by the first row, in the words JSON Lines gets.
        chosen = [c for c in wanted if c in present] or present[:1]
        has_all = set(wanted) <= set(present)
        for number, row in enumerate(_parquet_rows(file, chosen), start=1):
            where = f"{name}, row {number}"
            if not has_all:
                yield where, dict.fromkeys(present)
                continue
            try:
                values = {n: value.as_py() for n, value in row.items()}
            except UnicodeDecodeError as error:
                refuse(Unusable("wrong_encoding", where, f"not valid utf-8 ({error.reason})."))
                continue
            yield where, values
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk, not of what stands on it
        reason = " ".join(str(error).split())
        raise Unusable("broken_parquet", name, f"no readable Parquet file ({reason}).") from error


def _parquet_rows(file: Any, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Rows of pyarrow scalars.

    A file may hold a text once and name it a million times: no row is larger than what its group
    stores, so that many are unpacked at once as cannot exceed _UNPACKED_BYTES, but at least 16.
    """
    for group in range(file.metadata.num_row_groups):
        stored = file.metadata.row_group(group)
        of_columns = [stored.column(c) for c in range(stored.num_columns)]
        size_bytes = sum(
            c.total_uncompressed_size
            for c in of_columns
            if c.path_in_schema.partition(".")[0] in columns
        )
        batch_rows = min(max(_UNPACKED_BYTES // max(size_bytes, 1), 16), 1024)
        for batch in file.iter_batches(batch_size=batch_rows, row_groups=[group], columns=columns):
            arrays = {name: batch.column(name) for name in batch.schema.names}
            for row in range(batch.num_rows):
                yield {name: array[row] for name, array in arrays.items()}


def dataset_records(source: Source) -> Iterator[Record]:
    """Rows of a dataset on the hub (streamed) or saved with save_to_disk, in their order."""
    import datasets

    doing = "open"
    try:
        is_saved = source.kind == "saved_dataset"
        rows: Iterator[Any] = iter(
            datasets.load_from_disk(source.location) if is_saved else _hub_rows(source.location)
        )
        doing = "read"
        for number in itertools.count(1):
            row = next(rows, None)
            if row is None:
                return
            yield f"{source.name}, row {number}", row
    except Exception as error:  # of nearly every class, for names, networks, files and decoders
        told = scrubbed(" ".join(str(error).split()), source.location)[:200]
        reason = told or type(error).__name__
        raise ValueError(f"datasets cannot {doing} {source.name}: {reason}") from error


def _hub_rows(location: str) -> Any:
    import datasets

    place, _, split = location.removeprefix("datasets/").partition(":")
    owner, _, rest = place.partition("/")
    name, _, config = rest.partition("/")
    return datasets.load_dataset(
        f"{owner}/{name}" if name else owner, config or None, split=split or "train", streaming=True
    )

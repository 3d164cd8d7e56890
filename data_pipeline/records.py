"""Rows of files and datasets, each with the place it stands at; what is no row is an error.

    x.jsonl   {"text": "a"}        -> ("x.jsonl:1", {"text": "a"})
    x.csv     id,text / 7,"a, b"   -> ("x.csv:2", {"id": "7", "text": "a, b"})
    x.parquet                      -> ("x.parquet, row 1", {"text": "a"})

Places are file and line where a file has lines, else file and row. Blank lines are counted.
"""

import csv
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from data_pipeline.file_kinds import Source
from data_pipeline.text_lines import lines

Record = tuple[str, Mapping[str, Any]]
_DELIMITERS = {"csv": ",", "tsv": "\t"}


def file_records(
    chunks: Iterator[bytes], source: Source, encoding: str, skipped: Counter[str]
) -> Iterator[Record]:
    """The rows of a .jsonl, .json, .csv or .tsv file whose content comes in chunks."""
    numbered = lines(
        chunks,
        source.name,
        encoding,
        only_newline=True,
        first_line=source.first_line,
        first_byte=source.first_byte,
    )
    if source.kind in _DELIMITERS:
        return _delimited(numbered, source.name, _DELIMITERS[source.kind], skipped)
    if source.kind == "json":
        return _json(numbered, source.name, skipped)
    return _json_lines(numbered, source.name, skipped)


def _json_lines(
    numbered: Iterator[tuple[int, str]], name: str, skipped: Counter[str]
) -> Iterator[Record]:
    for number, line in numbered:
        if not line.strip():
            skipped["blank"] += 1
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{name}:{number}: broken JSON ({error}). Correct or remove the line."
            ) from error
        yield _object(row, f"{name}:{number}")


def _json(
    numbered: Iterator[tuple[int, str]], name: str, skipped: Counter[str]
) -> Iterator[Record]:
    """Objects in one array, which is read whole, or one a line."""
    front = []
    for number, line in numbered:
        front.append((number, line))
        if line.strip():
            break
    numbered = itertools.chain(front, numbered)
    if not front or not front[-1][1].lstrip().startswith("["):
        yield from _json_lines(numbered, name, skipped)
        return
    try:
        rows = json.loads("\n".join(line for _, line in numbered))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{name}:{error.lineno}: broken JSON ({error}). Correct the file."
        ) from error
    except RecursionError as error:
        raise ValueError(f"{name}: broken JSON ({error}). Correct the file.") from error
    for number, row in enumerate(rows, start=1):
        yield _object(row, f"{name}, row {number}")


def _object(row: Any, where: str) -> Record:
    if not isinstance(row, dict):
        raise ValueError(
            f"{where}: each row must be an object as {{'text': ...}}, got {type(row).__name__}."
        )
    return where, row


def _delimited(
    numbered: Iterator[tuple[int, str]], name: str, delimiter: str, skipped: Counter[str]
) -> Iterator[Record]:
    """Rows below a first one that names the fields; quotes may hold delimiters and newlines."""
    csv.field_size_limit(sys.maxsize)  # a document may be long; the limit is the process's
    reader = csv.reader((f"{line}\n" for _, line in numbered), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    while True:
        where = f"{name}:{reader.line_num + 1}"
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{where}: broken row ({error}). Fields are parted by {delimiter!r}; one that "
                'begins with " ends with one, and doubles those inside.'
            ) from error
        if not row:
            skipped["blank"] += 1
        elif names is None:
            names = row
            if len(set(names)) < len(names):
                raise ValueError(f"{where}: two fields have one name: {', '.join(names)}.")
        elif len(row) != len(names):
            raise ValueError(
                f"{where}: {len(row)} fields, the first row names {len(names)}. Correct the row."
            )
        else:
            yield where, dict(zip(names, row, strict=True))


def parquet_records(raw: BinaryIO, name: str, wanted: list[str]) -> Iterator[Record]:
    """Rows of a Parquet file, the wanted columns alone where all are there."""
    import pyarrow
    import pyarrow.parquet

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
                yield f"{name}, row {row_number}", row
    except pyarrow.ArrowException as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{name} is no readable Parquet file ({reason}).") from error


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
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"datasets cannot {doing} {source.name}: {reason}") from error


def _hub_rows(location: str) -> Any:
    import datasets

    place, _, split = location.removeprefix("datasets/").partition(":")
    owner, _, rest = place.partition("/")
    name, _, config = rest.partition("/")
    return datasets.load_dataset(
        f"{owner}/{name}" if name else owner, config or None, split=split or "train", streaming=True
    )

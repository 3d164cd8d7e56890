"""Objects of a JSON file, each with the place it stands at: one a line, or all in one array.

    {"text": "a"}                       -> ("x.jsonl:1", {"text": "a"})
    [{"text": "a"}, {"text": "b"}]      -> ("x.json, row 1", {"text": "a"}), ("x.json, row 2", ...)

An array is read an element at a time, never whole, and on one line or many. A line that is no
object is refused and the next one read; behind a broken element of an array nothing can be told.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from data_pipeline.reading.decoded_text import DecodedText
from data_pipeline.reading.text_lines import MAX_CHARACTERS, Line, lines_of, too_long, usable
from data_pipeline.reading.unusable import Refuse, Unusable

Record = tuple[str, Mapping[str, Any]]
_SPACE = re.compile(r"[ \t\r\n]*")


def json_lines(
    numbered: Iterable[Line], name: str, skipped: Counter[str], refuse: Refuse
) -> Iterator[Record]:
    """An object of each line; blank ones are counted."""
    for number, line in usable(numbered, refuse):
        if not line.strip():
            skipped["blank"] += 1
            continue
        where = f"{name}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            refuse(Unusable("broken_json", where, f"broken JSON ({error}). Correct the line."))
            continue
        yield from _objects(row, where, refuse)


def json_file(text: DecodedText, skipped: Counter[str], refuse: Refuse) -> Iterator[Record]:
    """The objects of the one array in a file, or of its lines where it does not begin with [."""
    stretches, line, stretch = iter(text), text.first_line, ""
    for stretch in stretches:
        if stretch.strip():
            break
        line += (ends := stretch.count("\n"))
        skipped["blank"] += ends
    if stretch.lstrip().startswith("["):
        for number, row in enumerate(_Array(stretch, stretches, text, line).elements(), start=1):
            yield from _objects(row, f"{text.name}, row {number}", refuse)
    else:
        numbered = lines_of(text, itertools.chain([stretch], stretches), line)
        yield from json_lines(numbered, text.name, skipped, refuse)


def _objects(row: Any, where: str, refuse: Refuse) -> Iterator[Record]:
    if isinstance(row, dict):
        yield where, row
        return
    detail = f"each row must be an object as {{'text': ...}}, got {type(row).__name__}."
    refuse(Unusable("no_object", where, detail))


class _Array:
    """A stretch of the text at a time, and where in it the next element begins."""

    def __init__(self, first: str, rest: Iterator[str], text: DecodedText, line: int) -> None:
        self._text, self._rest, self._source, self._line = first, rest, text, line
        self._at = 0

    def elements(self) -> Iterator[Any]:
        """Raises Unusable where the text is no JSON, or goes on behind the array."""
        self._take("[")
        if self._next() != "]":
            while True:
                yield self._element()
                if self._next() != ",":
                    break
                self._take(",")
        self._take("]")
        if self._next():
            raise self._broken("Extra data behind the array", self._at)

    def _take(self, character: str) -> None:
        if self._next() != character:
            raise self._broken(f"Expecting '{character}'", self._at)
        self._at += 1

    def _next(self) -> str:
        """The next character that is no space, "" at the end."""
        while True:
            self._at = self._past_space(self._at)
            if self._at < len(self._text) or not self._read_on():
                return self._text[self._at : self._at + 1]

    def _past_space(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        return space.end() if space else at

    def _element(self) -> Any:
        self._next()
        while True:
            try:
                row, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:  # broken, or not all of it is here
                if not self._read_on():
                    raise self._broken(error.msg, error.pos) from error
            except (ValueError, RecursionError) as error:  # too many digits, or brackets
                raise self._broken(str(error), self._at) from error
            else:
                if end < len(self._text) or not self._read_on():
                    self._at = end
                    return row

    def _read_on(self) -> bool:
        """Read as much again as is held; False at the end of the text."""
        self._line += self._text.count("\n", 0, self._at)
        parts = [self._text[self._at :]]
        self._at, wanted, size = 0, 2 * len(parts[0]) + 1, len(parts[0])
        if size > MAX_CHARACTERS:
            raise too_long(f"{self._source.name}:{self._line}", "an element")
        before = size
        while size < wanted and (stretch := next(self._rest, "")):
            parts.append(stretch)
            size += len(stretch)
        self._text = "".join(parts)
        if self._source.problem:
            raise self._source.problem
        return size > before

    def _broken(self, reason: str, at: int) -> Unusable:
        where = f"{self._source.name}:{self._line + self._text.count(chr(10), 0, at)}"
        return Unusable("broken_json", where, f"broken JSON ({reason}). Correct the file.")


_DECODER = json.JSONDecoder()

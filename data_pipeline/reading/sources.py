"""Which files an input names: files, folders, globs, saved datasets, URLs, in a fixed order.

Folders are read to the bottom in the order of their paths. Inside them hidden files and files with
an unknown ending are counted, not read. Named directly a hidden file is read as any other, and an
unknown ending is an error.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from data_pipeline.reading.file_kinds import (
    KNOWN,
    Source,
    file_source,
    how_to_read,
    kind_of,
    without_credentials,
)
from data_pipeline.reading.patterns import expand
from data_pipeline.reading.remote import remote_sources


def find_sources(inputs: list[str], skipped: Counter[str]) -> list[Source]:
    """The sources of all inputs in the order given; files left out are counted in `skipped`.

    A file that is named again, by whatever path or link, is read where it is named first.
    Raises ValueError if an input names nothing that can be read. Only a URL opens a connection.
    """
    sources: dict[str, Source] = {}
    for given in inputs:
        if not given.strip():
            raise ValueError("--input is empty (an unset shell variable?). Name a file or folder.")
        found = list(remote_sources(given, skipped) if "://" in given else _local(given, skipped))
        if not found:
            shown = without_credentials(given)
            raise ValueError(f"--input {shown} holds no file ending in {KNOWN}.")
        for source in found:
            if sources.setdefault(_identity(source), source) is not source:
                skipped["file_named_twice"] += 1
    return list(sources.values())


def total_bytes(sources: list[Source]) -> int | None:
    """The bytes of all sources, None where one of them has no size."""
    sizes = [s.size_bytes for s in sources]
    return None if None in sizes else sum(s for s in sizes if s is not None)


def _identity(source: Source) -> str:
    """What two sources share if they are the same file."""
    scheme, is_url, _ = source.name.partition("://")
    if is_url and scheme != "file":
        return f"{scheme}://{source.location}"
    return os.path.realpath(source.location)


def _local(given: str, skipped: Counter[str]) -> Iterator[Source]:
    path = Path(given)
    if path.is_dir():
        yield from _folder(path, skipped)
    elif path.exists():
        yield _named_file(path)
    elif glob.has_magic(given):
        for match in expand(given, skipped):
            if kind_of(match.name) is None or not match.is_file():
                skipped["unknown_file"] += 1
            else:
                yield _file(match)
    else:
        raise ValueError(f"--input {given} does not exist.")


def _folder(folder: Path, skipped: Counter[str]) -> Iterator[Source]:
    if (folder / "dataset_dict.json").exists():
        raise ValueError(
            f"--input {folder} is a saved DatasetDict. Name the folder of one split in it."
        )
    if (folder / "state.json").exists() and (folder / "dataset_info.json").exists():
        yield Source(str(folder), "saved_dataset", str(folder), None, None)
        return
    above = frozenset(map(str, Path(os.path.realpath(folder)).parents))
    for path in _walk(folder, above, set(), skipped):
        if kind_of(path.name) is None:
            skipped["unknown_file"] += 1
        else:
            yield _file(path)


def _walk(
    folder: Path, above: frozenset[str], seen: set[str], skipped: Counter[str]
) -> Iterator[Path]:
    """Files below a folder, by name. A folder is entered once, by whatever links it is reached.

    above: the folders around this one, those around the input too, as real paths; seen: all that
    were entered.
    """
    real = os.path.realpath(folder)
    if real in above:
        skipped["folder_link_loop"] += 1
        return
    if real in seen:
        skipped["folder_named_twice"] += 1
        return
    seen.add(real)
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        if path.name.startswith("."):
            skipped["hidden_file"] += 1
        elif path.is_dir():
            yield from _walk(path, above | {real}, seen, skipped)
        elif path.is_file():
            yield path
        else:
            skipped["unknown_file"] += 1


def _named_file(path: Path) -> Source:
    if not path.is_file():
        raise ValueError(f"--input {path} is neither a file nor a folder.")
    if kind_of(path.name) is None:
        raise ValueError(
            f"--input {path}: endings that can be read are {KNOWN}. {how_to_read(path.name)}"
        )
    return _file(path)


def _file(path: Path) -> Source:
    return file_source(str(path), str(path), path.stat().st_size, lambda: path.open("rb"))

"""Files that a pattern stands for: * ? [...] inside a name, ** for any folders, none included.

    books/**/*.txt     books/a.txt, books/b/c.txt, ...; hidden names only if the pattern has the dot

As glob.glob(recursive=True), but for links to a folder above, which that follows until the system
gives up: one such link is 41 times every file, two are more than can be listed.
"""

import fnmatch
import glob
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


def expand(pattern: str, skipped: Counter[str]) -> list[Path]:
    """The files a pattern names, by their parts; links to a folder above are counted, not entered.

    Raises OSError where a folder cannot be read.
    """
    path, loops = Path(pattern), set()
    start = Path(path.anchor)
    parts = [p for p in path.parts if p != path.anchor]
    real = os.path.realpath(start)
    found = set(_below(start, parts, frozenset({real, *map(str, Path(real).parents)}), loops))
    if loops:
        skipped["folder_link_loop"] += len(loops)
    return sorted((p for p in found if not p.is_dir()), key=lambda p: p.parts)


def _below(
    folder: Path, parts: list[str], above: frozenset[str], loops: set[Path]
) -> Iterator[Path]:
    """Whatever `parts` name inside a folder. above: the folders passed so far, as real paths."""
    if not parts:
        yield folder
        return
    head, *rest = parts
    if not glob.has_magic(head):
        if os.path.lexists(child := folder / head):
            yield from _below(child, rest, above | {os.path.realpath(child)}, loops)
        return
    if head == "**":
        yield from _below(folder, rest or ["*"], above, loops)
    for child in _children(folder, "*" if head == "**" else head):
        if head != "**" and not rest:
            yield child
        elif child.is_dir():
            real = os.path.realpath(child)
            if real in above:
                loops.add(child)
            else:
                yield from _below(child, parts if head == "**" else rest, above | {real}, loops)


def _children(folder: Path, pattern: str) -> list[Path]:
    if not folder.is_dir():
        return []
    names = fnmatch.filter(os.listdir(folder), pattern)
    return [folder / n for n in names if pattern.startswith(".") or not n.startswith(".")]

"""The files of a dataset that datasets.save_to_disk has written, and what tells a changed one.

    state.json, dataset_info.json, data-00000-of-00002.arrow, data-00001-of-00002.arrow

Rows lie in the files that state.json names. Others beside them are caches, which change while the
dataset does not.
"""

import json
import os
from pathlib import Path
from typing import Any

import xxhash

from data_pipeline.reading.byte_stream import CHUNK_BYTES

_STATE_FILE = "state.json"


def version(folder: str | Path) -> list[Any]:
    """What changes when the dataset does: size and time of each file.

    Raises ValueError where the folder is not whole.
    """
    stats = [(p.name, os.stat(p)) for p in [Path(folder) / _STATE_FILE, *_data_files(folder)]]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def size_and_hash_of_data(folder: str | Path) -> tuple[int, str]:
    """Bytes of the files that hold its rows, and the xxh3 in hex of all, one behind the other."""
    hashed, size_bytes = xxhash.xxh3_128(), 0
    for path in _data_files(folder):
        with path.open("rb") as file:
            while content := file.read(CHUNK_BYTES):
                hashed.update(content)
                size_bytes += len(content)
    return size_bytes, hashed.hexdigest()


def _data_files(folder: str | Path) -> list[Path]:
    state = Path(folder) / _STATE_FILE
    try:
        named = json.loads(state.read_text("utf-8"))["_data_files"]
        files = [Path(folder) / file["filename"] for file in named]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{state} is none that save_to_disk writes ({error!r}). Save the dataset again."
        ) from error
    if absent := [path for path in files if not path.is_file()]:
        raise ValueError(f"{absent[0]} is named by state.json and absent. Copy the folder again.")
    return files

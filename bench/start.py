"""Start and resume on shards of a billion documents: seconds, and anonymous memory.

The index files are as large as real ones and mostly holes: only the blocks of documents that the
two windows read are written. What is measured is all that a run does before its first batch: the
folder is opened, sizes are compared, a window is planned, the rows of a batch are built.
"""

import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.data_path import ALL_MODES, invented_texts
from bench.table import Row
from data_pipeline.packing.loader import training_batches
from data_pipeline.packing.order import window_documents
from data_pipeline.packing.plan import PackingConfig, num_windows
from data_pipeline.packing.sequence import Position
from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.preparing.train_tokenizer import TokenizerSettings, train_tokenizer
from data_pipeline.storage.manifest import (
    FileEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    read_manifest,
    split_fingerprint,
    write_manifest,
)
from data_pipeline.storage.shard_files import INDEX_MAGIC, index_layout, index_size_bytes
from data_pipeline.storage.shards import open_shards
from data_pipeline.transforms.blank import BlankTransform

NUM_SHARDS, SHARD_DOCUMENTS, DOCUMENT_TOKENS = 250, 4_000_000, 200
GOAL_S, GOAL_BYTES = 1.0, 100e6
SEED = 1
PACKING = PackingConfig()


def start_rows(quick: bool) -> list[Row]:
    """Seconds and bytes of a start and of a resume in epoch 5. quick: one try instead of three."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _billion(folder)
        split = open_shards(folder / "shards").splits["train"]
        last = num_windows(split, PACKING) - 1
        places = {"start": Position(), "resume": Position(epoch=5, window=last, row=7)}
        for place in places.values():
            _fill_window(folder / "shards", place)
        # The first opening of a file system is slower; what is counted is the best try.
        tries: dict[str, list[Try]] = {bench: [] for bench in places}
        for _ in range(1 if quick else 3):
            for bench, place in places.items():
                tries[bench].append(_first_batch(folder / "shards", place))
    return [row for bench, found in tries.items() for row in _rows_of(bench, found)]


class Try(NamedTuple):
    """What it took until the first batch was there."""

    wall_s: float
    cpu_s: float
    anonymous_bytes: float


def _rows_of(bench: str, found: list[Try]) -> list[Row]:
    wall_s, cpu_s = min(one.wall_s for one in found), min(one.cpu_s for one in found)
    anonymous_bytes = max(one.anonymous_bytes for one in found)
    documents = NUM_SHARDS * SHARD_DOCUMENTS
    return [
        Row(
            bench=f"{bench}_1e9_documents",
            ours=1 / wall_s,
            peer="goal",
            peer_value=1 / GOAL_S,
            unit="starts/s",
            goal=1.0,
            ratio_of_cpu=GOAL_S / cpu_s,
        ),
        Row(
            bench=f"{bench}_1e9_documents_memory",
            ours=documents / max(anonymous_bytes, 1.0),
            peer="goal",
            peer_value=documents / GOAL_BYTES,
            unit="documents/byte",
            goal=1.0,
        ),
    ]


def _first_batch(shards: Path, start: Position) -> Try:
    with peak_anonymous() as grown:
        wall_from, cpu_from = time.perf_counter(), time.process_time()
        opened = open_shards(shards)
        transform = BlankTransform(
            ALL_MODES, opened.special, source_tokens=512, vocab_size=opened.vocab_size
        )
        batches = training_batches(
            opened.splits["train"],
            transform,
            PACKING,
            seed=SEED,
            rank=0,
            world_size=1,
            micro_rows=16,
            accumulation=1,
            start=start,
            num_workers=0,
        )
        assert next(batches).tokens > 0
        wall_s, cpu_s = time.perf_counter() - wall_from, time.process_time() - cpu_from
    return Try(wall_s, cpu_s, grown[0])


@contextmanager
def peak_anonymous() -> Iterator[list[float]]:
    """Gives a list that holds, after the block, the anonymous bytes that the process grew by.

    The kernel keeps a high-water mark only together with mapped files, so a thread looks every few
    milliseconds.
    """
    grown, ended = [0.0], threading.Event()
    before = _anonymous_bytes()

    def watch() -> None:
        while not ended.wait(0.003):
            grown[0] = max(grown[0], float(_anonymous_bytes() - before))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield grown
    finally:
        ended.set()
        watcher.join()


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return 1024 * int(found[1])


def _billion(folder: Path) -> None:
    """Shards of a billion documents of equal length, their files holes but for header and end."""
    corpus, model = folder / "corpus.txt", folder / "tokenizer.model"
    corpus.write_text("\n".join(invented_texts(200)) + "\n", encoding="utf-8")
    train_tokenizer(TokenizerSettings(input=[str(corpus)], output=str(model), vocab_size=2000))
    shards = folder / "shards"
    prepare(PrepareSettings(input=[str(corpus)], tokenizer=str(model), output=str(shards)))
    small = read_manifest(shards)
    entries = tuple(_sparse_shard(shards, number, small) for number in range(NUM_SHARDS))
    train = SplitEntry(
        documents=NUM_SHARDS * SHARD_DOCUMENTS,
        tokens=NUM_SHARDS * SHARD_DOCUMENTS * DOCUMENT_TOKENS,
        fingerprint=split_fingerprint(small.dtype, small.tokenizer_fingerprint, entries),
        shards=entries,
    )
    write_manifest(replace(small, splits={**small.splits, "train": train}), shards)


def _sparse_shard(shards: Path, number: int, small: Manifest) -> ShardEntry:
    counts = (SHARD_DOCUMENTS, SHARD_DOCUMENTS * DOCUMENT_TOKENS, SHARD_DOCUMENTS)
    files = []
    sizes = {
        "tokens": counts[1] * np.dtype(small.dtype).itemsize,
        "index": index_size_bytes(counts[0], counts[2]),
    }
    for ending, size_bytes in sizes.items():
        path = f"train/{number:05d}.{ending}"
        with open(shards / path, "wb") as file:
            file.truncate(size_bytes)
        files.append(FileEntry(path=path, size_bytes=size_bytes, xxh3="not read"))
    with open(shards / f"train/{number:05d}.index", "r+b") as file:
        file.write(INDEX_MAGIC + np.array(counts, "<u8").tobytes())
    last = np.array([SHARD_DOCUMENTS - 1])
    _write_documents(shards, number, last)
    return ShardEntry(
        documents=counts[0],
        tokens=counts[1],
        sentence_ends=counts[2],
        tokens_file=files[0],
        index_file=files[1],
    )


def _write_documents(shards: Path, number: int, local: np.ndarray) -> None:
    """The index entries of these documents of a shard: DOCUMENT_TOKENS long, one sentence."""
    path = shards / f"train/{number:05d}.index"
    layout = index_layout(SHARD_DOCUMENTS, SHARD_DOCUMENTS)

    def array(name: str) -> np.ndarray:
        dtype, length, start = layout[name]
        return np.memmap(path, np.dtype(dtype), mode="r+", offset=start, shape=(length,))

    for place in (local, local + 1):
        array("token_offsets")[place] = place * DOCUMENT_TOKENS
        array("sentence_offsets")[place] = place
    array("sentence_ends")[local] = DOCUMENT_TOKENS


def _fill_window(shards: Path, place: Position) -> None:
    split = open_shards(shards).splits["train"]
    documents = window_documents(
        split.num_documents,
        num_windows(split, PACKING),
        seed=SEED,
        epoch=place.epoch,
        window=place.window,
    )
    for number in np.unique(documents // SHARD_DOCUMENTS):
        mine = documents[documents // SHARD_DOCUMENTS == number] % SHARD_DOCUMENTS
        _write_documents(shards, int(number), mine)

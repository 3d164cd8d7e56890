"""The two files of one shard: how the index is laid out, and both mapped into memory.

NAME.tokens: little-endian uint16 (vocabularies up to 65,536) or int32 ids, document after document,
nothing between. NAME.index: a header and the four arrays of `index_layout`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.storage.damage import damaged, group_bounds, refuse, size_problem
from data_pipeline.storage.manifest import ShardEntry

INDEX_MAGIC = b"PALINDX1"
INDEX_HEADER_BYTES = 32  # the magic, then documents, tokens and sentence ends as uint64


def index_layout(documents: int, sentence_ends: int) -> dict[str, tuple[str, int, int]]:
    """The arrays of an index file after its header: {name: (dtype, length, first byte)}.

    token_offsets: where each document starts in the tokens, and their total, (documents + 1,).
    sentence_offsets: where each document's sentence ends start, and their total, (documents + 1,).
    prompt_lengths: leading tokens of each document that are prompt, (documents,).
    sentence_ends: token counts from the document's first token after which a sentence ends, rising.
    """
    sizes = {
        "token_offsets": ("<u8", documents + 1),
        "sentence_offsets": ("<u8", documents + 1),
        "prompt_lengths": ("<u4", documents),
        "sentence_ends": ("<u4", sentence_ends),
    }
    layout: dict[str, tuple[str, int, int]] = {}
    start = INDEX_HEADER_BYTES
    for name, (dtype, length) in sizes.items():
        layout[name] = (dtype, length, start)
        start += np.dtype(dtype).itemsize * length
    return layout


def index_size_bytes(documents: int, sentence_ends: int) -> int:
    """The size of an index file."""
    dtype, length, start = index_layout(documents, sentence_ends)["sentence_ends"]
    return start + np.dtype(dtype).itemsize * length


@dataclass(frozen=True)
class MappedShard:
    """The arrays of one shard, read from disk as they are touched."""

    tokens_path: Path
    index_path: Path
    tokens: NDArray[np.uint16] | NDArray[np.int32]
    token_offsets: NDArray[np.uint64]
    sentence_offsets: NDArray[np.uint64]
    prompt_lengths: NDArray[np.uint32]
    sentence_ends: NDArray[np.uint32]

    def document_bounds(
        self, local: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where documents begin in the tokens, and their lengths; ValueError if that cannot be."""
        return group_bounds(self.token_offsets, local, len(self.tokens), self.index_path)

    def sentence_bounds(
        self, local: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where documents begin in the sentence ends, and how many they have; ValueError likewise.

        The last end of a document is its length: two arrays would have to be wrong alike for a
        wrong length to be believed, and memory asked for in its measure.
        """
        _, length = self.document_bounds(local)
        begin, count = group_bounds(
            self.sentence_offsets, local, len(self.sentence_ends), self.index_path
        )
        differs = self.sentence_ends[begin + count - 1] != length
        refuse(differs, local, self.index_path, "document {} does not end with its last sentence")
        return begin, count


def map_shard(folder: Path, entry: ShardEntry, dtype: str) -> MappedShard:
    """Map the two files of a shard.

    Raises ValueError where they are not there any more, of another size, or where the header is not
    the manifest's.
    """
    for file in (entry.index_file, entry.tokens_file):
        if problem := size_problem(folder, file):
            raise ValueError(f"{problem}. Prepare the data again, or copy it again.")
    path = folder / entry.index_file.path
    raw = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    header = raw[len(INDEX_MAGIC) : INDEX_HEADER_BYTES].view("<u8").tolist()
    expected = [entry.documents, entry.tokens, entry.sentence_ends]
    if raw[: len(INDEX_MAGIC)].tobytes() != INDEX_MAGIC or header != expected:
        raise damaged(path, f"its header does not hold {expected}")
    arrays = {
        name: raw[start : start + np.dtype(d).itemsize * length].view(d)
        for name, (d, length, start) in index_layout(entry.documents, entry.sentence_ends).items()
    }
    if int(arrays["token_offsets"][-1]) != entry.tokens:
        raise damaged(path, "its last offset is wrong")
    tokens_path = folder / entry.tokens_file.path
    tokens = np.memmap(tokens_path, np.dtype(dtype).newbyteorder("<"), mode="r")
    return MappedShard(tokens_path, path, tokens.view(np.ndarray), **arrays)

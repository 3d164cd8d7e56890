"""Whether the files of a folder of shards are, byte for byte, those that were written."""

from pathlib import Path

import numpy as np

from data_pipeline.storage.damage import file_problem
from data_pipeline.storage.manifest import EncoderEntry, Manifest, ShardEntry
from data_pipeline.storage.shard_files import MappedShard, map_shard
from data_pipeline.storage.shards import Shards
from data_pipeline.watch import Watch, unwatched


def verify(folder: Path, manifest: Manifest, watch: Watch = unwatched) -> list[str]:
    """One sentence for each damaged file, in their order; [] where all is well.

    Compares sizes and checksums, and where these agree the numbers inside: offsets must rise and
    end at the totals, ids lie inside the vocabulary.
    """
    found = _file_problems(folder, manifest, watch)
    for shard, stream in manifest.streams():
        if found[shard.tokens_file.path] or found[shard.index_file.path]:
            continue
        found[shard.index_file.path] = _shard_problem(folder, shard, stream)
    return [problem for problem in found.values() if problem]


def check_hashes(shards: Shards, watch: Watch = unwatched) -> None:
    """Read every file of opened shards once and compare its checksum (xxh3, about a GB/s).

    Raises ValueError naming the first damaged file. The numbers inside are left to the reader.
    """
    found = _file_problems(shards.folder, shards.manifest, watch)
    problems = [problem for problem in found.values() if problem]
    if problems:
        others = len(problems) - 1
        more = f" (and {others} more file{'s' if others > 1 else ''})" if others else ""
        raise ValueError(
            f"{problems[0]}{more}. All damage is named by: "
            f"python -m data_pipeline verify {shards.folder}"
        )


def _file_problems(folder: Path, manifest: Manifest, watch: Watch) -> dict[str, str | None]:
    files = manifest.files()
    with watch(sum(f.size_bytes for f in files)) as on_bytes:
        return {file.path: file_problem(folder, file, on_bytes) for file in files}


def _shard_problem(folder: Path, entry: ShardEntry, stream: Manifest | EncoderEntry) -> str | None:
    try:
        shard = map_shard(folder, entry, stream.dtype)
    except ValueError as error:
        return str(error)
    reason = _inconsistency(shard, entry, stream.vocab_size)
    return f"{folder / entry.index_file.path}: {reason}" if reason else None


def _inconsistency(shard: MappedShard, entry: ShardEntry, vocab_size: int) -> str | None:
    """What is impossible about the numbers of a shard, or None."""
    tokens = shard.token_offsets.astype(np.int64)
    sentences = shard.sentence_offsets.astype(np.int64)
    if tokens[0] or tokens[-1] != entry.tokens or (np.diff(tokens) < 1).any():
        return "document offsets do not rise from 0 to the number of tokens"
    if sentences[0] or sentences[-1] != entry.sentence_ends or (np.diff(sentences) < 1).any():
        return "sentence offsets do not rise from 0 to the number of sentence ends"
    if (shard.prompt_lengths >= np.diff(tokens)).any():
        return "a prompt is as long as its document"
    ends = shard.sentence_ends.astype(np.int64)
    is_last = np.zeros(len(ends), np.bool_)
    is_last[sentences[1:] - 1] = True
    if (ends[is_last] != np.diff(tokens)).any() or (ends < 1).any():
        return "a document does not end with its last sentence"
    if (np.diff(ends)[~is_last[:-1]] < 1).any():
        return "sentence ends of a document do not rise"
    if shard.tokens.min() < 0 or shard.tokens.max() >= vocab_size:
        return f"a token id lies outside the vocabulary [0, {vocab_size})"
    return None

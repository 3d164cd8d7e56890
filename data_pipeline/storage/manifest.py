"""manifest.json: what a folder of shards holds, with the size and checksum of each of its files.

It is written last, so a folder without one is not finished. Its own checksum covers every field,
so that a damaged manifest is found as surely as a damaged shard. docs/data-format.md shows one.
"""

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import xxhash

from data_pipeline.tokenizing.special import SPECIALS, SpecialIds

FORMAT = 1
MANIFEST_FILE = "manifest.json"
TOKENIZER_FOLDER = "tokenizer"
ENCODER_TOKENIZER_FOLDER = "encoder_tokenizer"
SPLITS = ("train", "validation")
Dtype = Literal["uint16", "int32"]
_FILES = r"(train|validation)/\d+(\.encoder)?\.(tokens|index)|(encoder_)?tokenizer/[\w.-]+"


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of the folder, by its path inside it ("train/00000.tokens")."""

    path: str
    size_bytes: int
    xxh3: str


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """Two files, the tokens of some documents and their index."""

    documents: int
    tokens: int
    sentence_ends: int
    tokens_file: FileEntry
    index_file: FileEntry


@dataclass(frozen=True, kw_only=True)
class SplitEntry:
    """The shards of one split in the order of their documents."""

    documents: int
    tokens: int
    fingerprint: str
    shards: tuple[ShardEntry, ...]


@dataclass(frozen=True, kw_only=True)
class EncoderEntry:
    """The second stream of a folder: its documents under another tokenizer, shard for shard."""

    dtype: Dtype
    vocab_size: int
    special: SpecialIds
    aliases: dict[str, str]
    tokenizer_fingerprint: str
    tokenizer_files: tuple[FileEntry, ...]
    shards: dict[str, tuple[ShardEntry, ...]]  # of each split, the documents of its shards
    longest_tokens: dict[str, tuple[int, int]]  # of a document of each split: first stream, this

    @property
    def tokens(self) -> int:
        return sum(s.tokens for shards in self.shards.values() for s in shards)


@dataclass(frozen=True, kw_only=True)
class SourceEntry:
    """One input file, or the data files of a saved dataset, one behind the other.

    size_bytes and xxh3 are None where it could not be read as bytes.
    """

    path: str
    documents: int
    size_bytes: int | None
    xxh3: str | None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that is known about a folder of shards."""

    format: int
    dtype: Dtype
    vocab_size: int
    special: SpecialIds
    aliases: dict[str, str]
    tokenizer_fingerprint: str
    tokenizer_files: tuple[FileEntry, ...]
    settings: dict[str, Any]  # what prepare was asked for
    source: str | None  # where the text comes from, in the user's words
    licence: str | None
    sources: tuple[SourceEntry, ...]
    skipped: dict[str, int]  # reason: how many documents, lines or files
    cleaned: dict[str, int]  # reason: how many characters were taken out of kept documents
    splits: dict[str, SplitEntry]
    encoder: EncoderEntry | None = None  # where the folder holds two streams

    @property
    def documents(self) -> int:
        return sum(s.documents for s in self.splits.values())

    @property
    def tokens(self) -> int:
        return sum(s.tokens for s in self.splits.values())

    def files(self) -> list[FileEntry]:
        """Every file of the folder but the manifest, in a fixed order."""
        files = [*self.tokenizer_files, *(self.encoder.tokenizer_files if self.encoder else ())]
        for shard, _ in self.streams():
            files += [shard.tokens_file, shard.index_file]
        return files

    def streams(self) -> list[tuple[ShardEntry, "Manifest | EncoderEntry"]]:
        """Every shard of either stream, and what says how its ids are stored."""
        first = [(s, self) for split in self.splits.values() for s in split.shards]
        encoder = self.encoder
        if encoder is None:
            return [*first]
        return [*first, *((s, encoder) for shards in encoder.shards.values() for s in shards)]


def split_fingerprint(
    dtype: str,
    tokenizer: str,
    shards: tuple[ShardEntry, ...],
    encoder: tuple[str, str, tuple[ShardEntry, ...]] | None = None,
) -> str:
    """A hex number that changes when any byte of a split, or the meaning of its ids, changes.

    encoder: the same three of its second stream, where it has one.
    """
    content = []
    for stored, vocabulary, files in [(dtype, tokenizer, shards), *([encoder] if encoder else [])]:
        content += [stored, vocabulary, [[s.tokens_file.xxh3, s.index_file.xxh3] for s in files]]
    return xxhash.xxh3_128_hexdigest(json.dumps(content).encode())


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write manifest.json with its own checksum; without a second stream it has no such field."""
    content = asdict(manifest)
    if manifest.encoder is None:
        del content["encoder"]
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=1, ensure_ascii=False)
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: str | Path) -> Manifest:
    """Read and check manifest.json. Raises ValueError saying what is wrong with it."""
    path = Path(folder) / MANIFEST_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no {MANIFEST_FILE}, so it is no finished folder of shards. "
            "Make one with: python -m data_pipeline prepare."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}). Prepare the data again.") from error
    if not isinstance(content, dict) or "format" not in content:
        raise ValueError(f"{path} is no manifest: it has no field 'format'.")
    if content["format"] != FORMAT:
        raise ValueError(
            f"{path} was written by format {content['format']}, this version reads {FORMAT}. "
            "Run: python -m data_pipeline prepare."
        )
    stated = content.pop("checksum", None)
    if stated != _checksum(content):
        raise ValueError(
            f"{path} is damaged or was edited: its checksum is {_checksum(content)}, stated is "
            f"{stated}. Prepare the data again."
        )
    try:
        manifest = _from_json(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is no manifest of this program ({error!r}).") from error
    _check_values(manifest, path)
    return manifest


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    # Half a character, which only damage brings here, counts as another byte.
    return xxhash.xxh3_128_hexdigest(canonical.encode("utf-8", "surrogatepass"))


def _from_json(content: dict[str, Any]) -> Manifest:
    splits = {
        name: SplitEntry(**split | {"shards": _shards_from_json(split["shards"])})
        for name, split in content["splits"].items()
    }
    encoder = content.get("encoder")
    if encoder is not None:
        shards = {name: _shards_from_json(shards) for name, shards in encoder["shards"].items()}
        longest = {name: tuple(pair) for name, pair in encoder["longest_tokens"].items()}
        own = {"shards": shards, "longest_tokens": longest}
        encoder = EncoderEntry(**encoder | _vocabulary_from_json(encoder) | own)
    return Manifest(
        **content
        | _vocabulary_from_json(content)
        | {
            "sources": tuple(SourceEntry(**s) for s in content["sources"]),
            "splits": splits,
            "encoder": encoder,
        }
    )


def _vocabulary_from_json(content: dict[str, Any]) -> dict[str, Any]:
    return {
        "special": SpecialIds(**content["special"]),
        "tokenizer_files": tuple(FileEntry(**f) for f in content["tokenizer_files"]),
    }


def _shards_from_json(shards: list[dict[str, Any]]) -> tuple[ShardEntry, ...]:
    names = ("tokens_file", "index_file")
    files: list[dict[str, Any]] = [{name: FileEntry(**s[name]) for name in names} for s in shards]
    return tuple(ShardEntry(**s | own) for s, own in zip(shards, files))


def _check_values(manifest: Manifest, path: Path) -> None:
    """Raise ValueError where a field could lead a reader outside the folder or outside an array."""
    if tuple(manifest.splits) != SPLITS:
        raise ValueError(f"{path}: splits must be {SPLITS}, got {tuple(manifest.splits)}.")
    for stream in (manifest, manifest.encoder):
        if stream is not None:
            _check_vocabulary(stream, path)
    for file in manifest.files():
        if not re.fullmatch(_FILES, file.path):
            raise ValueError(f"{path}: {file.path!r} is no file this program writes.")
    encoder = manifest.encoder
    if encoder is not None:
        _check_aligned(manifest, encoder, path)
    for name, split in manifest.splits.items():
        second = encoder and (encoder.dtype, encoder.tokenizer_fingerprint, encoder.shards[name])
        fingerprint = split_fingerprint(
            manifest.dtype, manifest.tokenizer_fingerprint, split.shards, second
        )
        counts = [sum(getattr(s, f) for s in split.shards) for f in ("documents", "tokens")]
        if counts != [split.documents, split.tokens] or fingerprint != split.fingerprint:
            raise ValueError(f"{path}: the totals of {name} do not follow from its shards.")


def _check_vocabulary(stream: Manifest | EncoderEntry, path: Path) -> None:
    if stream.dtype not in get_args(Dtype):
        raise ValueError(f"{path}: dtype must be one of {get_args(Dtype)}, got {stream.dtype!r}.")
    ids = [getattr(stream.special, f.name) for f in fields(SpecialIds)]
    if len(ids) != len(SPECIALS) or not all(0 <= i < stream.vocab_size for i in ids):
        raise ValueError(f"{path}: special ids must lie in [0, {stream.vocab_size}), got {ids}.")


def _check_aligned(manifest: Manifest, encoder: EncoderEntry, path: Path) -> None:
    """Raise ValueError unless the second stream has the documents of the first, shard for shard."""
    for name, split in manifest.splits.items():
        documents = [s.documents for s in encoder.shards.get(name, ())]
        longest = encoder.longest_tokens.get(name, ())
        if documents != [s.documents for s in split.shards] or len(longest) != 2:
            raise ValueError(
                f"{path}: the encoder's shards of {name} do not hold the documents of the others."
            )

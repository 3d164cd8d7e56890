"""A thousand random corruptions of a folder of shards: each is found, or changes nothing."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.storage.manifest import MANIFEST_FILE, read_manifest
from data_pipeline.storage.shards import open_shards
from data_pipeline.storage.verify import check_hashes, verify

KINDS = ("flip", "set", "zero", "random", "truncate", "empty", "extend", "insert", "remove", "swap")
KINDS += ("delete", "folder", "rename", "exchange")
Contents = dict[str, bytes | None]  # of every path in the folder; None: it is a folder


@pytest.fixture(scope="module", params=["sentencepiece", "byte_bpe"])
def whole(request, tmp_path_factory, model_file, byte_bpe_folder, corpus_file) -> Path:
    """Several shards of both splits, with prompts nowhere and both kinds of tokenizer files."""
    folder = tmp_path_factory.mktemp("whole") / "shards"
    is_model = request.param == "sentencepiece"
    prepare(
        PrepareSettings(
            input=[str(corpus_file)],
            tokenizer=str(model_file if is_model else byte_bpe_folder),
            output=str(folder),
            validation=0.2,
            shard_tokens=2500,
            mix=2 if is_model else 1,
        )
    )
    return folder


def contents(folder: Path) -> Contents:
    return {
        str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes()
        for p in sorted(folder.rglob("*"))
    }


def corrupt(folder: Path, kind: str, rng: np.random.Generator) -> str:
    """Do one kind of damage to one random file, or two; the name of the first."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    path = files[int(rng.integers(len(files)))]
    raw = bytearray(path.read_bytes())
    at = int(rng.integers(len(raw)))
    block = slice(at, at + int(rng.integers(1, 700)))
    size = len(raw[block])
    if kind == "flip":
        raw[at] ^= 1 << int(rng.integers(8))
    elif kind == "set":
        raw[at] = int(rng.integers(256))
    elif kind == "zero":
        raw[block] = bytes(size)
    elif kind == "random":
        raw[block] = rng.bytes(size)
    elif kind == "truncate":
        del raw[at:]
    elif kind == "empty":
        raw.clear()
    elif kind == "extend":
        raw += rng.bytes(size)
    elif kind == "insert":
        raw[at:at] = rng.bytes(size)
    elif kind == "remove":
        del raw[block]
    elif kind == "swap":  # two blocks of one file, as a disk that mixes its sectors up
        other = int(rng.integers(len(raw)))
        size = min(size, len(raw) - other)
        raw[at : at + size], raw[other : other + size] = (
            raw[other : other + size],
            raw[at : at + size],
        )
    if kind in ("delete", "folder", "rename", "exchange"):
        return _displace(path, files, kind, rng)
    path.write_bytes(raw)
    return str(path.relative_to(folder))


def _displace(path: Path, files: list[Path], kind: str, rng: np.random.Generator) -> str:
    name = str(path.relative_to(path.parents[0 if path.name == MANIFEST_FILE else 1]))
    if kind == "exchange":  # with one of its kind, often of the same size
        alike = [f for f in files if f.suffix == path.suffix and f != path] or files
        other = alike[int(rng.integers(len(alike)))]
        content = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif kind == "rename":
        path.rename(path.with_name(path.name + ".bak"))
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
    return name


def found_by(folder: Path) -> list[str]:
    """Who finds damage, with what is said: any exception but ValueError fails the test."""
    messages = []
    try:
        messages += verify(folder, read_manifest(folder))
    except ValueError as error:
        messages.append(str(error))
    try:
        shards = open_shards(folder)
        shards.tokenizer().encode(["the river rose"])
        check_hashes(shards)
    except ValueError as error:
        messages.append(str(error))
    return messages


def everything(folder: Path) -> list[object]:
    """All that training can get out of a folder: ids, lengths, sentence ends, specials, texts."""
    shards = open_shards(folder)
    tokenizer = shards.tokenizer()
    got: list[object] = [shards.manifest, tokenizer.fingerprint, tokenizer.vocab_size]
    for split in shards.splits.values():
        all_N = np.arange(split.num_documents)
        lengths_N = split.lengths(all_N)
        tokens = split.tokens(all_N, np.zeros_like(all_N), lengths_N)
        ends, offsets = split.sentence_ends(all_N)
        numbers = (lengths_N, tokens, split.prompt_lengths(all_N), ends, offsets)
        got += [a.tolist() for a in numbers]
        got.append(tokenizer.decode(tokens[:200]))
    return got


def _assert_found_or_harmless(folder: Path, kind: str, rng: np.random.Generator, whole) -> bool:
    """True if the damage was found. Reading such a folder fails with ValueError alone."""
    name = corrupt(folder, kind, rng)
    messages = found_by(folder)
    try:
        got = everything(folder)
    except ValueError as error:
        assert messages, f"{kind} of {name} is an error of the reader alone: {error}"
        got = None
    if messages:
        assert all(str(folder) in m for m in messages), (kind, name, messages)
        assert any(Path(name).name in m or MANIFEST_FILE in m for m in messages), (name, messages)
        return True
    assert got == everything(whole), f"{kind} of {name} was not found, and changes what is read"
    return False


def _run(whole: Path, tmp_path: Path, kinds: list[str], seed: int) -> int:
    rng = np.random.default_rng(seed)
    before = contents(whole)
    num_found = 0
    for number, kind in enumerate(kinds):
        folder = tmp_path / f"{number}"
        shutil.copytree(whole, folder)
        is_found = _assert_found_or_harmless(folder, kind, rng, whole)
        # What is not found is the same bytes, or white space of the manifest.
        if not is_found:
            now = contents(folder)
            assert set(now) == set(before)
            changed = [n for n in now if now[n] != before[n]]
            assert changed in ([], [MANIFEST_FILE])
            if changed:
                squeezed = [re.sub(rb"\s+", b"", c[MANIFEST_FILE] or b"") for c in (now, before)]
                assert squeezed[0] == squeezed[1]
        num_found += is_found
        shutil.rmtree(folder)
    return num_found


def test_each_kind_of_damage_is_found(whole, tmp_path):
    assert _run(whole, tmp_path, list(KINDS), seed=0) >= len(KINDS) - 2


@pytest.mark.slow
def test_five_hundred_corruptions_of_each_tokenizer_are_found_or_harmless(whole, tmp_path):
    """A thousand in all, over tokens, index, manifest and tokenizer files; half a minute in all."""
    kinds = [KINDS[n % len(KINDS)] for n in range(500)]
    assert _run(whole, tmp_path, kinds, seed=1) > 450

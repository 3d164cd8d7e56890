"""Files of the right size with other bytes in them: found where they are read, or by checksums."""

import re
import resource
import shutil
from dataclasses import replace

import numpy as np
import pytest

from data_pipeline.packing.plan import PackingConfig, plan_window
from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.storage.shard_files import index_layout
from data_pipeline.storage.shards import open_shards
from data_pipeline.storage.verify import check_hashes
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

ARRAYS = ("token_offsets", "sentence_offsets", "prompt_lengths", "sentence_ends")
PACKING = PackingConfig(source_tokens=64, row_tokens=150)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, model_file, corpus_file):
    folder = tmp_path_factory.mktemp("damage") / "shards"
    prepare(
        PrepareSettings(
            input=[str(corpus_file)],
            tokenizer=str(model_file),
            output=str(folder),
            validation=0.1,
            shard_tokens=3000,
        )
    )
    return folder


@pytest.fixture
def folder(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "shards")


def write_into(folder, array, at, values) -> str:
    """Change numbers of an array of the first index; its path."""
    shards = open_shards(folder)
    entry = shards.manifest.splits["train"].shards[0]
    path = folder / entry.index_file.path
    dtype, length, start = index_layout(entry.documents, entry.sentence_ends)[array]
    raw = bytearray(path.read_bytes())
    changed = np.frombuffer(raw, dtype, length, start).copy()
    changed[at] = values
    raw[start : start + changed.nbytes] = changed.tobytes()
    path.write_bytes(raw)
    return str(path)


def read_all(folder) -> None:
    """Plan and build every row of an epoch."""
    shards = open_shards(folder)
    transform = BlankTransform(
        BlankConfig(), shards.special, source_tokens=64, vocab_size=shards.vocab_size
    )
    plan = plan_window(shards.splits["train"], transform, PACKING, seed=1, epoch=0, window=0)
    plan.build(np.arange(plan.num_rows))


def test_whole_shards_are_read_and_their_hashes_are_right(folder):
    read_all(folder)
    check_hashes(open_shards(folder))


@pytest.mark.parametrize(
    ("array", "at", "value", "says"),
    [
        ("token_offsets", 3, 2**63 + 5, "offsets of document [23] do not rise within"),
        ("token_offsets", 3, 0, "offsets of document 2 "),
        ("token_offsets", 3, 2900, "offsets of document 3 |document 2 does not end"),
        ("token_offsets", 0, 1, "document 0 does not end with its last sentence"),
        ("sentence_offsets", 2, 10**9, "offsets of document [12] "),
        ("sentence_offsets", 2, 0, "offsets of document 1 "),
        ("prompt_lengths", 4, 10**6, "document 4 is no longer than its prompt"),
        ("sentence_ends", 0, 0, "sentence ends of document 0 do not rise|document 0 does not end"),
        ("sentence_ends", slice(None), 4 * 10**9, "does not end with its last sentence"),
    ],
)
def test_numbers_that_cannot_be_name_the_index_and_what_to_do(folder, array, at, value, says):
    path = write_into(folder, array, at, value)
    with pytest.raises(ValueError, match=says) as raised:
        read_all(folder)
    assert str(raised.value).startswith(f"{path} is damaged: ")
    assert str(raised.value).endswith(f"python -m data_pipeline verify {folder}")


@pytest.mark.parametrize("array", ARRAYS)
def test_random_bytes_in_an_index_are_an_error_and_ask_for_no_memory(folder, array):
    entry = open_shards(folder).manifest.splits["train"].shards[0]
    read_all(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, length, _ = index_layout(entry.documents, entry.sentence_ends)[array]
    rng = np.random.default_rng(3)
    for _ in range(20):
        whole = (folder / entry.index_file.path).read_bytes()
        at = slice(start := int(rng.integers(length)), start + 4)
        size = len(range(*at.indices(length)))
        write_into(folder, array, at, rng.integers(0, 1 << 32, size))
        with pytest.raises(ValueError, match=re.escape(entry.index_file.path)):
            read_all(folder)
        (folder / entry.index_file.path).write_bytes(whole)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 50_000


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_an_id_outside_the_vocabulary_names_its_file(folder, dtype):
    split = open_shards(folder).splits["train"]
    path = folder / "train/00000.tokens"
    ids = np.fromfile(path, "<u2").astype(dtype)
    ids[-1] = 65535 if dtype == "uint16" else -7
    path.write_bytes(ids.tobytes())
    first, *others = split._entry.shards
    tokens_file = replace(first.tokens_file, size_bytes=ids.nbytes)
    split._entry = replace(split._entry, shards=(replace(first, tokens_file=tokens_file), *others))
    split._dtype = dtype
    last = first.documents - 1
    length = split.lengths([last])
    split.tokens([last], [0], length - 1)
    with pytest.raises(ValueError, match="outside the vocabulary") as raised:
        split.tokens([0, last, 1], [0, length[0] - 2, 0], [2, length[0], 2])
    assert str(raised.value).startswith(
        f"{path} is damaged: document {last} holds the id {ids[-1]}"
    )


def test_hashes_find_an_id_that_became_another(folder):
    path = folder / "train/00000.tokens"
    raw = bytearray(path.read_bytes())
    raw[10] ^= 1
    path.write_bytes(raw)
    shards = open_shards(folder)
    with pytest.raises(ValueError, match=re.escape(f"{path} has the checksum")):
        check_hashes(shards)
    (folder / "validation/00000.index").write_bytes(b"")
    with pytest.raises(ValueError, match=r"\(and 1 more file\)"):
        check_hashes(shards)


@pytest.mark.parametrize("name", ["train/00000.tokens", "train/00000.index"])
def test_a_file_that_shrinks_or_goes_after_the_start_is_named(folder, name):
    shards = open_shards(folder)
    (folder / name).write_bytes((folder / name).read_bytes()[:-2])
    with pytest.raises(ValueError, match=rf"{name} has \d+ bytes, not \d+\. Prepare the data"):
        shards.splits["train"].lengths([0])
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name} is missing"):
        shards.splits["train"].lengths([0])


def test_a_changed_tokenizer_is_named_before_a_library_reads_it(folder, monkeypatch):
    shards = open_shards(folder)
    monkeypatch.setattr("data_pipeline.storage.shards.open_tokenizer", None)
    for file in shards.manifest.tokenizer_files:
        whole = (folder / file.path).read_bytes()
        (folder / file.path).write_bytes(whole[:9] + bytes([whole[9] ^ 1]) + whole[10:])
        with pytest.raises(ValueError, match=rf"{file.path} has the checksum"):
            shards.tokenizer()
        (folder / file.path).write_bytes(whole)


@pytest.mark.parametrize("field", ["tokenizer_fingerprint", "vocab_size", "special"])
def test_a_manifest_of_another_tokenizer_is_refused(folder, field):
    shards = open_shards(folder)
    shards.tokenizer()
    special = replace(shards.special, gmask=shards.special.smask, smask=shards.special.gmask)
    other = {"tokenizer_fingerprint": "0" * 32, "vocab_size": 371, "special": special}[field]
    changed = replace(shards, manifest=replace(shards.manifest, **{field: other}))
    with pytest.raises(ValueError, match="is not the tokenizer these shards were made with"):
        changed.tokenizer()

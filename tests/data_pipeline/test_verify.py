"""Every damaged file is named; a folder that was not touched is whole."""

import json
import re
import shutil

import numpy as np
import pytest

from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.storage.manifest import MANIFEST_FILE, read_manifest
from data_pipeline.storage.shards import open_shards
from data_pipeline.storage.verify import verify


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, model_file, corpus_file):
    folder = tmp_path_factory.mktemp("verify") / "shards"
    prepare(
        PrepareSettings(
            input=[str(corpus_file)],
            tokenizer=str(model_file),
            output=str(folder),
            validation=0.1,
            shard_tokens=2000,
        )
    )
    return folder


@pytest.fixture
def folder(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "shards")


def problems(folder) -> list[str]:
    return verify(folder, read_manifest(folder))


def test_an_untouched_folder_is_whole(folder):
    assert problems(folder) == []


def test_one_flipped_bit_in_any_file_is_found_and_named(folder):
    rng = np.random.default_rng(0)
    files = [folder / f.path for f in read_manifest(folder).files()]
    assert len(files) > 6
    for path in files:
        whole = path.read_bytes()
        content = bytearray(whole)
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        assert [p.startswith(f"{path} has the checksum") for p in problems(folder)] == [True]
        path.write_bytes(whole)


def test_a_shortened_file_is_found_at_open_and_by_verify(folder):
    path = folder / "train/00000.tokens"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"00000\.tokens has \d+ bytes, not"):
        open_shards(folder)
    assert len(problems(folder)) == 1


def test_all_damaged_files_are_named(folder):
    (folder / "train/00000.index").unlink()
    (folder / "tokenizer/tokenizer.model").write_bytes(b"x")
    assert [p.split(" ")[0] for p in problems(folder)] == [
        str(folder / "tokenizer/tokenizer.model"),
        str(folder / "train/00000.index"),
    ]


def test_any_change_of_the_manifest_is_found(folder):
    path = folder / MANIFEST_FILE
    text = path.read_text()
    places = [i for i, c in enumerate(text) if not c.isspace()]
    for at in np.random.default_rng(1).choice(places, 60, replace=False).tolist():
        path.write_text(text[:at] + ("7" if text[at] != "7" else "8") + text[at + 1 :])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            read_manifest(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "written by format 2, this version reads 1. Run: python -m"),
        ({"dtype": "float64"}, "dtype must be one of"),
        ({"vocab_size": 3}, r"special ids must lie in \[0, 3\)"),
        ({"tokenizer_fingerprint": "0"}, "totals of train do not follow"),
        ({"special": 3}, "is no manifest of this program"),
        ({"splits": {}}, "splits must be"),
    ],
)
def test_a_manifest_with_impossible_fields_is_refused(folder, change, says):
    _rewrite(folder, change)
    with pytest.raises(ValueError, match=says):
        open_shards(folder)


def test_a_manifest_cannot_lead_outside_its_folder(folder):
    content = json.loads((folder / MANIFEST_FILE).read_text())
    content["splits"]["train"]["shards"][0]["tokens_file"]["path"] = "../../etc/passwd"
    _rewrite(folder, content)
    with pytest.raises(ValueError, match="is no file this program writes"):
        open_shards(folder)


def test_a_folder_without_a_manifest_is_not_finished(folder):
    (folder / MANIFEST_FILE).unlink()
    with pytest.raises(ValueError, match=r"no manifest\.json.*data_pipeline prepare"):
        open_shards(folder)


@pytest.mark.parametrize(
    ("array", "at", "value", "says"),
    [
        ("token_offsets", 1, 0, "document offsets do not rise"),
        ("sentence_offsets", 1, 0, "sentence offsets do not rise"),
        ("prompt_lengths", 0, 60000, "a prompt is as long as its document"),
        ("sentence_ends", 0, 0, "does not end with its last sentence|do not rise"),
    ],
)
def test_impossible_numbers_with_right_checksums_are_found(folder, array, at, value, says):
    from data_pipeline.storage.shard_files import index_layout

    content = json.loads((folder / MANIFEST_FILE).read_text())
    entry = content["splits"]["train"]["shards"][0]
    path = folder / entry["index_file"]["path"]
    raw = bytearray(path.read_bytes())
    dtype, _, start = index_layout(entry["documents"], entry["sentence_ends"])[array]
    size = np.dtype(dtype).itemsize
    raw[start + at * size : start + (at + 1) * size] = np.array(value, dtype).tobytes()
    path.write_bytes(raw)
    _rewrite_checksums(folder, content)
    (problem,) = problems(folder)
    assert path.name in problem and re.search(says, problem)


def test_a_token_outside_the_vocabulary_is_found(folder):
    path = folder / "train/00000.tokens"
    path.write_bytes(b"\xff\xff" + path.read_bytes()[2:])
    _rewrite_checksums(folder, json.loads((folder / MANIFEST_FILE).read_text()))
    assert "lies outside the vocabulary" in problems(folder)[0]


def _rewrite(folder, change) -> None:
    """Change fields of the manifest and make its own checksum right."""
    from data_pipeline.storage.manifest import _checksum

    content = json.loads((folder / MANIFEST_FILE).read_text()) | change
    content.pop("checksum")
    (folder / MANIFEST_FILE).write_text(json.dumps({**content, "checksum": _checksum(content)}))


def _rewrite_checksums(folder, content) -> None:
    """Make all checksums of the shards right."""
    import xxhash

    from data_pipeline.storage.manifest import FileEntry, ShardEntry, split_fingerprint

    for split in content["splits"].values():
        for shard in split["shards"]:
            for file in (shard["tokens_file"], shard["index_file"]):
                file["xxh3"] = xxhash.xxh3_128_hexdigest((folder / file["path"]).read_bytes())
        shards = tuple(
            ShardEntry(**s | {f: FileEntry(**s[f]) for f in ("tokens_file", "index_file")})
            for s in split["shards"]
        )
        split["fingerprint"] = split_fingerprint(
            content["dtype"], content["tokenizer_fingerprint"], shards
        )
    _rewrite(folder, content)

"""A dataset that was saved anew under its old name is another input, as a file would be."""

import json

import pytest
import xxhash

from data_pipeline.preparing.prepare import AlreadyPrepared, PrepareSettings, prepare
from data_pipeline.preparing.request import open_request

datasets = pytest.importorskip("datasets")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "dataset"


@pytest.fixture
def settings(tmp_path, folder, model_file):
    return PrepareSettings(
        input=[str(folder)], tokenizer=str(model_file), output=str(tmp_path / "shards")
    )


def save(folder, *texts, **options) -> None:
    datasets.Dataset.from_dict({"text": list(texts)}).save_to_disk(str(folder), **options)


def test_a_dataset_saved_anew_is_not_finished_already(folder, settings):
    save(folder, "the river", "a bridge")
    prepare(settings)
    with pytest.raises(AlreadyPrepared):
        prepare(settings)
    save(folder, "the river", "a person")  # as many bytes
    with pytest.raises(ValueError, match=r"made by another request \(changed: .*dataset\)"):
        prepare(settings)


def test_slices_of_a_dataset_saved_anew_are_done_again(folder, settings):
    save(folder, "the river")
    before = open_request(settings).fingerprint
    assert open_request(settings).fingerprint == before
    save(folder, "a  bridge")
    assert open_request(settings).fingerprint != before


def test_a_cache_beside_the_rows_changes_nothing(folder, settings):
    save(folder, "the river", "a bridge")
    prepare(settings)
    (folder / "cache-0123456789abcdef.arrow").write_bytes(b"x")
    with pytest.raises(AlreadyPrepared):
        prepare(settings)


def test_the_manifest_holds_size_and_hash_that_others_can_check(folder, settings):
    save(folder, "the river", "a bridge", "old one", num_shards=2)
    (entry,) = prepare(settings).sources
    files = sorted(folder.glob("data-*.arrow"))
    assert len(files) == 2
    assert entry.size_bytes == sum(f.stat().st_size for f in files)
    joined = b"".join(f.read_bytes() for f in files)
    assert entry.xxh3 == xxhash.xxh3_128_hexdigest(joined)


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"_data_files": [1]}', "[" * 100_000])
def test_a_broken_state_file_is_one_line(folder, settings, state):
    save(folder, "the river")
    (folder / "state.json").write_text(state)
    with pytest.raises(ValueError, match=r"state\.json is none that save_to_disk writes"):
        open_request(settings)


def test_an_absent_data_file_is_named(folder, settings):
    save(folder, "the river")
    state = json.loads((folder / "state.json").read_text())
    (folder / state["_data_files"][0]["filename"]).unlink()
    with pytest.raises(ValueError, match=r"data-00000-of-00001\.arrow is named by .* and absent"):
        open_request(settings)

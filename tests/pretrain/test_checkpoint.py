"""pretrain/checkpoints/checkpoint.py: complete or invisible, untrusted until checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import xxhash

from pretrain.checkpoints import checkpoint_files as checkpoint

WEIGHTS = {"layer.weight": torch.arange(6.0).reshape(2, 3)}


def _written(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    safetensors.torch.save_file(WEIGHTS, folder / checkpoint.WEIGHTS)
    data = (folder / checkpoint.WEIGHTS).read_bytes()
    entry = {"size_bytes": len(data), "xxh3": xxhash.xxh3_128_hexdigest(data)}
    values: dict[str, Any] = {
        "format": checkpoint.FORMAT,
        "update": int(folder.name[-8:]),
        "world_size": 1,
        "state": {},
        "versions": {},
        "files": {checkpoint.WEIGHTS: entry},
    }
    manifest = checkpoint.Manifest(**(values | changes)).text()
    (folder / checkpoint.MANIFEST).write_text(manifest)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Complete steps 10 and 20, a 30 without its manifest and a 40 cut off in writing."""
    folder = tmp_path / "run" / "checkpoints"
    _written(folder / "step-00000010")
    _written(folder / "step-00000020")
    (_written(folder / "step-00000030") / checkpoint.MANIFEST).unlink()
    (folder / "step-00000040.partial").mkdir()
    return folder


def test_auto_takes_the_newest_complete_checkpoint(root: Path) -> None:
    found = checkpoint.find(root, "auto")
    assert found is not None
    assert found.name == "step-00000020"


def test_auto_goes_downward_from_the_one_that_the_run_stands_by(root: Path) -> None:
    """step-00000020 belongs to a branch that was given up by going back to step 10."""
    checkpoint.note_latest(root, "step-00000010")
    found = checkpoint.find(root, "auto")
    assert found is not None
    assert found.name == checkpoint.choose(root.parent).name == "step-00000010"
    (root / "step-00000010" / checkpoint.WEIGHTS).unlink()
    with pytest.raises(ValueError, match="is damaged"):
        checkpoint.find(root, "auto")


def test_a_latest_that_names_nothing_complete_is_passed_over(root: Path) -> None:
    checkpoint.note_latest(root, "step-00000030")
    found = checkpoint.find(root, "auto")
    assert found is not None
    assert found.name == "step-00000020"


@pytest.mark.parametrize("spoiled", [checkpoint.WEIGHTS, checkpoint.MANIFEST])
def test_auto_passes_over_a_truncated_newest_one_and_says_so(
    root: Path, spoiled: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = root / "step-00000020" / spoiled
    path.write_bytes(path.read_bytes()[:-3])
    found = checkpoint.find(root, "auto")
    assert found is not None
    assert found.name == "step-00000010"
    assert "passing over step-00000020" in caplog.text
    (root / "step-00000010" / checkpoint.WEIGHTS).unlink()
    with pytest.raises(ValueError, match=r"every checkpoint under .* is damaged"):
        checkpoint.find(root, "auto")


def test_auto_starts_afresh_where_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.find(tmp_path / "none", "auto") is None


@pytest.mark.parametrize("place", [".", "checkpoints/step-00000010"])
def test_a_path_names_a_run_or_one_of_its_checkpoints(root: Path, place: str) -> None:
    found = checkpoint.find(root, str(root.parent / place))
    assert found is not None
    assert found.name == ("step-00000020" if place == "." else "step-00000010")


@pytest.mark.parametrize(
    ("resume", "said"),
    [
        (None, "already holds checkpoints of this run"),
        ("nowhere", "no such folder"),
        (".", "holds no complete checkpoint"),
        ("checkpoints/step-00000030", "holds no complete checkpoint"),
    ],
)
def test_never_a_fresh_start_by_mistake(
    root: Path, resume: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent if resume and "/" in resume else root.parent.parent)
    with pytest.raises(ValueError, match=said):
        checkpoint.find(root, resume)


def test_weights_come_back_whole(root: Path) -> None:
    path = checkpoint.checked_weights(checkpoint.choose(root.parent))
    weights = safetensors.torch.load_file(path)
    assert weights.keys() == WEIGHTS.keys()
    assert torch.equal(weights["layer.weight"], WEIGHTS["layer.weight"])


def test_the_held_out_loss_is_known_where_it_was_measured(root: Path) -> None:
    measured = _written(root / "step-00000050", state={"held_out_nats": 2.5})
    assert checkpoint.held_out_nats(measured) == 2.5
    assert checkpoint.held_out_nats(root / "step-00000020") is None
    (measured / checkpoint.MANIFEST).write_text("{")
    assert checkpoint.held_out_nats(measured) is None


def test_a_step_that_is_not_there_names_those_that_are(root: Path) -> None:
    with pytest.raises(ValueError, match=r"not hold step-00000030.*step-00000010, step-00"):
        checkpoint.choose(root.parent, 30)


def _flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(lambda d: d[:-5], "bytes instead of"), (_flip, "is not what was saved")],
    ids=["truncated", "one bit flipped"],
)
def test_a_damaged_file_is_named(root: Path, spoil: Callable[[bytes], bytes], said: str) -> None:
    path = root / "step-00000020" / checkpoint.WEIGHTS
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=said) as refused:
        checkpoint.checked_weights(path.parent)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 1}, "has checkpoint format 1; this version reads 2"),
        ({"files": {}}, "lists files that no checkpoint has"),
        ({"files": {"../model.safetensors": {"size_bytes": 1, "xxh3": ""}}}, "lists files that no"),
    ],
)
def test_a_manifest_of_another_make_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = _written(tmp_path / "step-00000001", **changes)
    with pytest.raises(ValueError, match=said):
        checkpoint.read_manifest(folder)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"update": 20', '"update": 21', "is damaged: it is not what was saved as step-00000020"),
        ('"world_size": 1', '"world_size": 2', "is damaged"),
        ('"versions"', '"more"', "is not a checkpoint manifest"),
        ("{", "", "is not a checkpoint manifest"),
        ("{", "[" * 100_000, "is not a checkpoint manifest"),
    ],
)
def test_an_edited_manifest_is_noticed(root: Path, old: str, new: str, said: str) -> None:
    path = root / "step-00000020" / checkpoint.MANIFEST
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=said):
        checkpoint.read_manifest(path.parent)

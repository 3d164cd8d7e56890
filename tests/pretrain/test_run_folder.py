"""run_folder.py: one training at a time, and what changed since the last start."""

import dataclasses
import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

import pytest

from pretrain.comparing.runs import read_run
from pretrain.recording.hparams import shown_settings
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import parse_train
from pretrain.settings.data_config import CorpusConfig

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")


def test_a_second_training_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.lock()
    with pytest.raises(ValueError, match=r"is being written by process .* on "):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_disk_without_locks_is_named_and_the_run_begins(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unlockable(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", unlockable)
    folder = RunFolder(tmp_path / "run")
    folder.lock()
    folder.unlock()
    (said,) = caplog.messages
    assert said.startswith(f"the file system of {tmp_path / 'run'} has no locks (flock: ")
    assert "Lustre: -o flock" in said and "a second training in it is not noticed" in said


def test_an_error_of_the_disk_is_no_missing_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match="Input/output error"):
        RunFolder(tmp_path / "run").lock()


def test_changed_settings_are_named(tmp_path: Path) -> None:
    config, _ = parse_train(["--config", DEBUG])
    folder = RunFolder(tmp_path)
    assert folder.changes(config) == []
    folder.describe(config, {})
    assert folder.changes(config) == []
    longer = dataclasses.replace(config, steps=40)
    assert folder.changes(longer) == ["steps: 20 -> 40"]


def test_secrets_of_an_object_store_are_named_nowhere(tmp_path: Path) -> None:
    config, _ = parse_train(["--config", DEBUG])
    folder = RunFolder(tmp_path)
    folder.describe(config, {})
    place = "s3://key:secret@store/new"
    corpora = (CorpusConfig(shards=place, weight=1.0, name="new"),)
    data = dataclasses.replace(config.data, shards=place, local_cache="/nvme")
    (cache, change) = folder.changes(dataclasses.replace(config, data=data))
    assert "local_cache" in cache and change.endswith(" -> s3://store/new")
    several = dataclasses.replace(data, shards=None, corpora=corpora)
    moved = dataclasses.replace(config, data=several)
    assert "s3://store/new" in str(shown_settings(moved)) and "s3://store/new" in str(
        folder.changes(moved)
    )
    assert "secret" not in str([shown_settings(moved), folder.changes(moved)])
    folder.describe(moved, {})
    assert "secret" not in str(read_run(folder.path).settings)

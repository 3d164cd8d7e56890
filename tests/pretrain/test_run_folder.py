"""run_folder.py: one training at a time, and what changed since the last start."""

import dataclasses
from pathlib import Path

import pytest

from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import parse_train

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")


def test_a_second_training_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.lock()
    with pytest.raises(ValueError, match=r"is being written by process .* on "):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_changed_settings_are_named(tmp_path: Path) -> None:
    config, _ = parse_train(["--config", DEBUG])
    folder = RunFolder(tmp_path)
    assert folder.changes(config) == []
    folder.describe(config, {})
    assert folder.changes(config) == []
    longer = dataclasses.replace(config, steps=40)
    assert folder.changes(longer) == ["steps: 20 -> 40"]

"""pretrain/recording/hparams.py: what the HParams tab shows of a run."""

from dataclasses import replace
from pathlib import Path

from pretrain.recording.hparams import shown_settings
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import parse_train
from pretrain.settings.config import Config
from pretrain.settings.data_config import DataConfig
from pretrain.settings.sweep_file import Task


def test_a_task_shows_what_its_sweep_varies() -> None:
    config = Config(name="a", steps=5, data=DataConfig(shards="s"), seed=7)
    swept = ["seed", "optimizer.lr", "optimizer.betas", "model.block_positions"]
    assert shown_settings(config, swept) == {
        "seed": 7.0,
        "optimizer.lr": config.optimizer.lr,
        "optimizer.betas": str(list(config.optimizer.betas)),
        "model.block_positions": "true",
    }


def test_another_run_shows_what_is_not_usual_and_no_folders() -> None:
    config = Config(name="a", steps=5, data=DataConfig(shards="s"), runs="/scratch")
    config = replace(config, optimizer=replace(config.optimizer, lr=0.5), trains="all")
    assert shown_settings(config) == {"steps": 5.0, "optimizer.lr": 0.5}


def test_a_run_folder_keeps_which_task_it_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.swept() == []
    values = {"optimizer.lr": 0.5, "seed": 3}
    folder.note_task(Task("tried", "f.yaml", "r.yaml", 2, values, {}, "lr=0.5,seed=3", "77"))
    assert folder.swept() == ["optimizer.lr", "seed"]


def test_every_shown_setting_is_a_number_or_text() -> None:
    recipe = Path(__file__).parents[2] / "launch" / "recipes" / "glm_vae.yaml"
    config, _ = parse_train(["--config", str(recipe)])
    shown = shown_settings(config)
    assert shown["steps"] == config.steps
    assert all(isinstance(value, float | str) for value in shown.values())

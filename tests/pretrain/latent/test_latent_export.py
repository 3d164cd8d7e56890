"""An exported latent space is the one of the run: all parts, strictly, without its folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pretrain.filling.generate import load_run
from pretrain.handing_over import exported
from pretrain.handing_over.export import export
from pretrain.latent.opened import open_latent


@pytest.mark.parametrize("name", ["glm_vae", "optimus", "adavae", "lstm_vae"])
def test_the_model_comes_back(name: str, run_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "handed-over"
    export(run_of(name), folder)
    run, back = open_latent(run_of(name)), open_latent(folder)
    assert back.step == run.step == 7 and back.objective.name == name
    ours, theirs = back.model.state_dict(), run.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)
    assert back.tokenizer.fingerprint == run.tokenizer.fingerprint
    assert name in (folder / "README.md").read_text()
    assert back.config.objectives.chosen == run.config.objectives.chosen
    with pytest.raises(ValueError, match="exported after step 7, not 3"):
        open_latent(folder, 3)


def test_a_run_that_had_to_be_alone_comes_back(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its recipe does not name GLM, which a recipe has unless it says otherwise."""
    run, folder = tmp_path / "turns", tmp_path / "handed-over"
    shutil.copytree(run_of("lstm_vae"), run)
    config = (run / "config.yaml").read_text()
    assert "max_encoder_updates: 0" in config
    (run / "config.yaml").write_text(
        config.replace("max_encoder_updates: 0", "max_encoder_updates: 5")
    )
    export(run, folder)
    assert open_latent(folder).config.objectives.chosen == ["lstm_vae"]


def test_glm_beside_a_latent_space_fills_blanks_still(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    export(run_of("glm_vae"), tmp_path / "both")
    assert load_run(tmp_path / "both").backbone.shape.num_layers == 2
    export(run_of("adavae"), tmp_path / "alone")
    with pytest.raises(ValueError, match="has learned adavae, and fills no blanks"):
        exported.load(tmp_path / "alone")


def test_a_run_with_a_weight_too_few_is_not_exported(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = tmp_path / "optimus"
    shutil.copytree(run_of("optimus"), run)
    text = (run / "config.yaml").read_text().replace("injection: both", "injection: memory")
    (run / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"1 unknown: parts.optimus.injector.embedding.weight"):
        export(run, tmp_path / "never")

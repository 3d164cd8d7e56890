"""resume.py: what a checkpoint and the run that goes on from it must agree on."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.packing.sequence import Position
from pretrain.checkpoints import resume
from pretrain.checkpoints.checkpoint_files import Manifest
from pretrain.settings.cli import parse_train
from pretrain.settings.config import Config

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
FOUND = Path("runs/a/checkpoints/step-00000010")


def _config(*flags: str) -> Config:
    return parse_train(["--config", DEBUG, *flags])[0]


def _identity(config: Config, fingerprint: str = "f00d") -> dict[str, Any]:
    return resume.identity(config, data_fingerprint=fingerprint, vocab_size=384)


def _saved(config: Config, **changes: Any) -> Manifest:
    """A manifest of step 10 as it comes back from its file."""
    state = resume.state(_identity(config), {"glm": Position(1, 2, 3)})
    manifest = Manifest(1, 10, 1, json.loads(json.dumps(state)), {}, {})
    return dataclasses.replace(manifest, **changes)


def _refused(config: Config, fingerprint: str = "f00d", **changes: Any) -> str | None:
    saved = _saved(_config(), **changes)
    return resume.refusal(FOUND, saved, _identity(config, fingerprint), config)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--optimizer.lr=0.5", "--model.dropout_prob=0.3", "--objectives.glm.weight=2"),
        ("--batch.global_rows=16", "--data.num_workers=3", "--name=b"),
    ],
)
def test_what_does_not_touch_rows_or_shapes_may_change(flags: tuple[str, ...]) -> None:
    assert _refused(_config(*flags)) is None


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--seed=99", "trained on other rows: seed 1234 -> 99."),
        ("--objectives.glm.blanks.mask_ratio=0.5", "objectives.glm.blanks.mask_ratio 0.15 -> 0.5."),
        ("--data.packing.row_tokens=150", "data.packing.row_tokens 144 -> 150."),
        ("--model.hidden_size=64", "another model: hidden_size 32 -> 64."),
        ("--steps=10", "already stands at step 10 of steps = 10"),
        ("--stop_at_step=5", "already stands at step 10 of stop_at_step = 5"),
    ],
)
def test_what_decides_rows_or_shapes_must_stay(flag: str, said: str) -> None:
    assert said in str(_refused(_config(flag)))


def test_other_shards_are_refused_and_may_be_allowed() -> None:
    assert "fingerprint f00d -> beef" in str(_refused(_config(), "beef"))
    assert _refused(_config("--data.allow_other_data=true"), "beef") is None


def test_another_model_is_never_allowed() -> None:
    changed = _config("--model.num_layers=3", "--data.allow_other_data=true")
    assert "num_layers 2 -> 3" in str(_refused(changed))


def test_positions_come_back() -> None:
    assert resume.positions(_saved(_config())) == {"glm": Position(1, 2, 3)}


@pytest.mark.parametrize("state", [{}, {"positions": {"glm": {"epoch": "x"}}}, {"positions": 3}])
def test_a_state_of_another_make_is_one_line(state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not say where its data goes on"):
        resume.positions(_saved(_config(), state=state))
    assert "does not say which" in str(_refused(_config(), state=state))


VAE = "--objectives.glm_vae.weight=1"


def _refused_vae(*flags: str) -> str | None:
    manifest, wanted = _saved(_config(VAE)), _config(VAE, *flags)
    return resume.refusal(FOUND, manifest, _identity(wanted), wanted)


def test_the_loss_of_a_latent_space_may_change_and_its_shape_may_not() -> None:
    assert _refused_vae("--objectives.glm_vae.elbo.beta.ceiling=0.5") is None
    said = _refused_vae("--objectives.glm_vae.latent.size=8")
    assert said is not None and "another model: objectives.glm_vae.latent.size 32 -> 8." in said
    said = _refused_vae("--objectives.glm_vae.blanks.infill_prob=1")
    assert said is not None and "other rows: objectives.glm_vae.blanks.infill_prob 0.5 -> 1" in said


def test_an_objective_more_is_another_model() -> None:
    said = _refused(_config(VAE))
    assert said is not None and "another model: objectives.glm_vae.latent" in said


def test_a_checkpoint_from_before_a_setting_of_the_shape_has_its_default() -> None:
    manifest = _saved(_config())
    manifest.state["model"].pop("token_types")
    assert resume.refusal(FOUND, manifest, _identity(_config()), _config()) is None
    other = _config("--model.token_types=2")
    said = resume.refusal(FOUND, manifest, _identity(other), other)
    assert said is not None and "another model: token_types 0 -> 2." in said

"""Every shipped recipe can be read, and one that builds on another keeps what it does not name."""

from dataclasses import replace
from pathlib import Path

import pytest

from pretrain.settings.cli import parse_train
from pretrain.settings.config import Config

RECIPES = sorted((Path(__file__).resolve().parents[2] / "launch/recipes").glob("*.yaml"))


def config_of(recipe: Path, *overrides: str) -> Config:
    return parse_train(["--config", str(recipe), *overrides])[0]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_is_read(recipe: Path) -> None:
    config = config_of(recipe)
    assert config.name == recipe.stem
    for world_size in (1, 2):
        assert config.batch.accumulation(world_size) >= 1


def test_the_recipe_of_the_bare_launch_is_there(repository: Path) -> None:
    assert repository / "launch/recipes/glm_base.yaml" in RECIPES


def test_glm_base_and_large_are_the_published_models(repository: Path) -> None:
    base = config_of(repository / "launch/recipes/glm_base.yaml")
    large = config_of(repository / "launch/recipes/glm_large.yaml")
    assert (base.model.num_layers, base.model.hidden_size, base.model.num_heads) == (12, 768, 12)
    assert (large.model.num_layers, large.model.hidden_size, large.model.num_heads) == (
        24,
        1024,
        16,
    )
    assert (base.optimizer.lr, large.optimizer.lr) == (4e-4, 2e-4)
    assert (base.steps, base.schedule.decay_steps) == (150_000, 120_000)
    assert (large.steps, large.schedule.decay_steps) == (200_000, 160_000)
    assert large.optimizer.betas == base.optimizer.betas == (0.9, 0.98)
    assert large.data.packing == base.data.packing


def test_the_mixed_recipe_is_glm_base_on_two_corpora(repository: Path) -> None:
    base = config_of(repository / "launch/recipes/glm_base.yaml")
    mixed = config_of(repository / "launch/recipes/glm_base_mixed.yaml")
    assert [(c.called, c.weight) for c in mixed.data.sources] == [("books", 0.7), ("wiki", 0.3)]
    assert replace(mixed, name=base.name, data=base.data) == base
    assert mixed.data.packing == base.data.packing


def test_an_override_beats_the_recipe(repository: Path) -> None:
    config = config_of(repository / "launch/recipes/demo.yaml", "--optimizer.lr", "1e-3")
    assert config.optimizer.lr == 1e-3
    assert config.model.hidden_size == 128

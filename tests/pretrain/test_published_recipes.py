"""launch/recipes: the published GLM models, value by value, and their sizes on the meta device.

The table is that of the published configurations (THUDM/GLM at 4f61ed7, config/ds_block_*.sh and
config_block_*.json). What is not in it is ours and says so in the recipe.
"""

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.models.backbone import Backbone, num_positions
from pretrain.planning.rows import row_content
from pretrain.planning.state import parameter_sizes
from pretrain.settings.cli import flat, parse_train
from pretrain.settings.config import Config

RECIPES = Path(__file__).parents[2] / "launch" / "recipes"
BERT, ROBERTA, GPT2, CHINESE = 30592, 50304, 50304, 50048  # ids in use, padded to 128

# recipe -> rows of the token table, parameters in millions as the paper's table rounds them
SIZES = {
    "glm_base": (BERT, 109.3),
    "glm_large": (BERT, 334.7),
    "glm_410m": (BERT, 410.3),
    "glm_515m": (BERT, 514.6),
    "glm_roberta": (ROBERTA, 354.9),
    "glm_large_chinese": (CHINESE, 355.66),
    "glm_2b": (GPT2, 1920),
    "glm_10b": (GPT2, 9880),
}

_MIXED = {"min_generation_ratio": 0.25, "block_mask_prob": 0.1, "short_sequence_prob": 0.02}
_SHARED = {
    "source_tokens": 512,
    "dropout_prob": 0.1,
    "gradient_clipping": 1.0,
    "mask_ratio": 0.15,
    "poisson_lambda": 3.0,
    "norm_order": "pre",
    "gelu": "tanh",
    "norm_eps": 1e-5,
    "init_std": 0.02,
    "block_positions": "within_span",
    "span_order": "shuffled",
}


def _row(
    shape: str, lr: float, betas: str, eps: float, decay: float, iters: str, schedule: str, mix: str
) -> dict[str, Any]:
    """One column of the published table, written as it stands there."""
    layers, width, heads = (int(v) for v in shape.split("/"))
    steps, decay_steps = (int(v) * 1000 for v in iters.split("/"))
    kind, end, warmup = schedule.split()
    token, sentence, document = (float(v) for v in mix.split("/"))
    first, second = (float(v) for v in betas.split(","))
    return _SHARED | {
        "num_layers": layers, "hidden_size": width, "num_heads": heads,
        "lr": lr, "betas": (first, second), "eps": eps, "weight_decay": decay,
        "steps": steps, "decay_steps": decay_steps,
        "shape": kind, "end_ratio": float(end), "warmup_ratio": float(warmup),
        "token_prob": token, "sentence_prob": sentence, "document_prob": document,
    }  # fmt: skip


_COSINE, _LONG = "cosine .05 .05", "cosine .1 .04"
PUBLISHED = {
    "glm_base": _row(
        "12/768/12", 4e-4, ".9,.98", 1e-6, 0.1, "150/120", _COSINE, "1/0/0"
    ),
    "glm_large": _row(
        "24/1024/16", 2e-4, ".9,.98", 1e-6, 0.1, "200/160", _COSINE, "1/0/0"
    ),
    "glm_roberta": _row(
        "24/1024/16", 4e-4, ".9,.98", 1e-6, 0.01, "500/500", "linear .025 .06", "1/0/0"
    ),
    "glm_large_chinese": _MIXED | {"max_positions": 1024} | _row(
        "24/1024/16", 4e-4, ".9,.98", 1e-6, 0.01, "250/200", _LONG, ".4/.3/.3"
    ),
    "glm_2b": _MIXED | {"max_positions": 1024} | _row(
        "36/2048/32", 1e-4, ".9,.95", 1e-8, 0.1, "250/175", _LONG, ".4/.3/.3"
    ),
    "glm_10b": _MIXED | {"max_positions": 1024} | _row(
        "48/4096/64", 1e-4, ".9,.95", 1e-8, 0.1, "250/175", _LONG, ".5/.3/.2"
    ),
    # No configuration was published: trained like GLM-Large, on document-level blanks too.
    "glm_410m": _row(
        "30/1024/16", 2e-4, ".9,.98", 1e-6, 0.1, "200/160", _COSINE, ".5/0/.5"
    ) | {"min_generation_ratio": 0.5},
    "glm_515m": _row(
        "30/1152/18", 2e-4, ".9,.98", 1e-6, 0.1, "200/160", _COSINE, ".5/0/.5"
    ) | {"min_generation_ratio": 0.5},
}  # fmt: skip

# Samples of an update x tokens of a sample; the GPUs of Chinese and 2B are the launcher's 256.
TOKENS = {
    "glm_base": 1024 * 512,
    "glm_large": 1024 * 512,
    "glm_410m": 1024 * 512,
    "glm_515m": 1024 * 512,
    "glm_roberta": 64 * 16 * 8 * 512,
    "glm_large_chinese": 256 * 32 * 512,
    "glm_2b": 256 * 32 * 512,
    "glm_10b": 256 * 21 * 512,
}


@cache
def recipe(name: str, *overrides: str) -> Config:
    return parse_train(["--config", str(RECIPES / f"{name}.yaml"), *overrides])[0]


@pytest.mark.parametrize("name", SIZES)
def test_the_model_has_the_published_number_of_parameters(name: str) -> None:
    config, (vocab_size, millions) = recipe(name), SIZES[name]
    positions = num_positions(config.model, config.data.packing.source_tokens)
    with torch.device("meta"):
        backbone = Backbone(config.model, vocab_size=vocab_size, num_positions=positions)
    counted = sum(p.numel() for p in backbone.parameters())
    in_billions = millions > 1000  # those are given with two decimals
    digits = 2 if in_billions or name == "glm_large_chinese" else 1
    unit = 1000 if in_billions else 1
    assert round(counted / 1e6 / unit, digits) == millions / unit
    planned = parameter_sizes(config.model, vocab_size=vocab_size, num_positions=positions)
    assert sorted(planned) == sorted(p.numel() for p in backbone.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_value_is_in_the_recipe(name: str) -> None:
    leaves = flat(asdict(recipe(name)))
    objectives = vars(recipe(name).objectives)
    others = tuple(f"objectives.{n}." for n in objectives if n != "glm")  # which are not trained
    others += ("profile.",)  # its steps are not the run's
    found = {p.rsplit(".", 1)[-1]: v for p, v in leaves.items() if not p.startswith(others)}
    assert {key: found[key] for key in PUBLISHED[name]} == PUBLISHED[name]


@pytest.mark.parametrize("name", TOKENS)
def test_an_update_has_the_published_tokens(name: str) -> None:
    config = recipe(name)
    rows = row_content(
        "no shards", config.data.packing, config.objectives.glm.blanks, vocab_size=None, seed=1
    )
    tokens = config.batch.global_rows * rows.source_tokens
    # Rows of real text hold 1 to 3 % padding, those of the made-up text below half a percent.
    assert tokens == pytest.approx(TOKENS[name], rel=0.025)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8, 16, 32])
def test_the_usual_numbers_of_gpus_divide_the_batch(name: str, num_gpus: int) -> None:
    assert recipe(name).batch.accumulation(num_gpus) >= 1


@pytest.mark.parametrize("name", SIZES)
def test_attention_dropout_is_the_named_difference_and_can_be_restored(name: str) -> None:
    assert recipe(name).model.attention_dropout_prob == 0.0
    restored = recipe(name, "--model.attention_dropout_prob", "0.1")
    assert restored.model.attention_dropout_prob == 0.1


def test_every_recipe_but_the_small_ones_is_in_the_tables() -> None:
    small = {"debug", "demo", "demo_vae", "glm_base_mixed", "gpt2", "lstm_vae"}
    latent = {"glm_vae", "optimus_pretrain", "optimus_finetune", "adavae"}  # tables of their own
    shipped = {path.stem for path in RECIPES.glob("*.yaml")} - small - latent
    assert shipped == set(SIZES) == set(PUBLISHED) == set(TOKENS)

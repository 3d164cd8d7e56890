"""launch/recipes of latent models: the published values, and the sizes on the meta device.

Optimus: ChunyuanLI/Optimus at f3190fe and Li et al. 2020; AdaVAE: ImKeTT/AdaVAE at 0713786 and Tu
et al. 2022. What is not in the tables is ours and says so in the recipe.
"""

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from data_pipeline.tokenizing.special import SPECIALS, SpecialIds, Vocabulary
from pretrain.models.shape import padded_vocabulary
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.select import objectives_of, parts_of
from pretrain.settings.cli import flat, parse_train
from pretrain.settings.config import Config
from pretrain.training.setup import make_backbone

RECIPES = Path(__file__).parents[2] / "launch" / "recipes"
SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
BERT_IDS, GPT2_IDS = 28_996, 50_257  # of the tokenizers themselves
WIDTH = 768

_ADAM = {
    "optimizer.lr": 5e-5,
    "optimizer.betas": (0.9, 0.999),
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.0,
    "optimizer.gradient_clipping": 1.0,
    "schedule.shape": "linear",
    "schedule.end_ratio": 0.0,
}
_GPT2 = {
    "model.num_layers": 12,
    "model.hidden_size": 768,
    "model.num_heads": 12,
    "model.max_positions": 1024,
    "model.norm_order": "pre",
    "model.gelu": "tanh",
    "model.norm_eps": 1e-5,
    "model.dropout_prob": 0.1,
}
_OPTIMUS = {
    **_ADAM,
    **_GPT2,
    "schedule.warmup_ratio": 0.0,
    "objectives.optimus.tokenizers": "two",
    "objectives.optimus.encoder.num_layers": 12,
    "objectives.optimus.encoder.hidden_size": 768,
    "objectives.optimus.encoder.num_heads": 12,
    "objectives.optimus.encoder.max_positions": 512,
    "objectives.optimus.encoder.norm_eps": 1e-12,
    "objectives.optimus.latent.size": 32,
    "objectives.optimus.latent.pooling": "cls",
    "objectives.optimus.latent.injection": "both",
    "objectives.optimus.elbo.beta.schedule": "cyclical",
    "objectives.optimus.elbo.beta.zero_ratio": 0.5,
    "objectives.optimus.elbo.beta.increase_ratio": 0.25,
    "objectives.optimus.elbo.free_bits.mode": "hinge",
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "optimus_pretrain": _OPTIMUS
    | {
        "steps": 508_523,
        "data.packing.source_tokens": 256 + 2,
        "objectives.optimus.elbo.beta.cycles": 10,
        "objectives.optimus.elbo.free_bits.nats": 1.0,
        "objectives.optimus.elbo.reduction": "text",
    },
    "optimus_finetune": _OPTIMUS
    | {
        "steps": 31_250,
        "objectives.optimus.elbo.beta.cycles": 1,
        "objectives.optimus.elbo.free_bits.nats": 0.5,
        "objectives.optimus.elbo.reduction": "length_weighted",
    },
    "adavae": {
        **_ADAM,
        **_GPT2,
        "steps": 22_000,
        "unfreezing.encoder_from": 0,
        "unfreezing.decoder_from": 22_000 // 6,
        "data.packing.source_tokens": 32 + 2,
        "objectives.adavae.encoder_layers": 8,
        "objectives.adavae.adapter_size": 128,
        "objectives.adavae.latent_size": 32,
        "objectives.adavae.pooling": "latent_attention",
        "objectives.adavae.injection": "psa",
        "objectives.adavae.elbo.beta.cycles": 4,
        "objectives.adavae.elbo.beta.zero_ratio": 0.25,
        "objectives.adavae.elbo.beta.increase_ratio": 0.25,
        "objectives.adavae.elbo.free_bits.mode": "total",
        "objectives.adavae.elbo.free_bits.nats": 0.5 * 32,
    },
}


@cache
def recipe(name: str, *overrides: str) -> Config:
    return parse_train(["--config", str(RECIPES / f"{name}.yaml"), *overrides])[0]


def parameters(config: Config) -> dict[str, int]:
    """Sizes by name, over the vocabularies of GPT-2 and cased BERT, specials not counted."""
    encoder = Vocabulary(SPECIAL, BERT_IDS)
    objectives = objectives_of(config.objectives, steps=config.steps, encoder=encoder)
    with torch.device("meta"):
        source_tokens = config.data.packing.source_tokens
        parts = parts_of(
            objectives, config.model, vocab_size=GPT2_IDS, source_tokens=source_tokens, seed=1
        )
        model = ObjectiveModel(make_backbone(config, GPT2_IDS), parts)
    return {name: parameter.numel() for name, parameter in model.named_parameters()}


def total(sizes: dict[str, int], prefix: str) -> int:
    return sum(size for name, size in sizes.items() if name.startswith(prefix))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_value_is_in_the_recipe(name: str) -> None:
    leaves = flat(asdict(recipe(name)))
    assert {key: leaves[key] for key in PUBLISHED[name]} == PUBLISHED[name]


def test_a_sixth_of_adavaes_run_warms_up() -> None:
    config = recipe("adavae")
    assert config.schedule.warmup_ratio * config.steps == pytest.approx(22_000 / 6, abs=1)


@pytest.mark.parametrize("name", ["optimus_pretrain", "optimus_finetune"])
def test_optimus_has_the_parameters_of_bert_gpt2_and_its_three_maps(name: str) -> None:
    sizes = parameters(recipe(name))
    padding = (padded_vocabulary(BERT_IDS) - BERT_IDS) * WIDTH
    pooler = total(sizes, "parts.optimus.head.pooler")
    assert total(sizes, "parts.optimus.encoder") + pooler - padding == 108_310_272  # cased BERT
    assert total(sizes, "backbone") == 124_439_808  # GPT-2 small
    maps = {n: s for n, s in sizes.items() if "posterior" in n or "injector" in n}
    assert sorted(maps.values()) == [32 * WIDTH, WIDTH * 2 * 32, 32 * 12 * WIDTH]
    everything = 108_310_272 + 124_439_808 + sum(maps.values())
    assert sum(sizes.values()) - padding == everything == 233_118_720


def test_glm_vae_adds_a_pooler_a_posterior_and_its_slots_to_glm_base() -> None:
    sizes, base = parameters(recipe("glm_vae")), parameters(recipe("glm_base"))
    assert total(sizes, "backbone") == sum(base.values())
    pooling, posterior, slots = WIDTH + 1, (WIDTH + 1) * 2 * 32, 32 * 2 * 12 * WIDTH
    assert total(sizes, "parts") == pooling + posterior + slots


@pytest.mark.parametrize("name", [*PUBLISHED, "glm_vae"])
@pytest.mark.parametrize("num_gpus", [1, 2])
def test_the_usual_numbers_of_gpus_divide_the_batch(name: str, num_gpus: int) -> None:
    assert recipe(name).batch.accumulation(num_gpus) >= 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_attention_dropout_is_the_named_difference_and_can_be_restored(name: str) -> None:
    assert recipe(name).model.attention_dropout_prob == 0.0
    restored = recipe(name, "--model.attention_dropout_prob", "0.1")
    assert restored.model.attention_dropout_prob == 0.1

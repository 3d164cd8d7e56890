"""Parameters that are not trained, or not yet, under ZeRO on two ranks, beside plain PyTorch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pretrain.settings.optimizer_config import OptimizerConfig
from pretrain.settings.trains import TrainsPolicy, UnfreezingConfig
from tests.pretrain.frozen_cases import LR, MOVES, UNFREEZING, inputs_of

pytestmark = pytest.mark.ranks

WORKER = str(Path(__file__).parent / "frozen_cases.py")
FP32 = [name for name, (_, precision) in UNFREEZING.items() if precision == "fp32"]


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory, run_ranks: Callable[..., list[int]]
) -> dict[str, Any]:
    """What the ranks of one process group wrote."""
    folder = tmp_path_factory.mktemp("frozen")
    run_ranks(2, [WORKER, str(folder)], folder / "log")
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_what_is_not_trained_comes_back_too(stage: str, found: dict[str, Any]) -> None:
    saved, before, loaded, losses = found[stage]
    assert before != saved
    assert loaded == saved
    assert losses[0] == losses[1]


def oracle() -> tuple[list[dict[str, torch.Tensor]], list[float]]:
    """The same run in plain PyTorch: an AdamW for each layer, which steps where its layer moves."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
    config = OptimizerConfig()
    optimizers = {
        f"layer {number}": torch.optim.AdamW(
            [
                {"params": [layer.weight], "weight_decay": config.weight_decay},
                {"params": [layer.bias], "weight_decay": 0.0},
            ],
            lr=LR, betas=config.betas, eps=config.eps,
        )
        for number, layer in enumerate(model)
    }  # fmt: skip
    weights, norms = [{n: p.detach().clone() for n, p in model.named_parameters()}], []
    for update, moves in enumerate(MOVES):
        model.zero_grad()
        sum(model(inputs_of(update, rank)).square().sum() for rank in range(2)).backward()
        moved = [p for name in moves for g in optimizers[name].param_groups for p in g["params"]]
        norms.append(float(nn.utils.clip_grad_norm_(moved, config.gradient_clipping)))
        for name in moves:
            optimizers[name].step()
        weights.append({n: p.detach().clone() for n, p in model.named_parameters()})
    return weights, norms


@pytest.mark.parametrize("name", FP32)
def test_unfreezing_is_that_of_an_optimizer_for_each_group(
    name: str, found: dict[str, Any]
) -> None:
    """No update, no moments, no decay, no count of updates before its time, nor in a pause."""
    weights, norms = oracle()
    assert found[name]["norms"] == pytest.approx(norms, rel=1e-5)
    for ours, expected in zip(found[name]["weights"], weights, strict=True):
        for parameter, value in expected.items():
            assert torch.allclose(torch.tensor(ours[parameter]), value, atol=2e-6), parameter


@pytest.mark.parametrize("name", UNFREEZING)
def test_what_pauses_does_not_move(name: str, found: dict[str, Any]) -> None:
    weights = found[name]["weights"]
    for update, moves in enumerate(MOVES):
        for parameter, value in weights[update].items():
            pauses = f"layer {parameter[0]}" not in moves
            assert (weights[update + 1][parameter] == value) is pauses, (update, parameter)


@pytest.mark.parametrize("name", UNFREEZING)
def test_a_run_goes_on_exactly_across_the_switch(name: str, found: dict[str, Any]) -> None:
    assert found[name]["resumed"] == found[name]["weights"][-1]


def policy(trains: Any, **unfreezing: int) -> TrainsPolicy:
    return TrainsPolicy(trains, UnfreezingConfig(**unfreezing), num_layers=12, shared_layers=8)


NAMES = {
    "embedding": "backbone.embedding.token_table",
    "norm": "backbone.layers.0.attention_norm.weight",
    "matrix": "backbone.layers.0.attention.qkv.weight",
    "last matrix": "backbone.layers.11.mlp.up.bias",
    "last norm": "backbone.final_norm.bias",
    "lora": "backbone.layers.3.attention.qkv.lora_down",
    "prefix": "backbone.layers.3.attention.prefix_keys",
    "encoder": "parts.optimus.encoder.layers.0.attention_norm.weight",
    "adapter": "parts.adavae.decoder_adapters.0.up.weight",
    "head": "parts.adavae.head.posterior.weight",
}
ADDED = ["encoder", "adapter", "head"]


@pytest.mark.parametrize(
    ("trains", "learning"),
    [
        ("all", list(NAMES)),
        ("parts", ADDED),
        ("adapters", ["norm", "last norm", *ADDED]),
        ("head_only", ["head"]),
        ("k_layers", ["last matrix", "last norm", *ADDED]),
        ("lora", ["lora", *ADDED]),
        ("prefix", ["prefix", *ADDED]),
    ],
)
def test_a_policy_names_what_learns(trains: str, learning: list[str]) -> None:
    assert [n for n, name in NAMES.items() if policy(trains).learns(name)] == learning


def test_halves_begin_at_their_updates() -> None:
    """AdaVAE's staging: what lies between the halves, then what encodes, then the rest."""
    staged = policy("adapters", encoder_from=5, decoder_from=9)
    assert [sorted(staged.groups_at(update)) for update in (0, 4, 5, 8, 9)] == [
        ["head", "injection"], ["head", "injection"], ["encoder", "head", "injection"],
        ["encoder", "head", "injection"], ["decoder", "encoder", "head", "injection"],
    ]  # fmt: skip
    assert staged.group("backbone.layers.7.mlp_norm.weight") == "encoder"  # it decodes too
    assert staged.group("backbone.layers.8.mlp_norm.weight") == "decoder"
    assert staged.group("parts.adavae.encoder_adapters.0.up.weight") == "encoder"
    assert staged.group("parts.adavae.slots.0.weight") == "injection"
    assert policy("adapters").groups_at(0) == {policy("adapters").group(NAMES["head"])}

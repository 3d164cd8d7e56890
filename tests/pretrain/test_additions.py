"""LoRA and prefixes: nothing but themselves changes where they are added, and they alone learn."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.visibility import Visibility
from pretrain.models.backbone import Backbone
from pretrain.models.shape import BackboneShape
from pretrain.settings.cli import parse_train
from pretrain.settings.trains import TrainsPolicy, UnfreezingConfig

SIZES: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 24, "num_heads": 2, "dropout_prob": 0.0,
    "attention_dropout_prob": 0.0,
}  # fmt: skip
IDS = torch.randint(50, (1, 7), generator=torch.Generator().manual_seed(0))
POSITIONS = torch.tensor([[[0, 1, 2, 3, 0, 1, 2], [0] * 7]])
# Two documents: the first is seen whole, the second causally.
ROW = Visibility(
    torch.tensor([[0, 0, 0, 0, 4, 4, 4]]),
    torch.tensor([[4, 4, 4, 4, 5, 6, 7]]),
    torch.tensor([[0, 0, 0, 0, 1, 1, 1]]),
)


def backbone(**added: int) -> Backbone:
    shape = BackboneShape(**SIZES, **added)
    return Backbone(
        shape, vocab_size=50, num_positions=9, generator=torch.Generator().manual_seed(3)
    )


def hidden(model: Backbone, **kwargs: Any) -> Tensor:
    return model(IDS, POSITIONS, ROW, **kwargs)


@pytest.mark.parametrize("added", [{"lora_rank": 3}, {"prefix_slots": 2}])
def test_weights_that_were_there_are_drawn_as_before(added: dict[str, int]) -> None:
    plain, larger = (dict(backbone(**a).named_parameters()) for a in ({}, added))
    assert len(larger) == len(plain) + 4
    assert all(torch.equal(larger[name], value) for name, value in plain.items())


def test_lora_begins_as_nothing_and_is_a_change_of_the_matrix() -> None:
    plain, model = backbone(), backbone(lora_rank=3)
    assert torch.equal(hidden(model), hidden(plain))
    for ours, theirs in zip(model.layers, plain.layers, strict=True):
        torch.nn.init.normal_(ours.attention.qkv.lora_up, std=0.1)
        change = ours.attention.qkv.lora_up @ ours.attention.qkv.lora_down
        theirs.attention.qkv.weight.data += change
    assert torch.allclose(hidden(model), hidden(plain), atol=1e-6)


def slots_of(table: Tensor, number: int) -> Tensor:
    return table.unflatten(-1, (2, 12)).expand(1, number, -1, -1, -1)


def test_a_prefix_is_slots_that_every_document_sees() -> None:
    plain, model = backbone(), backbone(prefix_slots=2)
    memory = [
        (slots_of(layer.attention.prefix_keys, 2), slots_of(layer.attention.prefix_values, 2))
        for layer in model.layers
    ]
    assert torch.allclose(hidden(model), hidden(plain, memory=memory), atol=1e-6)
    assert not torch.allclose(hidden(model), hidden(plain), atol=1e-3)


def test_a_prefix_stands_beside_the_slots_of_z() -> None:
    plain, model = backbone(), backbone(prefix_slots=2)
    own = [torch.randn(1, 2, 1, 2, 12, generator=torch.Generator().manual_seed(i)) for i in (0, 1)]
    memory = [
        (
            torch.cat((slots_of(layer.attention.prefix_keys, 2), z), 2),
            torch.cat((slots_of(layer.attention.prefix_values, 2), z), 2),
        )
        for layer, z in zip(model.layers, own, strict=True)
    ]
    found = hidden(model, memory=[(z, None) for z in own])
    assert torch.allclose(found, hidden(plain, memory=memory), atol=1e-6)


@pytest.mark.parametrize(("trains", "added"), [("lora", "lora_rank"), ("prefix", "prefix_slots")])
def test_what_is_added_alone_learns(trains: Any, added: str) -> None:
    model = torch.nn.ModuleDict({"backbone": backbone(**{added: 2})})
    TrainsPolicy(trains, UnfreezingConfig(), num_layers=2, shared_layers=0).freeze(model)
    learning = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(learning) == 4 and all(f".{trains}_" in name for name in learning)
    hidden(model["backbone"]).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--trains=adapters", "--model.lora_rank=2"), "model.lora_rank: trains: adapters does"),
        (("--trains=lora", "--model.lora_rank=2", "--model.prefix_slots=1"), "model.prefix_slots:"),
        (("--trains=lora", "--model.lora_rank=2"), ""),
        (("--trains=all", "--model.lora_rank=2"), ""),
    ],
)
def test_what_is_added_and_never_learns_is_said(flags: tuple[str, ...], said: str) -> None:
    recipe = Path(__file__).parents[2] / "launch" / "recipes" / "adavae.yaml"
    config, _ = parse_train([f"--config={recipe}", "--data.shards=nowhere", *flags])
    found = config.idle_additions() or ""
    assert found.startswith(said) and bool(found) == bool(said)

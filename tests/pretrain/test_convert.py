"""Names and shards of the published layout, there and back."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pretrain.handing_over.convert import (
    from_published_glm,
    merge_model_parallel,
    split_model_parallel,
    to_published_glm,
)
from pretrain.models.backbone import Backbone
from pretrain.models.shape import BackboneShape

GOLDEN = Path(__file__).parents[1] / "golden" / "glm"


def model_c() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "model_C_init.safetensors")


def without_layer_1(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in weights.items() if "layers.1." not in name}


def golden_shards() -> list[dict[str, torch.Tensor]]:
    stored = load_file(GOLDEN / "model_C_mp2_shards.safetensors")
    ranks = [{}, {}]
    for name, weight in stored.items():
        rank, _, published = name.partition(".")
        ranks[int(rank.removeprefix("rank"))][published] = weight
    return ranks


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert torch.equal(ours[name], weight), name


def test_names_there_and_back_are_the_same():
    assert_same(to_published_glm(from_published_glm(model_c())), model_c())


def test_a_backbone_has_exactly_the_published_weights():
    shape = BackboneShape(num_layers=2, hidden_size=32, num_heads=2)
    backbone = Backbone(shape, vocab_size=128, num_positions=49)
    backbone.load_state_dict(from_published_glm(model_c()), strict=True)
    assert to_published_glm(backbone.state_dict()).keys() == model_c().keys()


def test_layers_of_two_digits_keep_their_number():
    name = "transformer.layers.47.mlp.dense_h_to_4h.bias"
    assert list(from_published_glm({name: torch.zeros(1)})) == ["layers.47.mlp.up.bias"]


@pytest.mark.parametrize(
    "name", ["transformer.layers.0.attention.rotary.inv_freq", "lm_head.weight"]
)
def test_a_name_that_glm_lacks_is_refused(name):
    with pytest.raises(ValueError, match="no weight of a GLM is called"):
        from_published_glm({name: torch.zeros(1)})


@pytest.mark.golden
def test_two_shards_merge_into_the_published_whole():
    assert_same(merge_model_parallel(golden_shards()), without_layer_1(model_c()))


@pytest.mark.golden
def test_the_whole_splits_into_the_published_shards():
    for ours, theirs in zip(split_model_parallel(model_c(), 2), golden_shards(), strict=True):
        assert_same(without_layer_1(ours), theirs)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_splitting_and_merging_gives_back_every_weight(num_ranks):
    assert_same(merge_model_parallel(split_model_parallel(model_c(), num_ranks)), model_c())


def test_a_number_of_ranks_that_divides_nothing_is_refused():
    with pytest.raises(ValueError, match="must divide it"):
        split_model_parallel(model_c(), 3)


def test_shards_of_different_checkpoints_are_refused():
    first, second = split_model_parallel(model_c(), 2)
    name = "transformer.final_layernorm.weight"
    with pytest.raises(ValueError, match=r"final_layernorm.weight .* shards differ"):
        merge_model_parallel([first, second | {name: second[name] + 1}])
    del second[name]
    with pytest.raises(ValueError, match="shard 1 names other weights"):
        merge_model_parallel([first, second])

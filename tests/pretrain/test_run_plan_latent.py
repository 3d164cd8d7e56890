"""pretrain/planning of recipes with a latent space: activations against live storages, sizes
against drawn models, the rest by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from kernels.attention import packed
from pretrain.models.backbone import Backbone
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.select import objectives_of, parts_of
from pretrain.planning.outline import Outline, outline_of
from pretrain.planning.passes import AnyPass, Pass, fullest_group_bytes, passes_of, peak_bytes
from pretrain.planning.plan import GPUS, Plan, in_words, plan_run
from pretrain.planning.rows import RowContent
from pretrain.planning.scale import main as scale
from pretrain.settings.cli import parse_train
from pretrain.settings.config import Config
from pretrain.settings.trains import TrainsPolicy

RECIPES = Path(__file__).parents[2] / "launch" / "recipes"
VOCABULARY, ROWS, ROW_TOKENS, DOCUMENTS, TARGETS = 384, 3, 96, 4, 150
GLM_OFF = ("--objectives.glm.weight=0",)
SMALL = (
    "--name=small", "--steps=10", "--data.shards=none",
    "--data.packing={source_tokens: 64, row_tokens: 96}", "--model.num_layers=3",
    "--model.hidden_size=96", "--model.num_heads=4", "--model.max_positions=80",
    "--model.attention_dropout_prob=0",
)  # fmt: skip
ENCODER = (
    "--objectives.optimus.encoder={num_layers: 2, hidden_size: 64, num_heads: 4, norm_order: post, "
    "gelu: erf, token_types: 2, embedding_norm: true, block_positions: false, "
    "attention_dropout_prob: 0}"
)
LSTM = ("--objectives.lstm_vae.embedding_size=48", "--objectives.lstm_vae.hidden_size=64")
ADAPTERS = ("--objectives.adavae.encoder_layers=2", "--objectives.adavae.adapter_size=24")


def config_of(name: str, *flags: str) -> Config:
    return parse_train([*SMALL, *GLM_OFF, f"--objectives.{name}.weight=1", *flags])[0]


def batch() -> Any:
    """Rows of DOCUMENTS texts of the same length, without padding."""
    length = ROW_TOKENS // DOCUMENTS
    document_BT = (torch.arange(ROW_TOKENS) // length).int().expand(ROWS, -1).contiguous()
    place_BT = (torch.arange(ROW_TOKENS) % length).int().expand(ROWS, -1)
    start_BT = document_BT * length
    weights = torch.zeros(ROWS * ROW_TOKENS)
    weights[:TARGETS] = 1
    ids = torch.randint(VOCABULARY, (ROWS, ROW_TOKENS), dtype=torch.int32)
    return SimpleNamespace(
        ids=ids,
        positions=torch.stack((place_BT + 1, torch.zeros_like(place_BT)), 1),
        targets=ids.clone(),
        weights=weights.view(ROWS, ROW_TOKENS),
        kind=torch.ones(ROWS, ROW_TOKENS, dtype=torch.uint8),
        document=document_BT,
        lo=start_BT,
        hi=start_BT + place_BT + 1,
        sources=(ids.clone(), document_BT.clone()),
        keys=torch.arange(ROWS * DOCUMENTS).view(ROWS, DOCUMENTS),
    )


def model_of(config: Config) -> tuple[Any, ObjectiveModel]:
    objectives = objectives_of(config.objectives, steps=config.steps)
    tokens = config.data.packing.source_tokens
    parts = parts_of(objectives, config.model, vocab_size=VOCABULARY, source_tokens=tokens, seed=1)
    backbone = None
    if any(objective.backbone_calls for objective in objectives):
        backbone = Backbone(
            config.model,
            vocab_size=VOCABULARY,
            num_positions=config.model.table_rows(tokens),
            layers_per_checkpoint=config.memory.layers_per_checkpoint,
        )
    model = ObjectiveModel(backbone, parts)
    TrainsPolicy(
        config.trains, config.unfreezing, num_layers=config.model.num_layers,
        shared_layers=config.shared_layers,
    ).freeze(model)  # fmt: skip
    return objectives, model


def live_bytes(config: Config, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of all storages that a forward pass of all objectives saves, parameters left out."""
    objectives, model = model_of(config)
    model = model.to(dtype)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage
        return tensor

    inputs = [objective.inputs(batch(), 5) for objective in objectives]
    # Without oneDNN an LSTM runs operation by operation; nothing else asks it.
    without_onednn = torch.backends.mkldnn.flags(enabled=False)
    with without_onednn, saved_tensors_hooks(keep, lambda tensor: tensor):
        for objective, own in zip(objectives, inputs, strict=True):
            model(objective, own)
    return sum(storage.nbytes() for storage in saved.values())


def passes_of_config(config: Config) -> list[AnyPass]:
    rows = RowContent(
        source_tokens=0, tokens=0, targets=TARGETS / ROWS, visible_pairs=0, vocab_size=VOCABULARY,
        corpus_tokens=None, origin="", documents=DOCUMENTS,
    )  # fmt: skip
    return [p for name in config.objectives.chosen for p in passes_of(config, name, rows, ROWS)]


def planned_bytes(config: Config, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    passes = passes_of_config(config)
    return peak_bytes(passes, vocab_size=VOCABULARY, element_bytes=dtype.itemsize, device="cpu")


@pytest.fixture(autouse=True)
def _whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU takes rows of short documents apart, which a GPU does not."""
    monkeypatch.setattr(packed, "grouping_of", lambda visibility: None)


CASES = {
    "optimus": ("optimus", ENCODER, "--model.block_positions=false"),
    "optimus, memory": (
        "optimus", ENCODER, "--model.block_positions=false",
        "--objectives.optimus.latent={pooling: latent_attention, injection: memory, slots: 3}",
    ),
    "optimus, attention dropout": (
        "optimus", ENCODER, "--model.block_positions=false", "--model.attention_dropout_prob=0.1",
    ),
    "adavae": ("adavae", *ADAPTERS, "--trains=adapters", "--model.block_positions=false"),
    "adavae, sequential, all": (
        "adavae", *ADAPTERS, "--objectives.adavae.adapter_placement=sequential",
    ),
    "adavae, twice, memory": (
        "adavae", *ADAPTERS, "--objectives.adavae.adapter_placement=reference_double",
        "--trains=adapters", "--objectives.adavae.injection=memory",
    ),
    "adavae, embedding": (
        "adavae", *ADAPTERS, "--trains=adapters", "--objectives.adavae.injection=embedding",
    ),
    "glm_vae": ("glm_vae",),
    "glm_vae, mean_max": (
        "glm_vae", "--objectives.glm_vae.latent={pooling: mean_max, injection: both}",
    ),
    "glm and glm_vae": ("glm_vae", "--objectives.glm.weight=1"),
    "causal": ("causal", "--model.block_positions=false"),
    "lstm_vae": ("lstm_vae", *LSTM),
    "lstm_vae, no dropout": ("lstm_vae", *LSTM, "--objectives.lstm_vae.dropout_prob=0"),
    "glm, lora": ("glm", "--trains=lora", "--model.lora_rank=4"),
    "glm, lora beside all": ("glm", "--model.lora_rank=12"),
    "glm, prefix": ("glm", "--trains=prefix", "--model.prefix_slots=5"),
    "glm, two layers": ("glm", "--trains=k_layers"),
    "glm, lora, post": (
        "glm", "--trains=lora", "--model.lora_rank=4", "--model.norm_order=post",
        "--model.dropout_prob=0",
    ),
    "glm, lora, attention dropout": (
        "glm", "--trains=lora", "--model.lora_rank=4", "--model.attention_dropout_prob=0.1",
    ),
    "glm_vae, lora": ("glm_vae", "--trains=lora", "--model.lora_rank=4"),
    "glm_vae, prefix": ("glm_vae", "--trains=prefix", "--model.prefix_slots=3"),
    "glm_vae, parts": ("glm_vae", "--trains=parts"),
    "glm_vae, parts, embedding": (
        "glm_vae", "--trains=parts", "--objectives.glm_vae.latent={injection: embedding}",
    ),
    "optimus, head": (
        "optimus", ENCODER, "--model.block_positions=false", "--trains=head_only",
    ),
    "optimus, two layers": (
        "optimus", ENCODER, "--model.block_positions=false", "--trains=k_layers",
    ),
    "adavae, parts": ("adavae", *ADAPTERS, "--trains=parts"),
    "adavae, parts, twice": (
        "adavae", *ADAPTERS, "--trains=parts",
        "--objectives.adavae.adapter_placement=reference_double",
    ),
    "adavae, head, sequential": (
        "adavae", *ADAPTERS, "--trains=head_only",
        "--objectives.adavae.adapter_placement=sequential",
    ),
    "adavae, lora": ("adavae", *ADAPTERS, "--trains=lora", "--model.lora_rank=4"),
}  # fmt: skip


# On a CPU unfused attention, which dropout on its weights makes, computes in fp32 throughout.
IN_BF16 = [case for case in CASES if "attention dropout" not in case]


def outline_of_case(config: Config) -> Outline:
    return outline_of(config, VOCABULARY, None)


@pytest.mark.parametrize("case", CASES)
def test_activations_of_all_passes_are_those_that_a_forward_pass_keeps(case: str) -> None:
    config = config_of(*CASES[case])
    planned = sum(planned_bytes(config).values())
    # 10 % is promised; of a width of 96, what is counted by texts alone is under 1 %.
    assert planned == pytest.approx(live_bytes(config), rel=0.01)


@pytest.mark.parametrize("case", IN_BF16)
def test_activations_in_bf16_hold_the_matrices_around_z_once_more_in_fp32(case: str) -> None:
    config = config_of(*CASES[case])
    planned = sum(planned_bytes(config, torch.bfloat16).values())
    planned += 4 * outline_of_case(config).wide_size
    assert planned == pytest.approx(live_bytes(config, torch.bfloat16), rel=0.02)


def test_a_group_that_is_run_again_stands_in_full_once_beside_all_passes() -> None:
    flags = ("--memory.activation_checkpointing=every_1", "--model.dropout_prob=0")
    config = config_of("glm_vae", *flags, "--objectives.glm.weight=1")
    passes = {p.name: p for p in passes_of_config(config) if isinstance(p, Pass)}
    peak = peak_bytes(list(passes.values()), vocab_size=VOCABULARY, element_bytes=4, device="cpu")
    writes = passes["glm_vae writes"]
    extra = fullest_group_bytes(passes["glm_vae reads"], 4, "cpu")
    # Masks and slots are held by reference, not as saved tensors.
    slots = 3 * 2 * ROWS * DOCUMENTS * 96 * 4
    masks = 3 * ROWS * ROW_TOKENS**2 * 4 + ROWS * ROW_TOKENS * DOCUMENTS * 4
    assert writes.slots == 1
    found = live_bytes(config)
    assert sum(peak.values()) - extra - slots - masks == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("case", CASES)
def test_what_learns_and_what_does_not_is_that_of_the_model(case: str) -> None:
    config = config_of(*CASES[case])
    _, model = model_of(config)
    outline = outline_of_case(config)
    for sizes, learns in ((outline.trained, True), (outline.frozen, False)):
        expected = [p.numel() for p in model.parameters() if p.requires_grad is learns]
        assert sorted(sizes) == sorted(expected)


def recipe(name: str, *flags: str) -> Config:
    return parse_train(["--config", str(RECIPES / f"{name}.yaml"), *flags])[0]


@pytest.fixture(scope="module")
def adavae() -> Plan:
    return plan_run(recipe("adavae"), num_gpus=2, gpu=GPUS["h200"], vocab_size=50_257)


def test_frozen_weights_are_kept_and_nothing_else_of_them(adavae: Plan) -> None:
    trained, whole = adavae.num_trained, adavae.num_parameters
    assert trained == 18_237_249  # launch/recipes/adavae.yaml
    assert adavae.memory.weights == 2 * whole / 2
    assert adavae.memory.frozen_weights == pytest.approx(2 * (whole - trained) / 2)
    assert adavae.memory.gradients == 4 * trained / 2
    assert adavae.memory.optimizer == 12 * trained / 2
    assert adavae.checkpoint == {"optimizer": 12.0 * trained, "model": 2.0 * whole}


def test_what_a_micro_batch_passes_through_twice_is_gathered_twice(adavae: Plan) -> None:
    trained, whole, width = adavae.num_trained, adavae.num_parameters, 768
    layer = 12 * width**2 + 13 * width
    second = (50_304 + 1024) * width + 8 * layer + 2 * width  # of the backbone, to encode
    sent = 4 * trained + 2 * 2 * (whole + second)
    assert adavae.sent_bytes_per_step == pytest.approx(sent / 2)


def test_passes_are_told_one_by_one_and_sum_to_the_activations(adavae: Plan) -> None:
    assert list(adavae.memory.passes) == ["adavae reads", "adavae writes"]
    said = in_words(adavae)
    assert "143 M parameters, of which 18.2 M learn" in said
    assert "frozen" in said and "adavae reads" in said and "adavae writes" in said


def test_arithmetic_of_optimus_is_that_of_its_encoder_and_its_decoder() -> None:
    config = recipe("optimus_pretrain")
    plan = plan_run(config, num_gpus=8, gpu=GPUS["h200"], vocab_size=50_257)
    assert plan.num_parameters == plan.num_trained == pytest.approx(233e6, rel=0.01)
    # 6 FLOP a weight of the layers and token read or written, and the logits; attention is little.
    layers = 12 * 12 * 768**2
    by_hand = 6 * (2 * plan.tokens_per_step * layers + plan.targets_per_step * 50_304 * 768)
    assert plan.flop_per_step == pytest.approx(by_hand, rel=0.02)
    assert "28,996" in plan.rows_origin


def test_each_objective_takes_its_own_rows() -> None:
    alone = plan_run(recipe("glm_base"), num_gpus=8, gpu=GPUS["h200"], vocab_size=30_527)
    both = plan_run(recipe("glm_vae"), num_gpus=8, gpu=GPUS["h200"], vocab_size=30_527)
    assert both.objectives == ["glm", "glm_vae"]
    assert both.positions_per_step == 2 * alone.positions_per_step
    assert list(both.memory.passes) == ["glm", "glm_vae reads", "glm_vae writes"]
    assert 2 * alone.flop_per_step < both.flop_per_step < 4 * alone.flop_per_step


def test_shards_are_counted_where_they_are(shards: Path) -> None:
    plan = plan_run(
        recipe("gpt2", f"--data.shards={shards}"), num_gpus=2, gpu=GPUS["h200"], vocab_size=None
    )
    assert plan.vocabulary_origin == "of the shards"
    assert list(plan.epochs) == ["all"]
    # every token behind the first of a text is one target
    assert 0 < plan.tokens_per_step - plan.targets_per_step < plan.tokens_per_step / 2


def test_an_lstm_vae_is_all_its_own() -> None:
    plan = plan_run(recipe("lstm_vae"), num_gpus=2, gpu=GPUS["h200"], vocab_size=30_000)
    vocabulary, width, hidden, latent = 30_080, 512, 1024, 32
    lstm = 4 * hidden * hidden + 8 * hidden  # of the state, and the biases
    reader = vocabulary * width + 4 * hidden * width + lstm + (hidden + 1) * 2 * latent
    begins, output = (latent + 1) * hidden, (hidden + 1) * width
    writer = vocabulary * width + 4 * hidden * (width + latent) + lstm + begins + output
    assert plan.num_parameters == plan.num_trained == reader + writer
    assert plan.checkpoint["optimizer"] == 12 * (reader + writer)
    assert plan.checkpoint["model"] == 2 * (reader + writer)
    assert list(plan.memory.passes) == ["lstm_vae reads", "lstm_vae writes"]


def test_what_is_added_to_attention_is_all_that_learns() -> None:
    flags = ("--trains=lora", "--model.lora_rank=8")
    plan = plan_run(recipe("glm_base", *flags), num_gpus=8, gpu=GPUS["h200"], vocab_size=30_527)
    whole = plan_run(recipe("glm_base"), num_gpus=8, gpu=GPUS["h200"], vocab_size=30_527)
    assert plan.num_trained == 12 * 8 * (768 + 3 * 768)
    assert plan.num_parameters == whole.num_parameters + plan.num_trained
    assert plan.checkpoint["optimizer"] == 12 * plan.num_trained
    assert plan.memory.optimizer == 12 * plan.num_trained / 8
    assert plan.memory.activations < whole.memory.activations
    prefix = plan_run(
        recipe("glm_base", "--trains=prefix", "--model.prefix_slots=20"),
        num_gpus=8, gpu=GPUS["h200"], vocab_size=30_527,
    )  # fmt: skip
    assert prefix.num_trained == 12 * 2 * 20 * 768


def test_shards_of_one_stream_are_refused_where_two_are_read(shards: Path) -> None:
    config = recipe("optimus_pretrain", f"--data.shards={shards}")
    with pytest.raises(ValueError, match=r"tokenizers: two, but .* holds the ids of one"):
        plan_run(config, num_gpus=2, gpu=GPUS["h200"])


def test_a_table_over_gpus_is_of_glm_alone() -> None:
    flags = ["--config", str(RECIPES / "glm_vae.yaml"), "--gpus", "8"]
    with pytest.raises(ValueError, match="plan --scale counts GLM alone"):
        scale(["--scale", *flags])

"""pretrain/planning/plan.py: activations against live storages, the rest by hand."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from data_pipeline.packing.plan import PackingConfig
from data_pipeline.transforms.blank import BlankConfig, plan_from_spans
from kernels.visibility import single_documents
from pretrain.models.backbone import Backbone, num_positions
from pretrain.models.shape import BackboneShape
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.loss import ObjectiveModel
from pretrain.planning.activations import (
    MicroBatch,
    activation_bytes,
    forward_bytes,
    layer_bytes,
    loss_bytes,
    mask_bytes,
)
from pretrain.planning.in_words import time_in_words
from pretrain.planning.plan import GPUS, Plan, checkpoints_on_disk, in_words, plan_run
from pretrain.planning.rows import row_content, visible_pairs
from pretrain.planning.state import Zero, checkpoint_bytes, rank_state, sent_bytes
from pretrain.settings.cli import parse_train
from pretrain.settings.config import Config

ROOT = Path(__file__).parents[2]
VOCABULARY = 384


def live_bytes(
    shape: BackboneShape, batch: MicroBatch, dtype: torch.dtype, layers_per_checkpoint: int = 0
) -> int:
    """Bytes of all storages that a forward pass of backbone and GLM loss saves, each counted once,
    parameters left out."""
    rows, row_tokens = batch.rows, batch.row_tokens
    backbone = Backbone(
        shape,
        vocab_size=VOCABULARY,
        num_positions=num_positions(shape, row_tokens),
        layers_per_checkpoint=layers_per_checkpoint,
    ).to(dtype)
    lengths_B = torch.full((rows,), row_tokens)
    visibility = single_documents(lengths_B, lengths_B // 2, row_tokens)
    num_targets = int(batch.targets)
    inputs = {
        "ids": torch.randint(VOCABULARY, (rows, row_tokens), dtype=torch.int32),
        "positions": torch.zeros(rows, 2, row_tokens, dtype=torch.int32),
        "lo": visibility.lo,
        "hi": visibility.hi,
        "document": visibility.document,
        "target_index": torch.randperm(rows * row_tokens)[:num_targets].clone(),
        "targets": torch.randint(VOCABULARY, (num_targets,)),
        "weights": torch.ones(num_targets),
        "kind": torch.ones(num_targets, dtype=torch.uint8),
    }
    parameters = {p.untyped_storage().data_ptr() for p in backbone.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage  # kept alive, so that no address comes twice
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        ObjectiveModel(backbone)(GlmObjective(BlankConfig()), inputs)
    return sum(storage.nbytes() for storage in saved.values())


SIZES = [
    # a small one, one with long rows (T x T counts), one with a wide stream
    (BackboneShape(num_layers=3, hidden_size=96, num_heads=4), MicroBatch(3, 72, 37)),
    (BackboneShape(num_layers=2, hidden_size=48, num_heads=6), MicroBatch(2, 520, 190)),
    (BackboneShape(num_layers=5, hidden_size=320, num_heads=5), MicroBatch(4, 40, 61)),
]


@pytest.mark.parametrize(("shape", "batch"), SIZES)
@pytest.mark.parametrize(
    ("dropout_prob", "attention_dropout_prob"), [(0.0, 0.0), (0.1, 0.0), (0.1, 0.1)]
)
@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_activations_are_those_that_a_forward_pass_keeps(
    shape: BackboneShape,
    batch: MicroBatch,
    dropout_prob: float,
    attention_dropout_prob: float,
    norm_order: str,
) -> None:
    shape = replace(
        shape,
        dropout_prob=dropout_prob,
        attention_dropout_prob=attention_dropout_prob,
        norm_order=norm_order,
    )
    planned = activation_bytes(shape, batch, vocab_size=VOCABULARY, element_bytes=4, device="cpu")
    # Derived operation by operation, so it is exact but for a few scalars; 10 % is promised.
    assert planned == pytest.approx(live_bytes(shape, batch, torch.float32), rel=1e-4)


@pytest.mark.parametrize(("shape", "batch"), SIZES)
def test_activations_in_bf16_are_those_that_a_forward_pass_keeps(
    shape: BackboneShape, batch: MicroBatch
) -> None:
    shape = replace(shape, attention_dropout_prob=0.0)
    planned = activation_bytes(shape, batch, vocab_size=VOCABULARY, element_bytes=2, device="cpu")
    assert planned == pytest.approx(live_bytes(shape, batch, torch.bfloat16), rel=1e-4)


@pytest.mark.parametrize(("shape", "batch"), SIZES)
@pytest.mark.parametrize("layers_per_checkpoint", [1, 2])
def test_layers_that_are_run_again_keep_their_input_alone(
    shape: BackboneShape, batch: MicroBatch, layers_per_checkpoint: int
) -> None:
    shape = replace(shape, attention_dropout_prob=0.0)
    planned = forward_bytes(
        shape,
        batch,
        vocab_size=VOCABULARY,
        element_bytes=4,
        layers_per_checkpoint=layers_per_checkpoint,
        device="cpu",
    )
    # The groups hold the mask by reference, not as a saved tensor.
    planned -= mask_bytes(shape, batch, 4, "cpu")
    found = live_bytes(shape, batch, torch.float32, layers_per_checkpoint)
    assert planned == pytest.approx(found, rel=1e-4)


def test_a_group_that_is_run_again_stands_in_full_once() -> None:
    shape, batch = SIZES[2]
    kept = forward_bytes(
        shape, batch, vocab_size=VOCABULARY, element_bytes=2, layers_per_checkpoint=2
    )
    loss = loss_bytes(shape, batch, VOCABULARY, 2)
    two_layers = 2 * layer_bytes(shape, batch, 2, "cuda")
    peak = activation_bytes(
        shape, batch, vocab_size=VOCABULARY, element_bytes=2, layers_per_checkpoint=2
    )
    assert peak == kept - loss + two_layers


def test_a_gpu_keeps_a_byte_for_each_entry_of_a_dropout_mask() -> None:
    without = BackboneShape(num_layers=2, hidden_size=64, num_heads=2, dropout_prob=0.0)
    batch = MicroBatch(2, 16, 5)
    bytes_of = [
        activation_bytes(s, batch, vocab_size=VOCABULARY, element_bytes=2)
        for s in (without, replace(without, dropout_prob=0.1))
    ]
    # the embedding's and two a layer
    assert bytes_of[1] - bytes_of[0] == 5 * 2 * 16 * 64


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer", "passes"),
    [(0, 2, 2, 12, 2), (1, 2, 2, 3, 2), (2, 2, 0.5, 3, 4), (3, 0.5, 0.5, 3, 9)],
)
def test_state_and_traffic_of_each_stage_in_bf16_on_four_ranks(
    stage: int, weights: float, gradients: float, optimizer: float, passes: int
) -> None:
    zero = Zero.of({"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}})
    state = rank_state(1000, zero=zero, ranks=4, weight_bytes=2)
    assert (state.weights, state.gradients, state.optimizer) == (
        1000 * weights,
        1000 * gradients,
        1000 * optimizer,
    )
    sent = sent_bytes(1000, zero=zero, ranks=4, weight_bytes=2, accumulation=3)
    assert sent == passes * 2000 * 3 / 4


def test_gradients_added_up_in_fp32_are_kept_and_sent_in_it() -> None:
    zero = Zero.of({"zero_optimization": {"stage": 2}, "data_types": {"grad_accum_dtype": "fp32"}})
    assert rank_state(1000, zero=zero, ranks=4, weight_bytes=2).gradients == 1000
    sent = sent_bytes(1000, zero=zero, ranks=4, weight_bytes=2, accumulation=3)
    assert sent == (3 * 4 + 2) * 1000 * 3 / 4


def test_plain_fp32_without_zero_has_no_copy_of_the_weights() -> None:
    zero = Zero.of({})
    state = rank_state(10, zero=zero, ranks=2, weight_bytes=4)
    assert (state.weights, state.gradients, state.optimizer) == (40, 40, 80)


def test_a_checkpoint_holds_fp32_weights_and_moments_and_what_the_model_computes_with() -> None:
    assert checkpoint_bytes(10, weight_bytes=2) == {"optimizer": 120.0, "model": 20.0}


@pytest.mark.parametrize(
    ("flags", "most"),
    [
        ((), 4),
        (("--checkpoints.keep_last=1",), 2),
        (("--checkpoints.keep_best=2", "--evaluation.every_steps=10"), 6),
        (("--checkpoints.keep_every=100", "--checkpoints.every_steps=50", "--steps=1000"), 14),
        (("--checkpoints.keep_every=300", "--checkpoints.every_steps=200", "--steps=1000"), 5),
    ],
)
def test_checkpoints_on_disk_are_those_that_may_stay_and_one_in_writing(
    flags: tuple[str, ...], most: int, repository: Path
) -> None:
    recipe = str(repository / "launch" / "recipes" / "debug.yaml")
    assert checkpoints_on_disk(parse_train(["--config", recipe, *flags])[0]) == most


def test_visible_pairs_are_those_of_the_picture() -> None:
    # 8 tokens, spans [5, 7) and [3, 4): 7 tokens see each other, then 8, 9, 10, 11, 12 keys
    plan = plan_from_spans([[(5, 7), (3, 4)]], source_lengths=[8], ends_document=[True])
    assert visible_pairs(plan) == 7 * 7 + 8 + 9 + 10 + 11 + 12


def test_rows_of_made_up_text_have_the_published_share_of_targets() -> None:
    rows = row_content("none", PackingConfig(), BlankConfig(), vocab_size=None, seed=1)
    assert rows.targets / rows.tokens == pytest.approx(0.18, abs=0.005)
    assert rows.tokens / rows.source_tokens == pytest.approx(1.097, abs=0.003)
    assert 0.97 * 1152 < rows.tokens <= 1152
    assert rows.corpus_tokens is None


def test_shards_are_counted_where_they_are(shards: Path) -> None:
    packing = PackingConfig(source_tokens=64, row_tokens=144)
    rows = row_content(str(shards), packing, BlankConfig(), vocab_size=None, seed=1)
    assert rows.corpus_tokens is not None
    assert rows.vocab_size == 310
    assert str(shards) in rows.origin


@pytest.fixture(scope="module")
def base() -> Config:
    return parse_train(["--config", str(ROOT / "launch/recipes/glm_base.yaml")])[0]


def plan_of(config: Config, num_gpus: int = 8, gpu: str = "h200", ids: int = 30527) -> Plan:
    return plan_run(config, num_gpus=num_gpus, gpu=GPUS[gpu], vocab_size=ids)


def test_the_plan_of_glm_base_is_that_of_a_page_of_paper(base: Config) -> None:
    plan = plan_of(base)
    assert plan.num_parameters == pytest.approx(109.34e6, rel=1e-4)
    assert plan.vocab_size == 30592
    # 6 x parameters x tokens: 5.2e19 FLOP, 1.5 days of an H200 at 40 %; attention comes on top,
    # part A and part B and fewer logits make the rest.
    assert plan.flop_per_step * plan.steps == pytest.approx(5.2e19, rel=0.1)
    assert plan.days * 8 == pytest.approx(1.5, rel=0.1)
    assert plan.accumulation == 8
    assert sum(plan.checkpoint.values()) == 14 * plan.num_parameters
    assert plan.memory.optimizer == 12 * plan.num_parameters / 8
    assert plan.fits


def test_more_gpus_take_proportionally_fewer_days(base: Config) -> None:
    assert plan_of(base, 16).days == pytest.approx(plan_of(base, 8).days / 2)


def test_a_micro_batch_that_does_not_fit_is_said_with_one_that_does() -> None:
    argv = ["--config", str(ROOT / "launch/recipes/glm_10b.yaml"), "--batch.micro_rows", "40"]
    plan = plan_of(parse_train(argv)[0], 64, "a100", 50266)
    assert not plan.fits
    assert plan.largest_micro_rows is not None
    assert plan.largest_micro_rows < 40
    assert f"--batch.micro_rows {plan.largest_micro_rows} does" in in_words(plan)


def test_an_optimizer_on_the_host_leaves_the_gpu(base: Config, tmp_path: Path) -> None:
    file = tmp_path / "offload.json"
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    file.write_text(json.dumps({"zero_optimization": zero}))
    plan = plan_of(replace(base, deepspeed_config=str(file)))
    assert plan.memory.optimizer == 0
    assert plan.memory.on_host == (12 + 4) * plan.num_parameters / 8
    assert "on the host" in in_words(plan)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_gpus": 7}, "The nearest sizes are 504 or 560"),
        ({"num_gpus": 0}, "--gpus must be at least 1, got 0."),
        ({"mfu": 1.4}, r"--mfu must lie in \(0, 1\], got 1.4."),
        ({"vocab_size": 0}, "--vocab-size must be at least 1, got 0."),
    ],
)
def test_a_plan_that_cannot_be_is_an_error(
    base: Config, asked: dict[str, float], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        plan_run(base, **{"num_gpus": 8, "gpu": GPUS["h200"], **asked})  # type: ignore[arg-type]


def run_plan(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pretrain", "plan", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_line_gives_json_and_passes_overrides_on() -> None:
    recipe = str(ROOT / "launch/recipes/glm_base.yaml")
    flags = ["--gpus", "4", "--gpu", "h100", "--json", "--model.num_layers", "6", "--mfu", "0.5"]
    done = run_plan("--config", recipe, *flags)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["num_gpus"], plan["gpu"]["name"], plan["mfu"]) == (4, "h100", 0.5)
    assert plan["vocabulary_origin"].startswith("assumed")
    parts = ("weights", "gradients", "optimizer", "activations", "buffers", "reserved")
    assert plan["memory"]["total"] == pytest.approx(sum(plan["memory"][p] for p in parts))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--gpus", "7"], "The nearest sizes are 504 or 560"),
        ([], "plan: the following arguments are required: --gpus"),
        (["--gpus", "8", "--resume", "auto"], "--resume has no effect on a plan"),
        (["--gpus", "8", "--gpu", "abacus"], "invalid choice: 'abacus'"),
        (["--gpus", "8", "--optimizer.lrr", "1"], "Did you mean 'optimizer.lr'?"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(argv: list[str], said: str) -> None:
    done = run_plan("--config", str(ROOT / "launch/recipes/glm_base.yaml"), *argv)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (19.84, "19.8 days"),
        (1270.0, "1,270.0 days"),
        (0.5, "12 hours"),
        (0.01, "14.4 minutes"),
        (1.8e-9, "0.000156 seconds"),
    ],
)
def test_a_time_is_told_in_the_unit_that_suits_it(days: float, said: str) -> None:
    assert time_in_words(days) == said

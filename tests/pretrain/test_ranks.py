"""The same losses and gradient norms for every number of ranks, ZeRO stage and way to accumulate.

Every world size is one process group that runs all its cases; documents are packed and row by row
very unequally full of targets (short and long documents, blanks of 15 % to 100 %).
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "train_cases.py")
STEPS = 6

# Nothing is kept whole on every rank: at stage 3 each parameter is gathered for its use.
ZERO = {"stage3_param_persistence_threshold": 0}
ON_CPU = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}


@dataclass(frozen=True)
class Case:
    """A way to train the same run; every update has 8 rows."""

    ranks: int
    stage: int
    micro_rows: int
    zero: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


CASES = {
    "reference": Case(1, 0, 8),
    "one_rank_stage1_accumulating": Case(1, 1, 4),
    "one_rank_stage2_accumulating": Case(1, 2, 4),
    "one_rank_stage3_accumulating": Case(1, 3, 2),
    "two_ranks_stage0": Case(2, 0, 4),
    "two_ranks_stage1_accumulating": Case(2, 1, 2),
    "two_ranks_stage2": Case(2, 2, 4),
    "two_ranks_stage3": Case(2, 3, 4),
    "two_ranks_stage3_accumulating": Case(2, 3, 1),
    "two_ranks_stage3_offloaded": Case(2, 3, 4, ON_CPU),
    "two_ranks_stage3_recomputing": Case(
        2, 3, 4, flags=("--memory.activation_checkpointing=every_1",)
    ),
}
DROPOUT = ("--model.dropout_prob=0.2", "--model.attention_dropout_prob=0.2")
EXTRA = {
    "dropout": Case(1, 0, 8, flags=DROPOUT),
    "dropout_recomputing": Case(
        1, 0, 8, flags=(*DROPOUT, "--memory.activation_checkpointing=every_2")
    ),
    "bf16": Case(2, 3, 4, flags=("--precision=bf16",)),
    "bf16_accumulating": Case(2, 3, 1, flags=("--precision=bf16",)),
}


SLOW = {
    "four_ranks_stage0": Case(4, 0, 2),
    "four_ranks_stage3_accumulating": Case(4, 3, 1),
    "compiled_stage0": Case(1, 0, 8, flags=("--memory.compile=layers",)),
}


def _arguments(name: str, folder: Path, shards: Path) -> list[str]:
    case = (CASES | EXTRA | SLOW)[name]
    settings = folder / f"{name}.json"
    settings.write_text(
        json.dumps({"zero_optimization": {"stage": case.stage, **ZERO, **case.zero}})
    )
    flags = {
        "config": DEBUG,
        "name": name,
        "runs": str(folder),
        "data.shards": str(shards),
        "steps": STEPS,
        "batch.global_rows": 8,
        "batch.micro_rows": case.micro_rows,
        "model.dropout_prob": 0.0,
        "optimizer.gradient_clipping": 0.5,
        "schedule.warmup_ratio": 0.0,
        "evaluation.every_steps": 0,
        "checkpoints.every_steps": 0,
        "deepspeed_config": str(settings),
    }
    return [*(f"--{key}={value}" for key, value in flags.items()), *case.flags]


@pytest.fixture(scope="module")
def curves(
    tmp_path_factory: pytest.TempPathFactory, shards: Path, run_ranks: Callable[..., list[int]]
) -> dict[str, list[dict[str, float]]]:
    """Every scalar of every step, by case."""
    return _trained(CASES | EXTRA, tmp_path_factory.mktemp("ranks"), shards, run_ranks)


def _trained(
    chosen: dict[str, Case], folder: Path, shards: Path, run_ranks: Callable[..., list[int]]
) -> dict[str, list[dict[str, float]]]:
    for world_size in {case.ranks for case in chosen.values()}:
        names = [name for name, case in chosen.items() if case.ranks == world_size]
        cases = folder / f"cases{world_size}.json"
        cases.write_text(json.dumps([_arguments(n, folder, shards) for n in names]))
        run_ranks(world_size, [WORKER, str(cases)], folder / f"log{world_size}")
    return {
        name: [json.loads(r) for r in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for name in chosen
    }


def _scalar(rows: list[dict[str, float]], tag: str) -> list[float]:
    return [row[tag] for row in rows if tag in row]


@pytest.mark.parametrize("name", [n for n in CASES if n != "reference"])
@pytest.mark.parametrize(
    "tag", ["loss/total_nats", "loss/glm_document_nats", "optimizer/gradient_norm"]
)
def test_ranks_and_stages_agree(
    name: str, tag: str, curves: dict[str, list[dict[str, float]]]
) -> None:
    reference = _scalar(curves["reference"], tag)
    assert len(reference) == STEPS
    assert _scalar(curves[name], tag) == pytest.approx(reference, rel=1e-5)


@pytest.mark.parametrize("name", [n for n in CASES if n != "reference"])
def test_held_out_loss_agrees(name: str, curves: dict[str, list[dict[str, float]]]) -> None:
    reference = _scalar(curves["reference"], "validation/glm_total_nats")
    assert len(reference) == 1
    assert _scalar(curves[name], "validation/glm_total_nats") == pytest.approx(reference, rel=1e-5)


def test_the_data_is_uneven_enough_to_tell(curves: dict[str, list[dict[str, float]]]) -> None:
    targets = _scalar(curves["reference"], "data/targets_per_step")
    assert max(targets) > 1.3 * min(targets)


def test_the_loss_falls(curves: dict[str, list[dict[str, float]]]) -> None:
    losses = _scalar(curves["reference"], "loss/total_nats")
    assert losses[-1] < losses[0] - 0.05


def test_recomputed_activations_give_the_same_curve_with_dropout(
    curves: dict[str, list[dict[str, float]]],
) -> None:
    for tag in ("loss/total_nats", "optimizer/gradient_norm"):
        kept = _scalar(curves["dropout"], tag)
        assert _scalar(curves["dropout_recomputing"], tag) == pytest.approx(kept, rel=1e-6)
        assert kept != pytest.approx(_scalar(curves["reference"], tag), rel=1e-4)


@pytest.mark.parametrize("name", ["bf16", "bf16_accumulating"])
def test_bf16_with_master_weights_follows_fp32(
    name: str, curves: dict[str, list[dict[str, float]]]
) -> None:
    # bf16 keeps 8 bits: 2^-9 of each activation. Without fp32 master weights the updates of lr 1e-3
    # would be lost (weights of 0.02 change by 1e-3 of themselves or less) and the loss would stay.
    reference = _scalar(curves["reference"], "loss/total_nats")
    losses = _scalar(curves[name], "loss/total_nats")
    assert losses == pytest.approx(reference, rel=3e-3)
    assert losses != reference
    fall, reference_fall = losses[0] - losses[-1], reference[0] - reference[-1]
    assert fall == pytest.approx(reference_fall, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_ranks_than_cores_and_compiled_layers_agree_too(
    name: str,
    curves: dict[str, list[dict[str, float]]],
    tmp_path: Path,
    shards: Path,
    run_ranks: Callable[..., list[int]],
) -> None:
    if name.startswith("compiled") and shutil.which("g++") is None:
        pytest.skip("torch.compile on a CPU needs g++, which is not installed")
    trained = _trained({name: SLOW[name]}, tmp_path, shards, run_ranks)[name]
    for tag in ("loss/total_nats", "optimizer/gradient_norm"):
        assert _scalar(trained, tag) == pytest.approx(_scalar(curves["reference"], tag), rel=1e-5)

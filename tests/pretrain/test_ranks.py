"""The same losses and gradient norms for every number of ranks, ZeRO stage and way to accumulate.

Every world size is one process group that runs all its cases; documents are packed and row by row
very unequally full of targets (short and long documents, blanks of 15 % to 100 %).
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "train_cases.py")
STEPS = 6

# name -> (ranks, ZeRO stage, rows of a micro-batch); every update has 8 rows.
CASES = {
    "reference": (1, 0, 8),
    "one_rank_stage3_accumulating": (1, 3, 2),
    "two_ranks_stage0": (2, 0, 4),
    "two_ranks_stage3": (2, 3, 4),
    "two_ranks_stage3_accumulating": (2, 3, 1),
}


def _arguments(name: str, folder: Path, shards: Path) -> list[str]:
    _, stage, micro_rows = CASES[name]
    settings = folder / f"stage{stage}.json"
    # Nothing is kept whole on every rank: at stage 3 each parameter is gathered for its use.
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    settings.write_text(json.dumps({"zero_optimization": zero}))
    flags = {
        "config": DEBUG,
        "name": name,
        "runs": str(folder),
        "data.shards": str(shards),
        "steps": STEPS,
        "batch.global_rows": 8,
        "batch.micro_rows": micro_rows,
        "model.dropout_prob": 0.0,
        "optimizer.gradient_clipping": 0.5,
        "schedule.warmup_ratio": 0.0,
        "evaluation.every_steps": 0,
        "checkpoints.every_steps": 0,
        "deepspeed_config": str(settings),
    }
    return [f"--{key}={value}" for key, value in flags.items()]


@pytest.fixture(scope="module")
def curves(
    tmp_path_factory: pytest.TempPathFactory, shards: Path, run_ranks: Callable[..., list[int]]
) -> dict[str, list[dict[str, float]]]:
    """Every scalar of every step, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    for world_size in (1, 2):
        names = [name for name, (ranks, _, _) in CASES.items() if ranks == world_size]
        cases = folder / f"cases{world_size}.json"
        cases.write_text(json.dumps([_arguments(n, folder, shards) for n in names]))
        run_ranks(world_size, [WORKER, str(cases)], folder / f"log{world_size}")
    return {
        name: [json.loads(r) for r in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for name in CASES
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

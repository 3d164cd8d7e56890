"""Going on with another number of ranks or another ZeRO stage: the curve of the unbroken run.

Weight decay makes two parameter groups, and dropout is off, since its draws belong to ranks. Every
update has 8 rows whatever the number of ranks; they are the same rows. One training has fewer rows
than that.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.storage.shards import open_shards

pytestmark = pytest.mark.ranks

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "train_cases.py")
STEPS, HALF = 8, 4
Run = Callable[..., list[int]]
Rows = list[dict[str, float]]


@dataclass(frozen=True)
class Case:
    """A training of STEPS updates, from its beginning or from step HALF of another one."""

    ranks: int
    stage: int
    source: str | None = None
    flags: tuple[str, ...] = ()
    zero: dict[str, Any] = field(default_factory=dict)


OPTIMIZER_ON_CPU = {"offload_optimizer": {"device": "cpu"}}
ALL_ON_CPU = {**OPTIMIZER_ON_CPU, "offload_param": {"device": "cpu"}}
BEST = (
    "--evaluation.every_steps=1",
    "--checkpoints.every_steps=1",
    "--checkpoints.keep_last=1",
    "--checkpoints.keep_best=2",
    "--optimizer.lr=0.3",  # so high that the held-out loss goes up and down
)
BF16 = ("--precision=bf16",)
# In the order of launches: each case may go on from those before it.
LAUNCHES = [
    {"one_3": Case(1, 3), "best": Case(1, 3, flags=BEST)},
    {
        "two_3": Case(2, 3),
        "two_1": Case(2, 1),
        "one_3_to_two_3": Case(2, 3, "one_3"),
        "one_3_to_two_1": Case(2, 1, "one_3"),
        "two_1_bf16": Case(2, 1, flags=BF16),
        "two_1_bf16_again": Case(2, 1, "two_1_bf16", BF16),
    },
    {
        "two_3_to_one_3": Case(1, 3, "two_3"),
        "two_1_to_one_1": Case(1, 1, "two_1"),
    },
]
SLOW_LAUNCHES = [
    {"one_0": Case(1, 0)},
    {
        "two_0": Case(2, 0),
        "two_2": Case(2, 2),
        "two_3": Case(2, 3),
        "two_2_offloaded": Case(2, 2, zero=OPTIMIZER_ON_CPU),
        "one_0_to_two_3_offloaded": Case(2, 3, "one_0", zero=ALL_ON_CPU),
        "one_0_to_two_0": Case(2, 0, "one_0"),
        "one_0_to_two_2": Case(2, 2, "one_0"),
        "one_0_to_two_3": Case(2, 3, "one_0"),
        "two_2_bf16": Case(2, 2, flags=BF16),
        "two_3_bf16": Case(2, 3, flags=BF16),
        "two_2_bf16_again": Case(2, 2, "two_2_bf16", BF16),
        "two_3_bf16_again": Case(2, 3, "two_3_bf16", BF16),
    },
    {
        "two_0_to_one_0": Case(1, 0, "two_0"),
        "two_2_to_one_2": Case(1, 2, "two_2"),
        "two_2_offloaded_to_one_3": Case(1, 3, "two_2_offloaded"),
        "two_2_to_one_0": Case(1, 0, "two_2"),
        "two_3_to_one_1": Case(1, 1, "two_3"),
    },
    {"two_3_to_four_3": Case(4, 3, "two_3"), "two_2_to_four_1": Case(4, 1, "two_2")},
]


def _arguments(name: str, case: Case, folder: Path, shards: Path) -> list[str]:
    settings = folder / f"{name}.json"
    zero = {"stage": case.stage, "stage3_param_persistence_threshold": 64}  # biases stay gathered
    settings.write_text(json.dumps({"zero_optimization": zero | case.zero}))
    flags = {
        "config": DEBUG,
        "name": name,
        "runs": str(folder),
        "data.shards": str(shards),
        "steps": STEPS,
        "batch.global_rows": 8,
        "batch.micro_rows": 2,
        "model.dropout_prob": 0.0,
        "model.attention_dropout_prob": 0.0,
        "optimizer.gradient_clipping": 0.5,
        "optimizer.weight_decay": 0.3,
        "schedule.warmup_ratio": 0.0,
        "evaluation.every_steps": 0,
        "checkpoints.every_steps": HALF,
        "deepspeed_config": str(settings),
    }
    if case.source:
        flags["resume"] = str(folder / case.source / "checkpoints" / f"step-{HALF:08d}")
    return [*(f"--{key}={value}" for key, value in flags.items()), *case.flags]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Path:
    """Shards of three short documents, of which one or two are held out."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "text.txt").write_text("a teacher sees.\nour house leaves.\nevery ship follows.\n")
    settings = PrepareSettings(
        input=[str(folder / "text.txt")],
        tokenizer=str(shards / "tokenizer"),
        output=str(folder / "shards"),
        validation=0.5,
    )
    prepare(settings)
    counts = {n: s.num_documents for n, s in open_shards(folder / "shards").splits.items()}
    assert sorted(counts.values()) == [1, 2]
    return folder / "shards"


def _trained(
    launches: list[dict[str, Case]], folder: Path, shards: Path, run_ranks: Run
) -> dict[str, Rows]:
    for number, cases in enumerate(launches):
        (world_size,) = {case.ranks for case in cases.values()}
        listed = folder / f"launch{number}.json"
        listed.write_text(json.dumps([_arguments(n, c, folder, shards) for n, c in cases.items()]))
        run_ranks(world_size, [WORKER, str(listed)], folder / f"log{number}")
    return {
        name: [json.loads(r) for r in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for cases in launches
        for name in cases
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of `curves` lie."""
    return tmp_path_factory.mktemp("elastic")


@pytest.fixture(scope="module")
def curves(folder: Path, shards: Path, tiny: Path, run_ranks: Run) -> dict[str, Rows]:
    """Every scalar of every step, by case."""
    one, two, one_again = LAUNCHES
    launches = [one, two | {"tiny": Case(2, 3, flags=(f"--data.shards={tiny}",))}, one_again]
    return _trained(launches, folder, shards, run_ranks)


@pytest.fixture(scope="module")
def slow_curves(
    tmp_path_factory: pytest.TempPathFactory, shards: Path, run_ranks: Run
) -> dict[str, Rows]:
    return _trained(SLOW_LAUNCHES, tmp_path_factory.mktemp("elastic"), shards, run_ranks)


def _later(rows: Rows, tag: str) -> list[float]:
    return [row[tag] for row in rows if row["step"] > HALF and tag in row]


def _continues(curve: Rows, unbroken: Rows) -> None:
    assert [row["step"] for row in curve if "loss/total_nats" in row] == [
        *range(HALF + 1, STEPS + 1)
    ]
    for tag in ("loss/total_nats", "optimizer/gradient_norm", "validation/glm_total_nats"):
        assert _later(curve, tag) == pytest.approx(_later(unbroken, tag), rel=1e-5)
    for tag in ("data/targets_per_step", "data/padding_ratio"):
        assert _later(curve, tag) == _later(unbroken, tag)


RESUMED = [name for launch in LAUNCHES for name in launch if "_to_" in name]
SLOW_RESUMED = [name for launch in SLOW_LAUNCHES for name in launch if "_to_" in name]


@pytest.mark.parametrize("name", RESUMED)
def test_another_number_of_ranks_continues_the_curve(name: str, curves: dict[str, Rows]) -> None:
    _continues(curves[name], curves["two_3"])


def test_bf16_goes_on_bit_for_bit(curves: dict[str, Rows]) -> None:
    for tag in ("loss/total_nats", "optimizer/gradient_norm"):
        assert _later(curves["two_1_bf16_again"], tag) == _later(curves["two_1_bf16"], tag)


def test_the_best_and_the_last_checkpoints_stay(folder: Path, curves: dict[str, Rows]) -> None:
    nats = {r["step"]: v for r in curves["best"] if (v := r.get("validation/glm_total_nats"))}
    assert len(nats) == STEPS
    best = sorted(nats, key=lambda step: (nats[step], -step))[:2]
    kept = [int(p.name[-8:]) for p in (folder / "best" / "checkpoints").glob("step-*")]
    assert sorted(kept) == sorted({STEPS, *best})


def test_fewer_rows_than_ranks_never_hang(curves: dict[str, Rows]) -> None:
    assert [row["step"] for row in curves["tiny"] if "loss/total_nats" in row] == [*range(1, 9)]
    held_out = [r for r in curves["tiny"] if "validation/glm_total_nats" in r]
    assert len(held_out) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_RESUMED)
def test_every_stage_continues_the_curve_of_every_other(
    name: str, slow_curves: dict[str, Rows]
) -> None:
    """About two minutes for all cases on 2 cores; four ranks crawl there."""
    _continues(slow_curves[name], slow_curves["two_3"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_2_bf16", "two_3_bf16"])
def test_bf16_goes_on_bit_for_bit_at_the_other_stages(
    name: str, slow_curves: dict[str, Rows]
) -> None:
    """Shares its trainings with the test above."""
    for tag in ("loss/total_nats", "optimizer/gradient_norm"):
        assert _later(slow_curves[f"{name}_again"], tag) == _later(slow_curves[name], tag)

"""profiling.py and stragglers.py: traces of some steps, and ranks that are behind.

Two ranks in one process group train three runs: the second rank is slow, waits for data, neither;
and a task of a sweep.
"""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from pretrain.models.parameters import Linear
from pretrain.recording.run_folder import RunFolder
from pretrain.recording.status import read
from pretrain.settings.watch_config import ProfileConfig, StragglersConfig
from pretrain.training.stragglers import ProductClock

pytestmark = pytest.mark.ranks

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "watch_cases.py")
PROFILE = '--profile={"start_step": 3, "steps": 2, "ranks": [1]}'


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, shards: Path, run_ranks: Callable[..., list[int]]
) -> Path:
    """The runs `products`, `data` and `nothing`, by what is slow on rank 1, and a sweep's task."""
    folder = tmp_path_factory.mktemp("watched")
    flags = [
        "--config", DEBUG, f"--runs={folder}", f"--data.shards={shards}", "--steps=4",
        "--batch.global_rows=8", "--evaluation.every_steps=0", "--checkpoints.every_steps=0",
        "--stragglers.every_steps=2",
    ]  # fmt: skip
    cases = [["products", []], ["data", []], ["nothing", [PROFILE, "--stragglers.every_steps=0"]]]
    listed = [[what, [*flags, f"--name={what}", *more]] for what, more in cases]
    sweep = folder / "tried.yaml"
    sweep.write_text(f"recipe: {DEBUG}\ngrid: {{optimizer.lr: [1e-3, 2e-3]}}\n")
    own = [flag for flag in flags if flag not in ("--config", DEBUG)]
    listed.append(["nothing", ["--sweep", str(sweep), "--task=1", "--array=77", *own]])
    (folder / "cases.json").write_text(json.dumps(listed))
    run_ranks(2, [WORKER, str(folder / "cases.json")], folder / "log", timeout_s=550)
    return folder


def _warnings(runs: Path, run: str) -> list[str]:
    lines = (runs / run / "logs" / "rank-0.log").read_text().splitlines()
    return [line for line in lines if " is behind: " in line]


def _found(runs: Path, run: str, tag: str) -> list[tuple[int, Any]]:
    rows = [json.loads(line) for line in (runs / run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row[tag]) for row in rows if tag in row]


def test_the_rank_whose_products_are_slow_is_named_with_its_host(runs: Path) -> None:
    (line,) = [line for line in _warnings(runs, "products") if "matrix products" in line]
    assert f"step 2: rank 1 on {socket.gethostname()} is behind: its matrix products take" in line
    assert _found(runs, "products", "ranks/slowest_rank") == [(2, 1.0), (4, 1.0)]
    assert all(ratio > 1.5 for _, ratio in _found(runs, "products", "ranks/slowest_products_ratio"))


def test_the_rank_that_waits_for_data_is_named(runs: Path) -> None:
    lines = [line for line in _warnings(runs, "data") if "waits for data" in line]
    assert len(lines) == 1 and "step 2: rank 1 on " in lines[0]
    share = re.search(r"waits for data (\d+)% of the time", lines[0])
    assert share and int(share[1]) > 10
    assert _found(runs, "data", "ranks/longest_data_wait_rank") == [(2, 1.0), (4, 1.0)]


def test_a_run_that_does_not_look_names_nobody(runs: Path) -> None:
    assert _warnings(runs, "nothing") == []
    assert _found(runs, "nothing", "ranks/slowest_rank") == []


def test_a_trace_holds_the_steps_and_the_rank_that_were_named(runs: Path) -> None:
    (trace,) = (runs / "nothing" / "profile").iterdir()
    assert trace.name == "rank-1-steps-3-4.pt.trace.json"
    said = json.loads(trace.read_text())
    names = [event.get("name", "") for event in said["traceEvents"]]
    # Products of the model, and the weights that were gathered for them.
    assert said["distributedInfo"]["rank"] == 1
    assert names.count("aten::addmm") >= 2 and any("all_gather" in name for name in names)
    assert not (runs / "products" / "profile").exists()


def test_each_rank_has_a_log_that_names_it_and_its_host(runs: Path) -> None:
    for rank in range(2):
        lines = (runs / "data" / "logs" / f"rank-{rank}.log").read_text().splitlines()
        assert f" {socket.gethostname()} rank {rank} INFO " in lines[0]


def test_a_task_trains_in_the_folder_of_its_array_and_shows_its_settings(runs: Path) -> None:
    run = runs / "tried" / "77_1-lr=2e-3"
    assert read(run).state == "finished" and read(run).ranks == 2
    assert RunFolder(run).swept() == ["optimizer.lr"]
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    (said,) = [
        content
        for tag, content in board.summary_metadata.items()
        if tag.endswith("session_start_info")
    ]
    assert b"optimizer.lr" in said.plugin_data.content


def test_only_the_products_are_timed() -> None:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(Linear(3, 4, 0.1, generator), nn.GELU(), Linear(4, 2, 0.1, generator))
    clock = ProductClock(model, torch.device("cpu"))
    clock.start()
    model(torch.ones(5, 3))
    assert clock.stop() > 0 and len(clock._times) == 2
    model(torch.ones(5, 3))
    assert len(clock._times) == 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ProfileConfig(start_step=-1), "profile.start_step must be 0 or more, got -1"),
        (lambda: ProfileConfig(steps=0), "profile.steps must be at least 1, got 0"),
        (lambda: ProfileConfig(ranks=(-1,)), "profile.ranks must name ranks from 0 on"),
        (lambda: StragglersConfig(every_steps=-1), "stragglers.every_steps must be 0 or more"),
        (lambda: StragglersConfig(slower_ratio=1.0), "stragglers.slower_ratio must be above 1"),
        (lambda: StragglersConfig(wait_ratio=1.0), r"stragglers.wait_ratio must lie in \(0, 1\)"),
    ],
)
def test_a_setting_out_of_range_is_named(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()

"""A full disk before or during a save: said, nothing partial left, what was complete stays."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ranks

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "disk_cases.py")
STEP_1 = ["latest", "step-00000001"]


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A file system of 1.4 MB: a checkpoint of the debug model takes 0.6 MB. None without root."""
    folder = tmp_path_factory.mktemp("small")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1400k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    yield folder if mounted else None
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


def _arguments(name: str, runs: Path, shards: Path, *more: str) -> list[str]:
    flags = {
        "config": DEBUG,
        "name": name,
        "runs": str(runs),
        "data.shards": str(shards),
        "steps": 3,
        "batch.global_rows": 8,
        "batch.micro_rows": 2,
        "evaluation.every_steps": 0,
        "checkpoints.every_steps": 1,
        "checkpoints.keep_last": 1,
    }
    return [*(f"--{k}={v}" for k, v in flags.items()), *more]


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory,
    small_disk: Path | None,
    shards: Path,
    run_ranks: Callable[..., list[int]],
) -> list[dict[str, Any]]:
    """By rank, what each case said and left."""
    folder = tmp_path_factory.mktemp("disk")
    cases = [("limited", _arguments("limited", folder, shards))]
    for policy in ("stop", "continue"):
        for when in ("seen before", "met in writing"):
            flag = f"--checkpoints.on_disk_full={policy}"
            arguments = _arguments("full", small_disk or folder, shards, flag)
            cases.append((f"{policy}, {when}", arguments))
        flags = (f"--checkpoints.on_disk_full={policy}", "--steps=12")
        cases.append(
            (f"{policy}, for good", _arguments("full", small_disk or folder, shards, *flags))
        )
    (folder / "cases.json").write_text(json.dumps(cases))
    argv = [WORKER, str(small_disk or "-"), str(folder), str(folder / "cases.json")]
    run_ranks(2, argv, folder / "log")
    return [json.loads((folder / f"results.{rank}.json").read_text()) for rank in (0, 1)]


def test_one_rank_that_cannot_write_ends_the_save_on_all(results: list[dict[str, Any]]) -> None:
    for rank in results:
        case = rank["a file may not grow"]
        assert case["said"].startswith("step-00000002 was not saved, the disk is full: [Errno 27]")
        assert (case["names"], case["latest"]) == (STEP_1, "step-00000001")
        assert case["after"] == ["latest", "step-00000001", "step-00000003"]


@pytest.mark.parametrize("when", ["seen before", "met in writing"])
@pytest.mark.parametrize(("policy", "steps"), [("stop", 2), ("continue", 3)])
def test_a_full_disk_stops_the_run_or_lets_it_go_on_as_configured(
    policy: str, steps: int, when: str, results: list[dict[str, Any]], small_disk: Path | None
) -> None:
    if small_disk is None:
        pytest.skip("a small file system is mounted, which needs root")
    for rank in results:
        case = rank[f"{policy}, {when}"]
        # Going on, the run ends at its last step all the same: nothing would keep its weights.
        assert case["said"].startswith(f"step-0000000{steps} was not saved, the disk is full")
        assert ("bytes, and" in case["said"]) is (when == "seen before")
        assert (case["names"], case["latest"]) == (STEP_1, "step-00000001")
        assert case["steps"] == steps


@pytest.mark.parametrize(("policy", "step"), [("stop", 2), ("continue", 12)])
def test_a_disk_without_a_byte_left_ends_a_run_only_through_its_saves(
    policy: str, step: int, results: list[dict[str, Any]], small_disk: Path | None
) -> None:
    """Metrics and status find no room either: that is passed over, and hides no message."""
    if small_disk is None:
        pytest.skip("a small file system is mounted, which needs root")
    for rank in results:
        case = rank[f"{policy}, for good"]
        assert case["said"].startswith(f"step-{step:08d} was not saved, the disk is full")
        assert (case["names"], case["latest"]) == (STEP_1, "step-00000001")

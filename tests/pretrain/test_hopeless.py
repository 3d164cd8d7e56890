"""Updates that are skipped in a row end the run on all ranks, with the last good weights saved.

About 15 s for two launches of two ranks on two free cores.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.ranks

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "train_cases.py")


def _case(runs: Path, shards: Path, *more: str, faults: dict[str, str]) -> dict[str, object]:
    flags = {
        "config": DEBUG,
        "name": "hopeless",
        "runs": str(runs),
        "data.shards": str(shards),
        "steps": 8,
        "batch.micro_rows": 2,
        "evaluation.every_steps": 0,
        "checkpoints.every_steps": 1,
        "checkpoints.keep_last": 9,
        "spikes.stop_after": 3,
    }
    arguments = [*(f"--{k}={v}" for k, v in flags.items()), *more]
    return {"arguments": arguments, "faults": faults}


def test_a_row_of_skips_ends_the_run_and_the_way_out_that_it_names_works(
    tmp_path: Path, shards: Path, run_ranks: Callable[..., list[int]]
) -> None:
    cases, run = tmp_path / "cases.json", tmp_path / "hopeless"
    faults = {"3": "nan", "4": "gradient", "5": "nan"}
    cases.write_text(json.dumps([_case(tmp_path, shards, faults=faults)]))
    codes = run_ranks(2, [WORKER, str(cases)], tmp_path / "log", succeeds=False)
    assert 0 not in codes
    said = "step 5: 3 updates in a row were skipped (of the whole run: 2 non_finite_loss, 1 gradie"
    for rank in range(2):
        assert said in (tmp_path / f"log.{rank}").read_text()
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "failed" and said in status["reason"]
    assert (run / "checkpoints" / "latest").read_text() == "step-00000004\n"
    weights = [
        load_file(run / "checkpoints" / f"step-0000000{step}" / "model.safetensors")
        for step in (2, 4)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

    resume = f"--resume={run}/checkpoints/step-00000002"
    named = _case(tmp_path, shards, resume, "--data.skip_steps=[[3, 5]]", faults={})
    cases.write_text(json.dumps([named]))
    run_ranks(2, [WORKER, str(cases)], tmp_path / "log")
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-2])
    assert (last["updates/applied"], last["updates/skipped_named"]) == (5, 3)
    assert last["updates/skipped_non_finite_loss"] == 0

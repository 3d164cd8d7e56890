"""GLM-VAE on texts written whole from [gMASK] uses its latent space; with part A visible it need
not, and both are told apart."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "train_cases.py")


def test_whole_texts_make_units_active(
    tmp_path: Path, shards: Path, run_ranks: Callable[..., list[int]]
) -> None:
    """400 updates: two minutes on a free core, 13 beside thirty other processes."""
    settings = tmp_path / "zero.json"
    settings.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    blanks = "{token_prob: 0, document_prob: 1, whole_prob: 0.5}"
    flags = {
        "config": DEBUG,
        "name": "vae",
        "runs": str(tmp_path),
        "data.shards": str(shards),
        "deepspeed_config": str(settings),
        "steps": 400,
        "checkpoints.every_steps": 0,
        "evaluation.every_steps": 0,
        "evaluation.max_rows": 64,
        "optimizer.lr": 0.004,
        "optimizer.weight_decay": 0.0,
        "model.dropout_prob": 0.0,
        "objectives.glm.weight": 0,
        "objectives.glm_vae.weight": 1,
        "objectives.glm_vae.blanks": blanks,
        "objectives.glm_vae.latent": "{size: 8, injection: both}",
        "objectives.glm_vae.elbo": "{reduction: text, "
        "beta: {schedule: linear, increase_ratio: 0.5}, free_bits: {mode: hinge, nats: 0.5}}",
    }
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps([[f"--{name}={value}" for name, value in flags.items()]]))
    run_ranks(1, [WORKER, str(cases)], tmp_path / "log", timeout_s=1200)
    rows = [json.loads(r) for r in (tmp_path / "vae" / "metrics.jsonl").read_text().splitlines()]
    held_out = {tag: value for row in rows for tag, value in row.items() if "validation/" in tag}
    of_kind = "validation/glm_vae_{}_active_units"
    assert held_out[of_kind.format("whole")] > 0
    assert held_out["validation/glm_vae_whole_mutual_information_nats"] > 0.2
    assert of_kind.format("document") in held_out

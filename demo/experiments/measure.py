"""The numbers of a run on held-out sentences; only this file, and what it calls, needs torch."""

import json
import math
from pathlib import Path
from typing import Any

from pretrain.evaluate.command import EvaluateSettings, evaluate_latent
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import config_from_yaml

LANGUAGE_MODELS = ("glm", "causal")  # objectives without a latent space


def measured_run(run: Path, *, num_texts: int, samples: int) -> dict[str, Any]:
    """What a run has learned: of its latent space what `evaluate --latent` tells; of GLM's blanks
    and of plain language modelling the held-out nats a target at its end."""
    chosen = config_from_yaml(RunFolder(run).config).objectives.chosen
    found: dict[str, Any] = {}
    if set(chosen) - set(LANGUAGE_MODELS):
        settings = EvaluateSettings(latent=str(run), max_texts=num_texts, samples=samples)
        found |= evaluate_latent(settings)
    if "glm" in chosen:
        found["glm_nats"] = last_nats(run, "glm")
    if "causal" in chosen:
        found["causal_nats"] = last_nats(run, "causal")
        found["perplexity_per_token"] = math.exp(found["causal_nats"])
    return found


def last_nats(run: Path, objective: str) -> float:
    """Held-out nats a target of an objective without a latent space, at the last evaluation."""
    tag = f"validation/{objective}_total_nats"
    with open(RunFolder(run).metrics, encoding="utf-8") as lines:
        return [r for r in map(json.loads, lines) if tag in r][-1][tag]

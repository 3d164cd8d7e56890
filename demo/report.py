"""The demo's result: runs/demo/report.json, and the same as a page for the terminal."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the page of a finished demo is shown without loading torch
    from demo.fills import ShownBlank
    from demo.heldout import Comparison


def summary(
    comparison: "Comparison", blanks: list["ShownBlank"], steps: list[dict[str, float]], corpus: str
) -> dict[str, Any]:
    """The report as plain values.

    steps: the lines of metrics.jsonl that belong to training steps.
    """
    seconds = sum(s["speed/step_seconds"] for s in steps)
    tokens = sum(s["speed/tokens_per_second"] * s["speed/step_seconds"] for s in steps)
    return {
        "corpus": corpus,
        "heldout_nats_per_blank_token": comparison.with_end,
        "heldout_nats_per_blank_token_without_end": comparison.without_end,
        "heldout_targets": comparison.num_targets,
        "padding_share": sum(s["data/padding_ratio"] for s in steps) / len(steps),
        "tokens_per_s": tokens / seconds,
        "steps": len(steps),
        "training_s": seconds,
        "filled": [asdict(blank) for blank in blanks],
    }


def read_steps(metrics: Path) -> list[dict[str, float]]:
    """The training steps of a run's metrics.jsonl; its evaluations are left out."""
    with open(metrics, encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [r for r in records if "speed/step_seconds" in r]


def page(report: dict[str, Any], run: str) -> str:
    """The report for a person to read."""
    lines = [
        f"Held-out nats per blank token ({report['heldout_targets']} targets, lower is better)",
        "(without end: tokens alone, given that the blank goes on; with: its end is a target too)",
        "                                      without end   with end",
    ]
    names = {
        "model": "this model",
        "unigram": "unigram (add one)",
        "bigram": "bigram (Kneser-Ney, left neighbour)",
    }
    without, whole = (
        report["heldout_nats_per_blank_token_without_end"],
        report["heldout_nats_per_blank_token"],
    )
    lines += [f"  {names[k]:36} {without[k]:9.3f} {whole[k]:10.3f}" for k in names]
    lines += [
        f"  The model is {without['unigram'] - without['model']:.2f} nats below the unigram. The "
        "bigram is a strong baseline for five minutes",
        "  of training; a longer run passes it.",
        "",
        "Blanks in held-out sentences",
    ]
    for blank in report["filled"]:
        lines += _blank_lines(blank)
    lines += [
        f"Training: {report['steps']} steps in {report['training_s'] / 60:.1f} min, "
        f"{report['tokens_per_s'] / 1000:.1f}k tokens/s, "
        f"{100 * report['padding_share']:.2f} % of all positions were padding",
        f"Curves:   {run}/curves.png, or tensorboard --logdir {run}/tensorboard",
        f'Try next: python -m pretrain generate {run} --text "We must [MASK] our country."',
    ]
    return "\n".join(lines)


def _blank_lines(blank: dict[str, Any]) -> list[str]:
    best = ", ".join(f'"{text}" {100 * prob:.1f} %' for text, prob in blank["candidates"])
    return [
        f"  {blank['text']}",
        f"    filled: {blank['filled']}",
        f"    truth:  {blank['truth']}, probability {100 * blank['truth_prob']:.2f} %, rank "
        f"{blank['truth_rank']} (unigram {100 * blank['truth_unigram_prob']:.2f} %); best: {best}",
        "",
    ]

"""The result of `make demo-vae`: runs/demo_vae/report.json, and the same as a page."""

from collections.abc import Mapping
from typing import Any

# What is taken over from the evaluator's report (pretrain/evaluate/latent_report.py).
MEASURED = (
    "active_units",
    "mutual_information_nats",
    "mi_ceiling_nats",
    "shuffled_z_extra_nats",
    "nats_per_sentence_iw",
    "nats_per_token_iw",
    "nats_per_sentence_elbo",
    "reconstruction_nats",
    "kl_nats",
    "perplexity_per_token",
    "num_texts",
    "num_tokens",
    "latent_size",
)


def summary(
    found: Mapping[str, Any],
    interpolation: list[str],
    analogy: dict[str, str],
    steps: list[dict[str, float]],
    corpus: str,
) -> dict[str, Any]:
    """The report as plain values.

    found: what the evaluator says of held-out sentences. interpolation: what is written on the way
    from one sentence to another. analogy: "a is to b as c is to", "written". steps: the lines of
    metrics.jsonl that belong to training steps.
    """
    return {
        **{name: found[name] for name in MEASURED},
        "interpolation": interpolation,
        "analogy": analogy,
        "corpus": corpus,
        "steps": len(steps),
        "training_s": sum(s["speed/step_seconds"] for s in steps),
        "padding_share": sum(s["data/padding_ratio"] for s in steps) / len(steps),
    }


def page(
    report: Mapping[str, Any], run: str, goals: Mapping[str, float], *, is_judged: bool
) -> str:
    """The report for a person to read.

    goals: key of the report -> the least it must be. is_judged: whether the run was a whole one.
    """
    values = {**report, "ceiling": f"{report['mi_ceiling_nats']:.2f}"}
    lines = [
        f"Held-out sentences: {report['num_texts']}, {report['num_tokens']:.0f} tokens with their "
        f"ends. z is {report['latent_size']} numbers.",
    ]
    for label, name, unit in _ROWS:
        goal = f"  goal: {goals[name]:g} or more" if name in goals else ""
        lines.append(f"  {label:42} {report[name]:9.3f}  {unit.format(**values)}{goal}".rstrip())
    if not is_judged:
        lines.append("  The goals are those of the whole recipe; this run was shorter.")
    lines += ["", "From one sentence to another, the ends as z tells them"]
    lines += [f"  {text}" for text in report["interpolation"]]
    analogy = report["analogy"]
    lines += [
        "",
        "An analogy: z_b - z_a + z_c, written",
        *(f"  {name}:  {analogy[name]}" for name in ("a", "b", "c", "written")),
        "",
        f"Training: {report['steps']} steps in {report['training_s'] / 60:.1f} min, "
        f"{100 * report['padding_share']:.2f} % of all positions were padding",
        f"Curves:   tensorboard --logdir {run}/tensorboard",
    ]
    return "\n".join(lines)


_ROWS = (
    ("active units", "active_units", "of {latent_size}"),
    (
        "mutual information of sentence and z",
        "mutual_information_nats",
        "nats of at most {ceiling}",
    ),
    ("written with another sentence's z", "shuffled_z_extra_nats", "nats a sentence more"),
    ("-log p(sentence), importance-weighted", "nats_per_sentence_iw", "nats"),
    ("the same a token", "nats_per_token_iw", "nats"),
    ("reconstruction", "reconstruction_nats", "nats a sentence"),
    ("KL", "kl_nats", "nats a sentence"),
)

"""Writes the golden loss curves: 20 steps of a small model, fp32 on one CPU rank, by objective.

    python tests/pretrain/golden_curves.py FOLDER      a file NAME.json for each curve
    python tests/pretrain/golden_curves.py --write     into tests/golden/curves, to be committed
                                                       with a sentence why the numbers moved

The whole path is under guard: text, tokenizer (kept beside the curves, so that no trainer of
tokenizers has a part in it), shards, order, blanks, packing, model, ZeRO-3, AdamW, schedule. A new
objective is a line in OBJECTIVES. tests/pretrain/test_golden_curves.py compares.
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "curves"
STEPS = 20

_KINDS = "objectives.glm.blanks"
_ONLY = {
    kind: [f"--{_KINDS}.{k}_prob={float(k == kind)}" for k in ("token", "sentence", "document")]
    for kind in ("token", "sentence", "document")
}
OBJECTIVES: dict[str, list[str]] = {
    "glm": [],  # the mix of the debug recipe: 40 % token, 30 % sentence, 30 % document
    "glm_token": _ONLY["token"],
    "glm_sentence": _ONLY["sentence"],
    "glm_document": _ONLY["document"],
    # Beside plain GLM; two cycles of beta, memory and embedding, free bits.
    "glm_vae": [
        "--objectives.glm_vae.weight=1",
        "--objectives.glm_vae.latent={size: 8, injection: both}",
        "--objectives.glm_vae.elbo.beta={cycles: 2}",
        "--objectives.glm_vae.elbo.free_bits={mode: hinge, nats: 0.005}",
        "--objectives.glm_vae.elbo.report_every=1",
    ],
    # Adapters, latent head and LayerNorms learn, the rest stays as it was drawn.
    "adavae": [
        "--objectives.glm.weight=0",
        "--objectives.adavae={weight: 1, encoder_layers: 1, adapter_size: 8, latent_size: 8}",
        "--objectives.adavae.elbo={report_every: 1, beta: {cycles: 2}, "
        "free_bits: {mode: total, nats: 0.01}, reduction: separate}",
        "--model.block_positions=false",
        "--trains=adapters",
        "--optimizer.lr=0.02",
    ],
    # The baselines: a language model without z, and one without a Transformer.
    "causal": [
        "--objectives.glm.weight=0",
        "--objectives.causal.weight=1",
        "--model.block_positions=false",
    ],
    "lstm_vae": [
        "--objectives.glm.weight=0",
        "--objectives.lstm_vae={weight: 1, embedding_size: 16, hidden_size: 24, latent_size: 8, "
        "dropout_prob: 0}",
        "--objectives.lstm_vae.elbo={report_every: 1, free_bits: {mode: hinge, nats: 0.005}}",
        "--optimizer.lr=0.01",
    ],
    # Alone: an encoder of BERT's shape, a decoder of GPT-2's, part of the encoder's input hidden.
    "optimus": [
        "--objectives.glm.weight=0",
        "--objectives.optimus.weight=1",
        "--model.block_positions=false",
        "--model.max_positions=65",
        "--objectives.optimus.encoder={num_layers: 2, hidden_size: 32, num_heads: 4, mlp_size: 64, "
        "norm_order: post, gelu: erf, token_types: 2, embedding_norm: true, block_positions: false,"
        "dropout_prob: 0, attention_dropout_prob: 0}",
        "--objectives.optimus.latent={size: 8, pooling: cls, injection: both}",
        "--objectives.optimus.elbo.beta={cycles: 2}",
        "--objectives.optimus.elbo.free_bits={mode: mask, nats: 0.005}",
        "--objectives.optimus.elbo.reduction=length_weighted",
        "--objectives.optimus.elbo.report_every=1",
        "--objectives.optimus.denoise_ratio=0.15",
        "--optimizer.lr=0.002",
    ],
}

_SUBJECTS = ["the river", "a teacher", "our house", "the old clock", "every ship", "a small bird"]
_VERBS = ["sees", "carries", "follows", "writes about", "remembers", "leaves"]
_OBJECTS = ["the morning", "its letters", "a green field", "the city", "two stones", "no one"]


def text() -> str:
    """300 documents of 1 to 30 sentences, a line each, always the same."""
    rng = random.Random(17)
    lines = [
        " ".join(
            f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}."
            for _ in range(rng.choice((1, 1, 2, 3, 8, 30)))
        )
        for _ in range(300)
    ]
    return "\n".join(lines) + "\n"


def write_curves(folder: Path) -> None:
    """Train every objective and write its curve to `folder`."""
    from pretrain.distributed.world import join_world, leave_world
    from pretrain.settings.cli import parse_train
    from pretrain.training.train import run_in

    with tempfile.TemporaryDirectory() as scratch:
        shards = _shards(Path(scratch))
        world = join_world(timeout_s=60)
        for name, flags in OBJECTIVES.items():
            argv = [
                *("--config", str(ROOT / "launch" / "recipes" / "debug.yaml")),
                *("--name", name, "--runs", scratch, "--data.shards", str(shards)),
                f"--steps={STEPS}",
                *("--precision=fp32", "--model.dropout_prob=0", "--evaluation.every_steps=0"),
                "--checkpoints.every_steps=0",
                *flags,
            ]
            run_in(world, *parse_train(argv))
            curve = _curve(Path(scratch) / name / "metrics.jsonl")
            text = json.dumps(curve, indent=1) + "\n"
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
        leave_world()


def _shards(folder: Path) -> Path:
    from data_pipeline.preparing.prepare import PrepareSettings, prepare

    source = folder / "text.txt"
    source.write_text(text(), encoding="utf-8")
    tokenizer, output = str(GOLDEN / "tokenizer.model"), str(folder / "shards")
    prepare(PrepareSettings(input=[str(source)], tokenizer=tokenizer, output=output))
    return folder / "shards"


def _curve(metrics: Path) -> dict[str, list[float | None]]:
    """Losses and gradient norms of every step, by tag."""
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if "loss/total_nats" in row]
    tags = sorted({tag for row in steps for tag in row if tag.startswith(("loss/", "latent/"))})
    return {tag: [row.get(tag) for row in steps] for tag in (*tags, "optimizer/gradient_norm")}


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu")
    sys.path.insert(0, str(ROOT))
    target = GOLDEN if sys.argv[1] == "--write" else Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_curves(target)

    from pretrain.__main__ import leave_at_once

    leave_at_once(0)

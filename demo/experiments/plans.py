"""The experiments: which runs each of them compares, as flags over the demo's recipe.

All are small on purpose, minutes on a CPU: they show that a comparison runs from end to end, with
one normaliser, and which way it points at this size. docs/ledger.md holds what was found.
"""

from dataclasses import dataclass
from typing import Literal

RECIPE = "launch/recipes/demo_vae.yaml"
SHARDS = "runs/demo_vae/shards"
INPUTS = "runs/experiments/inputs"
MINILM = f"{INPUTS}/minilm"  # a BERT that a package holds
TWO_STREAMS = f"{INPUTS}/shards"  # the sentences in its vocabulary beside ours
# A run of every experiment, where a variant says nothing else: one cycle, as in fine-tuning.
BASE = {
    "steps": "200",
    "objectives.optimus.elbo.beta.cycles": "1",
    "objectives.optimus.elbo.beta.ceiling": "1",
    "batch.micro_rows": "20",
    "evaluation.every_steps": "1000000",  # at its end alone
    "evaluation.max_rows": "10",
    "checkpoints.every_steps": "0",
}


@dataclass(frozen=True)
class Variant:
    """A run of an experiment."""

    name: str
    flags: dict[str, str]
    """What differs from BASE."""
    begins_with: str | None = None
    """The variant before it whose weights this one begins with."""


@dataclass(frozen=True)
class Experiment:
    """Runs that are compared."""

    question: str
    variants: tuple[Variant, ...]
    needs: Literal["minilm"] | None = None
    """What it needs besides the demo's shards: a function of demo/experiments/inputs.py."""


def _free_bits(nats: float) -> Variant:
    return Variant(f"lambda_{nats:g}", {"objectives.optimus.elbo.free_bits.nats": f"{nats:g}"})


_ALL_ROWS = {"evaluation.max_rows": "100000"}  # the held-out loss of a language model: all of them
_CAUSAL = {"objectives.optimus.weight": "0", "objectives.causal.weight": "1", **_ALL_ROWS}

# A run of plain GLM, of GLM-VAE, and of both; texts of both add up to those of one alone.
_GLM = {
    "objectives.optimus.weight": "0",
    "objectives.glm.weight": "1",
    "objectives.glm.blanks.token_prob": "0.5",
    "objectives.glm.blanks.document_prob": "0.5",
    "model.block_positions": "true",
    **_ALL_ROWS,
}
_GLM_VAE = {
    "objectives.optimus.weight": "0",
    "objectives.glm_vae.weight": "1",
    "objectives.glm_vae.blanks.whole_prob": "1",
    "objectives.glm_vae.elbo.beta.cycles": "1",
    "objectives.glm_vae.elbo.free_bits.mode": "hinge",
    "model.block_positions": "true",
}
_HALF = {"batch.global_rows": "10", "batch.micro_rows": "10"}

# The encoder as it was published: 6 layers x 384 over its own vocabulary, ten times the other one.
_MINILM_SHAPE = {
    "steps": "60",
    "batch.global_rows": "10",
    "batch.micro_rows": "10",
    "data.shards": TWO_STREAMS,
    "objectives.optimus.tokenizers": "two",
    "objectives.optimus.encoder.num_layers": "6",
    "objectives.optimus.encoder.hidden_size": "384",
    "objectives.optimus.encoder.num_heads": "12",
    "objectives.optimus.encoder.norm_order": "post",
    "objectives.optimus.encoder.gelu": "erf",
    "objectives.optimus.encoder.norm_eps": "1e-12",
    "objectives.optimus.encoder.token_types": "2",
    "objectives.optimus.encoder.embedding_norm": "true",
    "objectives.optimus.encoder.max_positions": "512",
    "objectives.optimus.encoder.init_std": "0.02",
    "data.packing.source_tokens": "64",
    "model.max_positions": "80",
    "optimizer.lr": "5e-4",
}

EXPERIMENTS = {
    "injection": Experiment(
        "How z enters the decoder: as a memory slot, added to the embedding, or both.",
        tuple(
            Variant(name, {"objectives.optimus.latent.injection": name})
            for name in ("memory", "embedding", "both")
        ),
    ),
    "lambda": Experiment(
        "Free bits a dimension: what mutual information costs in perplexity.",
        tuple(_free_bits(nats) for nats in (0.05, 0.25, 0.5, 1.0)),
    ),
    "decoder_start": Experiment(
        "A decoder that begins as a language model of ours, beside one from scratch.",
        (
            Variant("language_model", _CAUSAL),
            Variant("scratch", {}),
            Variant("from_language_model", {}, begins_with="language_model"),
        ),
    ),
    "encoder_start": Experiment(
        "An encoder that begins as MiniLM, beside the same one from scratch.",
        (
            Variant("scratch", _MINILM_SHAPE),
            Variant("from_minilm", {**_MINILM_SHAPE, "objectives.optimus.encoder_from": MINILM}),
        ),
        needs="minilm",
    ),
    "glm": Experiment(
        "GLM and a latent space on one backbone, beside either alone, at equal tokens.",
        (
            Variant("glm_alone", _GLM),
            Variant("vae_alone", _GLM_VAE),
            Variant("both", {**_GLM, **_GLM_VAE, **_HALF}),
        ),
    ),
}

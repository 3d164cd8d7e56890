"""The shape of a latent space: values only, no torch, so that `--help` stays quick."""

from dataclasses import dataclass
from typing import Literal

Pooling = Literal["latent_attention", "average", "mean", "cls", "mean_max"]
Placement = Literal["parallel_ffn", "sequential", "reference_double"]
Injection = Literal["memory", "embedding", "both"]


@dataclass(frozen=True, kw_only=True)
class LatentShape:
    """A latent vector of every document: how it is read from hidden states and given back."""

    size: int = 32
    """Z, dimensions of the latent vector."""
    pooling: Pooling = "latent_attention"
    """How the hidden states of a document become one vector. latent_attention: a mean weighted by
    softmax(ReLU(w.h + b) / sqrt(D)) (AdaVAE); average: weighted by softmax(ReLU(w.h)); mean:
    tanh(W mean + b); cls: tanh(W h + b) of its first token (BERT); mean_max: tanh(W [mean, max] +
    b)."""
    injection: Injection = "memory"
    """How the decoder reads z. memory: slots of its own beside the keys of every layer; embedding:
    W z added to the embedding of every token of the document; both."""
    slots: int = 1
    """M, memory slots a document in every layer, each a key and a value projected from z."""

    def __post_init__(self) -> None:
        for name in ("size", "slots"):
            if getattr(self, name) < 1:
                raise ValueError(f"latent.{name} must be at least 1, got {getattr(self, name)}.")
        if self.slots > 1 and self.injection == "embedding":
            raise ValueError(
                f"latent.slots is {self.slots}, but latent.injection: embedding has no slots. "
                "Choose memory or both, or leave out slots."
            )

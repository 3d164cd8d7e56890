"""Which objectives a run has, and the two that have no latent space; no torch, as config.py."""

from dataclasses import dataclass, field

from data_pipeline.transforms.blank import BlankConfig
from pretrain.settings.latent_config import AdaVaeConfig, GlmVaeConfig, LstmVaeConfig, OptimusConfig


@dataclass(frozen=True, kw_only=True)
class GlmConfig:
    """Autoregressive blank infilling (GLM, Du et al. 2022)."""

    weight: float = 1.0
    """Factor of this objective's loss in the sum over objectives; 0 leaves the objective out."""
    blanks: BlankConfig = field(default_factory=BlankConfig)
    """How text is blanked out."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise ValueError(f"objectives.glm.weight must be finite, 0 or more, got {self.weight}.")


@dataclass(frozen=True, kw_only=True)
class CausalConfig:
    """A plain causal language model, the baseline of those with a latent vector."""

    weight: float = 0.0
    """Factor of this objective's loss in the sum over objectives; 0 leaves the objective out."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise ValueError(
                f"objectives.causal.weight must be finite, 0 or more, got {self.weight}."
            )


@dataclass(frozen=True, kw_only=True)
class ObjectivesConfig:
    """The objectives of a run; every rank takes part in each of them in every step."""

    glm: GlmConfig = field(default_factory=GlmConfig)
    """Blank infilling."""
    glm_vae: GlmVaeConfig = field(default_factory=GlmVaeConfig)
    """Blank infilling beside a latent vector of the text."""
    optimus: OptimusConfig = field(default_factory=OptimusConfig)
    """Texts written from a latent vector that an encoder of its own reads."""
    adavae: AdaVaeConfig = field(default_factory=AdaVaeConfig)
    """Texts written by the backbone from a latent vector that it has read itself."""
    causal: CausalConfig = field(default_factory=CausalConfig)
    """Texts written from left to right without a latent vector (GPT-2)."""
    lstm_vae: LstmVaeConfig = field(default_factory=LstmVaeConfig)
    """Texts written by an LSTM from a latent vector that another one has read."""

    def __post_init__(self) -> None:
        if not self.chosen:
            named = ", ".join(f"objectives.{name}.weight" for name in vars(self))
            raise ValueError(f"a run needs an objective: set one of {named} above 0.")

    @property
    def chosen(self) -> list[str]:
        """The names of those that the run learns, in the order in which a step takes them."""
        return [name for name, objective in vars(self).items() if objective.weight > 0]

    def undecided(self, *, is_evaluated: bool) -> str | None:
        """What would act at evaluations on held-out text and never will, in words; None: nothing.

        is_evaluated: whether there are any.
        """
        named = []
        for name in self.chosen:
            elbo = getattr(getattr(self, name), "elbo", None)
            if elbo is not None and (elbo.alarm.active_units or elbo.alarm.mi_ratio):
                named.append(f"objectives.{name}.elbo.alarm is never raised")
            if elbo is not None and elbo.aggressive.max_encoder_updates:
                named.append(f"objectives.{name}.elbo.aggressive never ends")
        if is_evaluated or not named:
            return None
        return (
            f"{' and '.join(named)}: it takes evaluations on held-out text. Set "
            "evaluation.every_steps above 0, and prepare the shards with --validation."
        )

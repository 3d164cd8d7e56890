"""Which objectives a run has, from its config: the one place that knows them all by name."""

from pretrain.config import ObjectivesConfig
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.loss import Objective


def objectives_of(config: ObjectivesConfig) -> list[Objective]:
    """The objectives of a run, in the order in which every step takes them."""
    return [GlmObjective(config.glm.blanks, weight=config.glm.weight)]

"""Texts with blanks, filled by the model as it stands, for TensorBoard's text tab."""

from collections.abc import Mapping

from torch import Tensor

from pretrain.filling.fill import fill
from pretrain.filling.reading import next_scores
from pretrain.models.backbone import Backbone
from pretrain.objectives.loss import ObjectiveModel
from pretrain.training.setup import Setup


class NextScores:
    """Asks a sharded model for the next token through the engine, in an objective's place.

    Whole rows each time, without a cache: every token gathers all parameters anyway, and the texts
    of an evaluation are few.
    """

    def loss_terms(self, model: ObjectiveModel, inputs: Mapping[str, Tensor]) -> Tensor:
        """Scores of the next token, fp32 (N, V)."""
        return next_scores(model.backbone, inputs)


def filled_texts(setup: Setup) -> str:
    """The config's evaluation texts, filled greedily, as a Markdown list.

    A collective: how many tokens a blank gets depends on the scores, so every rank goes by rank 0's
    and none waits for a forward that another does not make.
    """
    question = NextScores()

    def scores(inputs: Mapping[str, Tensor]) -> Tensor:
        return setup.world.broadcast_tensor(setup.engine.forward(question, inputs).contiguous())

    backbone = setup.engine.module.backbone
    assert isinstance(backbone, Backbone)
    filled = fill(
        backbone,
        setup.shards.tokenizer(),
        setup.config.evaluation.texts,
        blanks=setup.config.objectives.glm.blanks,
        scores=scores,
    )
    return "\n".join(f"- {one.text} → **{one.filled}**" for one in filled)

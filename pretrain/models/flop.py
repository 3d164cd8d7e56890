"""The arithmetic of a training step, counted: what utilisation and a plan of days divide by."""

from typing import NamedTuple

from pretrain.models.shape import BackboneShape


class Work(NamedTuple):
    """What the rows of an update hold, by which arithmetic is counted."""

    tokens: float  # positions that belong to a document
    visible_pairs: float  # pairs of query and visible key
    targets: float  # rows of logits
    source_tokens: float  # of the texts that an encoder reads
    source_pairs: float  # pairs of their tokens, each of which sees all of its text

    @property
    def read(self) -> "Work":
        """The texts as an encoder has them, who writes nothing."""
        return Work(self.source_tokens, self.source_pairs, 0.0, 0.0, 0.0)


def training_flop(
    shape: BackboneShape, *, vocab_size: int, tokens: float, visible_pairs: float, targets: float
) -> float:
    """FLOP of forward and backward over `tokens` positions with `targets` rows of logits.

    Matrix products alone, where they are done: non-padding positions, visible pairs, logits at
    targets. Backward counts twice the forward (Kaplan et al. 2020, section 2.1; PaLM, appendix B).
    visible_pairs: pairs of query and visible key, summed over all rows.
    """
    width = shape.hidden_size
    per_token = shape.num_layers * (4 * width + 2 * shape.feed_forward_size) * width
    per_pair = shape.num_layers * 2 * width
    forward = 2 * (tokens * per_token + visible_pairs * per_pair + targets * vocab_size * width)
    return 3 * forward


def backbone_flop(shape: BackboneShape, work: Work, *, vocab_size: int) -> float:
    """`training_flop` over the rows that are written."""
    return training_flop(
        shape,
        vocab_size=vocab_size,
        tokens=work.tokens,
        visible_pairs=work.visible_pairs,
        targets=work.targets,
    )

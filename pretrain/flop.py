"""The arithmetic of a training step, counted: what utilisation and a plan of days divide by."""

from pretrain.models.shape import BackboneShape


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

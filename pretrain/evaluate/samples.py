"""Texts with blanks, filled by the model as it stands, for TensorBoard's text tab."""

from pretrain.setup import Setup


def filled_texts(setup: Setup) -> str:
    """The config's evaluation texts, filled greedily, as a Markdown list. A collective: all ranks
    fill the same."""
    return ""

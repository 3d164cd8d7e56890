"""What of a model learns: the rest keeps the values that it begins with."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

Trains = Literal["all", "parts_and_norms", "parts"]


def freeze(model: "nn.Module", trains: Trains) -> None:
    """Leave learning to what objectives add to the backbone, with or without its LayerNorms.

    Told by names (backbone...., parts....), since under ZeRO-3 every parameter looks empty.
    """
    if trains == "all":
        return
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        is_norm = owner.endswith("norm") or name.rpartition(".")[2].startswith("norm_")
        learns = name.startswith("parts.") or (trains == "parts_and_norms" and is_norm)
        parameter.requires_grad_(learns)


def in_words(trained: int, frozen: int) -> str:
    """How many parameters learn, and which shares of the frozen and of all that is."""
    if not frozen:
        return f"{trained} parameters trained, 0 frozen"
    return (
        f"{trained} parameters trained, {frozen} frozen: {trained / frozen:.2%} of the frozen, "
        f"{trained / (trained + frozen):.2%} of all"
    )

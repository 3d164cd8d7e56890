"""What of a model learns, and from which update on: the rest keeps the values that it has.

    policy = TrainsPolicy("adapters", UnfreezingConfig(decoder_from=3666), shared_layers=8, ...)
    policy.learns("backbone.layers.9.attention_norm.weight")    # True: in the end it does
    policy.groups_at(100)                                       # the decoder is not among them

Told by names (backbone...., parts....), since under ZeRO-3 every parameter looks empty. Groups are
what starts and pauses together: the engine gives each an optimizer state of its own, so that a
parameter that has not begun has no moments, no decay and no count of updates.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

Trains = Literal["all", "adapters", "parts", "head_only", "k_layers", "lora", "prefix"]
# What reads a text, posterior, projections of z, what writes it.
Side = Literal["encoder", "head", "injection", "decoder"]
SIDES: tuple[Side, ...] = ("encoder", "head", "injection", "decoder")
BETWEEN: tuple[Side, ...] = ("head", "injection")


@dataclass(frozen=True, kw_only=True)
class UnfreezingConfig:
    """How much of the backbone learns, and when its halves begin to. Counted in applied updates."""

    layers: int = 2
    """With trains: k_layers, so many last layers of the backbone learn, its last LayerNorm, and
    what objectives add."""
    encoder_from: int = 0
    """First update of what encodes: an encoder, its adapters, and of the backbone those layers
    that encode (AdaVAE's pre_enc_iter)."""
    decoder_from: int = 0
    """First update of what decodes alone: its adapters and the layers that do not encode (AdaVAE: a
    sixth of the run). What lies between the halves (pooling, posterior, projections of z) learns
    from the first update on."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"unfreezing.layers must be at least 1, got {self.layers}.")
        for name in ("encoder_from", "decoder_from"):
            if getattr(self, name) < 0:
                raise ValueError(f"unfreezing.{name} must be 0 or more, got {getattr(self, name)}.")


class TrainsPolicy:
    """Which parameters learn, by name and update."""

    def __init__(
        self,
        trains: Trains,
        unfreezing: UnfreezingConfig,
        *,
        num_layers: int,
        shared_layers: int,
        alternates: bool = False,
    ) -> None:
        """num_layers: of the backbone. shared_layers: its first so many encode, too. alternates:
        whether single updates move one side alone (aggressive training of an encoder)."""
        self.trains, self.unfreezing = trains, unfreezing
        self.num_layers, self.shared_layers = num_layers, shared_layers
        starts = {unfreezing.encoder_from, unfreezing.decoder_from}
        self.has_groups = alternates or starts != {0}

    def learns(self, name: str) -> bool:
        """Whether a parameter ever learns."""
        if self.trains == "all":
            return True
        if name.startswith("parts."):
            return self.trains != "head_only" or self.side(name) in BETWEEN
        if self.trains == "k_layers":
            number = layer_of(name)
            first = self.num_layers - self.unfreezing.layers
            return name.startswith("backbone.final_norm") if number is None else number >= first
        owner, _, last = name.rpartition(".")
        if self.trains == "adapters":
            return owner.endswith("norm") or last.startswith("norm_")
        return self.trains in ("lora", "prefix") and last.startswith(f"{self.trains}_")

    def side(self, name: str) -> Side:
        """Which half a parameter belongs to; what both read is the encoder's, which comes first."""
        if name.startswith("parts."):
            module = name.split(".")[2]
            if module.startswith("encoder"):
                return "encoder"
            if module == "head":
                return "head"
            return "decoder" if module.startswith("decoder") else "injection"
        number = layer_of(name)
        if number is None:
            return "encoder" if self.shared_layers else "decoder"
        return "encoder" if number < self.shared_layers else "decoder"

    def group(self, name: str) -> str:
        """Parameters of a group start and pause together."""
        return self.side(name) if self.has_groups else "all"

    def groups_at(self, update: int, sides: Sequence[Side] = SIDES) -> frozenset[str]:
        """The groups that update number `update` (from 0) moves, of `sides` alone."""
        if not self.has_groups:
            return frozenset(("all",))
        begins = {
            "encoder": self.unfreezing.encoder_from,
            "decoder": self.unfreezing.decoder_from,
        }
        return frozenset(side for side in sides if begins.get(side, 0) <= update)

    def freeze(self, model: "nn.Module") -> None:
        """Leave learning to what ever learns."""
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.learns(name))


def layer_of(name: str) -> int | None:
    """The number of the backbone's layer that a parameter belongs to, None outside of them."""
    found = re.match(r"backbone\.layers\.(\d+)\.", name)
    return int(found[1]) if found else None


def in_words(trained: int, frozen: int) -> str:
    """How many parameters learn, and which shares of the frozen and of all that is."""
    if not frozen:
        return f"{trained} parameters trained, 0 frozen"
    return (
        f"{trained} parameters trained, {frozen} frozen: {trained / frozen:.2%} of the frozen, "
        f"{trained / (trained + frozen):.2%} of all"
    )

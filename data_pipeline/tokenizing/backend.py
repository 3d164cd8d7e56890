"""What a tokenizer library must offer to stand behind tokenizer.py."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EncodedTexts:
    """The ids of N texts end to end: text i owns ids[offsets_N1[i] : offsets_N1[i + 1]].

    starts, ends: the characters at which each token starts and ends, rising, counted in the texts
    laid end to end as well.
    """

    ids: NDArray[np.int32]
    offsets_N1: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Backend(Protocol):
    """One vocabulary: sentencepiece_backend.py and tokenizers_backend.py."""

    kind: str  # how settings.json names the library
    file_name: str  # under which `payload` is saved
    payload: bytes

    @property
    def num_pieces(self) -> int:
        """Ids of the model itself, without appended specials."""
        ...

    def declared(self, special: str) -> str | None:
        """The piece the model's own settings declare for a special."""
        ...

    def find(self, piece: str) -> int | None:
        """The id of a piece, or None."""
        ...

    def make_control(self, ids: list[int]) -> None:
        """From now on these ids do not come out of text."""
        ...

    def encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """The ids of each text."""
        ...

    def encode_with_offsets(self, texts: list[str]) -> EncodedTexts:
        """The ids of all texts, and the characters at which each token starts and ends."""
        ...

    def encode_continuation(self, text: str) -> NDArray[np.int32]:
        """The ids of a segment in the middle of a text: no leading space is invented."""
        ...

    def decode(self, ids: NDArray[np.int32], *, at_start: bool) -> str:
        """The text of ordinary ids. at_start: drop the space the model invented in front."""
        ...

    def piece(self, token: int) -> str:
        """The token as one printable string."""
        ...

"""A tokenizer.json (Rust `tokenizers` library) behind the few calls tokenizer.py needs.

Text never turns into a control id: the library is told to read special pieces in text as text, and
a vocabulary whose ordinary words still give such an id is refused by tokenizer.py.
"""

import json
from collections.abc import Iterable
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer

from data_pipeline import ragged
from data_pipeline.tokenizing.backend import EncodedTexts


class TokenizersBackend:
    """One tokenizer held in memory. Raises ValueError if the JSON is no tokenizer."""

    kind = "tokenizers"
    file_name = "tokenizer.json"

    def __init__(self, payload: bytes, name: str, declared: dict[str, str] | None = None) -> None:
        """declared: pieces the folder's settings name for specials, as {"mask": "<mask>"}."""
        self._declared = declared or {}
        try:
            self._tokenizer = Tokenizer.from_str(payload.decode("utf-8"))
        except Exception as error:  # the Rust library raises bare Exception
            raise ValueError(f"{name} is no tokenizer.json ({error}).") from error
        refuse_shared_ids(
            [(t["content"], t["id"]) for t in json.loads(payload).get("added_tokens") or []], name
        )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.payload = payload
        self._vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        ordinary = set(self._tokenizer.get_vocab(with_added_tokens=False)) - {
            t.content for t in self._tokenizer.get_added_tokens_decoder().values() if t.special
        }
        if not ordinary:
            raise ValueError(
                f"{name} holds {len(self._vocabulary)} special pieces and no word: its vocabulary "
                "was not read. Check that the vocabulary files lie in the folder under the names "
                "its tokenizer class expects."
            )

    @property
    def num_pieces(self) -> int:
        return max(self._vocabulary.values()) + 1

    def declared(self, special: str) -> str | None:
        """The piece the folder's settings declare for a special."""
        return self._declared.get(special)

    def find(self, piece: str) -> int | None:
        """The id of a piece, or None."""
        return self._vocabulary.get(piece)

    def make_control(self, ids: list[int]) -> None:
        """From now on the library does not look for these pieces in text."""
        names = {i: piece for piece, i in self._vocabulary.items()}
        self._tokenizer.add_special_tokens(
            [AddedToken(names[i], special=True, normalized=False) for i in ids]
        )
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """The ids of each text."""
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(e.ids, np.int32) for e in batch]

    def encode_with_offsets(self, texts: list[str]) -> EncodedTexts:
        """The ids of all texts, and the characters at which each token starts and ends."""
        batch = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        offsets_N1 = ragged.offsets([len(e.ids) for e in batch])
        ids = np.fromiter(chain.from_iterable(e.ids for e in batch), np.int32, offsets_N1[-1])
        spans = np.array(list(chain.from_iterable(e.offsets for e in batch)), np.int64)
        first = np.repeat(ragged.offsets([len(t) for t in texts])[:-1], np.diff(offsets_N1))
        starts, ends = spans.reshape(-1, 2).T
        return EncodedTexts(ids, offsets_N1, starts + first, ends + first)

    def encode_continuation(self, text: str) -> NDArray[np.int32]:
        """The ids of a segment in the middle of a text: no leading space is invented."""
        ids = self._continuation_tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(ids, np.int32)

    def decode(self, ids: NDArray[np.int32], *, at_start: bool) -> str:
        """The text of ordinary ids; in the middle of a text with the space in front of it."""
        if at_start or not len(ids):
            return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        # Decoders drop a leading space: decode behind an ordinary token and take its text off.
        before = self._tokenizer.decode(self._anchor)
        text = self._tokenizer.decode([*self._anchor, *ids.tolist()], skip_special_tokens=False)
        return text.removeprefix(before)

    def piece(self, token: int) -> str:
        """The token as one printable string."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return f"<{token}>"
        return piece.replace("\u0120", "\u2581").replace("\u010a", "\\n").replace("\n", "\\n")

    @cached_property
    def _anchor(self) -> list[int]:
        return self._tokenizer.encode("a", add_special_tokens=False).ids

    @cached_property
    def _continuation_tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(
            json.dumps(_without_prefix(json.loads(self._tokenizer.to_str())))
        )
        tokenizer.encode_special_tokens = True
        return tokenizer


def refuse_shared_ids(added: Iterable[tuple[str, int]], name: str) -> None:
    """Raise ValueError where two added pieces have one id: the library would move one, in silence.

    added: pieces and their ids, as a file of the tokenizer has them.
    """
    owner: dict[int, str] = {}
    for piece, number in added:
        if owner.setdefault(number, piece) != piece:
            raise ValueError(
                f"{name} gives {owner[number]!r} and {piece!r} the same id {number}. Pieces must "
                "differ (in GLM-10B-Chinese eop and gmask share one by mistake): give the second "
                "an id of its own after the last."
            )


def _without_prefix(node: object) -> object:
    """A tokenizer's JSON with every setting that puts a space before the text switched off."""
    if isinstance(node, list):
        kept = [n for n in node if not (isinstance(n, dict) and n.get("type") == "Prepend")]
        return [_without_prefix(n) for n in kept]
    if not isinstance(node, dict):
        return node
    off = {"add_prefix_space": False, "prepend_scheme": "never"}
    result = {k: off.get(k, _without_prefix(v)) for k, v in node.items() if k != "vocab"}
    if "vocab" in node:
        result["vocab"] = node["vocab"]
    normalizer = result.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "Prepend":
        result["normalizer"] = None
    return result

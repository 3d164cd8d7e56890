"""Text to ids and back, over a sentencepiece model or a transformers tokenizer from a local folder.

The promise: no text ever yields a control id (the unknown piece excepted, where a model has no byte
pieces), everything opens offline, and the eleven specials of special.py exist in every vocabulary.

    tokenizer = open_tokenizer("gpt2/", {"pad": "eos"})
    tokenizer.decode(tokenizer.encode(["a [MASK] in the text"])[0])    # the same text
    tokenizer.decode([tokenizer.special.mask])                         # "[MASK]", the control id
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from data_pipeline.tokenizing.backend import Backend, EncodedTexts
from data_pipeline.tokenizing.special import (
    KNOWN_PIECES,
    SPECIAL_TEXT,
    SPECIALS,
    SpecialIds,
    place_specials,
)

__all__ = ["SPECIALS", "SPECIAL_TEXT", "SETTINGS_FILE", "SpecialIds", "Tokenizer", "open_tokenizer"]

SETTINGS_FILE = "settings.json"
_SETTINGS_FORMAT = 1


class Tokenizer:
    """A vocabulary with all specials in place. Build one with open_tokenizer."""

    def __init__(self, backend: Backend, aliases: Mapping[str, str]) -> None:
        self._backend = backend
        self.aliases: dict[str, str] = dict(aliases)
        self.special: SpecialIds
        self.vocab_size: int  # ids in use, appended specials included
        self.special, self.vocab_size = place_specials(self._find, backend.num_pieces, aliases)
        self.fingerprint = self._fingerprint()
        by_id: dict[int, str] = {}
        for name, token in self.special.by_name().items():
            if name not in self.aliases:
                by_id[token] = SPECIAL_TEXT[name]
        self._special_text = by_id
        self.is_control_V = np.zeros(self.vocab_size, np.bool_)  # True: no text gives this id
        self.is_control_V[list(by_id)] = True
        self.is_control_V[self.special.unk] = self.special.unk >= backend.num_pieces
        backend.make_control([i for i in by_id if i < backend.num_pieces])
        self._refuse_specials_in_text()

    @property
    def num_pieces(self) -> int:
        """Ids of the model itself; the specials it lacks follow."""
        return self._backend.num_pieces

    def encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """The ids of each text; never a control id, whatever the text says."""
        return [self._checked(ids) for ids in self._backend.encode(texts)]

    def encode_with_offsets(self, texts: list[str]) -> EncodedTexts:
        """The ids of all texts, and the characters at which each token starts and ends."""
        encoded = self._backend.encode_with_offsets(texts)
        self._checked(encoded.ids)
        return encoded

    def encode_continuation(self, text: str) -> NDArray[np.int32]:
        """The ids of a segment in the middle of a text: no leading space is invented."""
        return self._checked(self._backend.encode_continuation(text))

    def decode(self, ids: ArrayLike) -> str:
        """The text of ids; specials are shown by name, as [MASK] or <sop>.

        Raises ValueError for an id outside the vocabulary.
        """
        at_start = True
        parts: list[str] = []
        for special, stretch in self._stretches(self._in_vocabulary(ids)):
            if special is not None:
                parts.append(special)
                continue
            parts.append(self._backend.decode(stretch, at_start=at_start))
            at_start = False
        return "".join(parts)

    def pieces(self, ids: ArrayLike) -> list[str]:
        """One printable string per token; a leading space is shown as U+2581, specials by name."""
        tokens = self._in_vocabulary(ids).tolist()
        return [self._special_text.get(i) or self._backend.piece(i) for i in tokens]

    def save(self, folder: str | Path) -> None:
        """Write the model and settings.json (ids, aliases, fingerprint) into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self._backend.file_name).write_bytes(self._backend.payload)
        settings = {
            "format": _SETTINGS_FORMAT,
            "kind": self._backend.kind,
            "vocab_size": self.vocab_size,
            "special": self.special.by_name(),
            "aliases": self.aliases,
            "pieces": {n: self._backend.declared(n) for n in SPECIALS if self._backend.declared(n)},
            "fingerprint": self.fingerprint,
        }
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (folder / SETTINGS_FILE).write_text(text, encoding="utf-8")

    def _find(self, special: str) -> int | None:
        names = (self._backend.declared(special), *KNOWN_PIECES[special])
        found = (self._backend.find(name) for name in names if name)
        return next((i for i in found if i is not None), None)

    def _fingerprint(self) -> str:
        table = json.dumps([self.special.by_name(), self.aliases, self.vocab_size], sort_keys=True)
        return xxhash.xxh3_128_hexdigest(table.encode() + b"\0" + self._backend.payload)

    def _stretches(self, ids: NDArray[np.int64]) -> Iterator[tuple[str | None, NDArray[np.int32]]]:
        """Ids cut into specials, each alone with its name, and runs of ordinary tokens."""
        special = np.isin(ids, list(self._special_text))
        edges = np.flatnonzero(special | np.r_[False, special[:-1]]) if len(ids) else []
        for run in np.split(ids.astype(np.int32), edges):
            if len(run):
                yield self._special_text.get(int(run[0])), run

    def _in_vocabulary(self, ids: ArrayLike) -> NDArray[np.int64]:
        tokens = np.asarray(ids, dtype=np.int64).reshape(-1)
        bad = tokens[(tokens < 0) | (tokens >= self.vocab_size)]
        if len(bad):
            raise ValueError(
                f"token id {bad[0]} lies outside the vocabulary [0, {self.vocab_size})."
            )
        return tokens

    def _checked(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        assert not self.is_control_V[ids].any(), "a control id came out of text"
        return ids

    def _refuse_specials_in_text(self) -> None:
        """Raise ValueError if the ordinary vocabulary spells out a control id."""
        names = {text for texts in KNOWN_PIECES.values() for text in texts}
        names |= {n for n in map(self._backend.declared, SPECIALS) if n}
        for name in sorted(names):
            if self.is_control_V[self._backend.encode([f"a {name} b"])[0]].any():
                raise ValueError(
                    f"this tokenizer turns the text {name!r} into a control id even when told to "
                    "read it as text, so a document could forge a mask. Take the piece out of its "
                    "ordinary vocabulary (what it lacks is appended), or use another tokenizer."
                )


def open_tokenizer(path: str | Path, aliases: Mapping[str, str] | None = None) -> Tokenizer:
    """Open a sentencepiece file, a transformers folder, or a folder written by Tokenizer.save.

    aliases: names that share an id, as {"pad": "eos"}; a saved folder brings its own.
    Nothing is downloaded. Raises ValueError naming the path if it is none of the three.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(
            f"tokenizer {path} does not exist. Give a sentencepiece .model file or a local folder "
            "of a transformers tokenizer; make one with: python -m data_pipeline train-tokenizer."
        )
    if path.is_dir() and (path / SETTINGS_FILE).exists():
        return _open_saved(path, aliases)
    if path.is_dir():
        from data_pipeline.tokenizing.transformers_folder import open_transformers_folder

        return Tokenizer(open_transformers_folder(path), aliases or {})
    return Tokenizer(_open_file(path), aliases or {})


def _open_file(path: Path) -> Backend:
    from data_pipeline.tokenizing.sentencepiece_backend import SentencePieceBackend

    payload = path.read_bytes()
    if path.suffix == ".json":
        from data_pipeline.tokenizing.tokenizers_backend import TokenizersBackend

        return TokenizersBackend(payload, str(path))
    return SentencePieceBackend(payload, str(path))


def _open_saved(folder: Path, aliases: Mapping[str, str] | None) -> Tokenizer:
    from data_pipeline.tokenizing.sentencepiece_backend import SentencePieceBackend
    from data_pipeline.tokenizing.tokenizers_backend import TokenizersBackend

    path = folder / SETTINGS_FILE
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        kind, saved_aliases = settings["kind"], dict(settings["aliases"])
        version, fingerprint, declared = (
            settings["format"],
            settings["fingerprint"],
            dict(settings["pieces"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}). Prepare the data again.") from error
    if version != _SETTINGS_FORMAT:
        raise ValueError(
            f"{path} was written by format {version}, this version reads {_SETTINGS_FORMAT}."
        )
    if aliases is not None and dict(aliases) != saved_aliases:
        raise ValueError(
            f"{path} was saved with the aliases {saved_aliases}, asked for are {dict(aliases)}. "
            "Leave --alias out, or open the original tokenizer."
        )
    if kind == SentencePieceBackend.kind:
        model = folder / SentencePieceBackend.file_name
        backend: Backend = SentencePieceBackend(model.read_bytes(), str(model))
    elif kind == TokenizersBackend.kind:
        model = folder / TokenizersBackend.file_name
        backend = TokenizersBackend(model.read_bytes(), str(model), declared)
    else:
        raise ValueError(f"{path}: kind must be sentencepiece or tokenizers, got {kind!r}.")
    tokenizer = Tokenizer(backend, saved_aliases)
    if tokenizer.fingerprint != fingerprint:
        raise ValueError(
            f"{model} is not the tokenizer that {path} was written for: its fingerprint is "
            f"{tokenizer.fingerprint}, not {fingerprint}. Put the original file back."
        )
    return tokenizer

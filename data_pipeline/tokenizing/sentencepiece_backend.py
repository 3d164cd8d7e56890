"""A sentencepiece model behind the calls of backend.py; text never turns into a control id.

A piece that stands for a special is made a control piece when the model is opened, since the
library takes user-defined pieces such as "[MASK]" out of running text. Offsets are exact: for
models that change no character (those of `train-tokenizer`) from the bytes of the pieces, else from
the library.
"""

import re
from functools import cached_property
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from sentencepiece import sentencepiece_model_pb2, sentencepiece_pb2

from data_pipeline import ragged
from data_pipeline.tokenizing.backend import EncodedTexts

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how the library writes a space inside pieces
_UNKNOWN_TEXT = " \N{DOUBLE QUESTION MARK} "
# Their classes are made when the modules are imported, so no checker sees them.
_model_protos: Any = sentencepiece_model_pb2
_text_protos: Any = sentencepiece_pb2
_PieceType = _model_protos.ModelProto.SentencePiece

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]  # starts, ends, in characters


class SentencePieceBackend:
    """One model held in memory. Raises ValueError if the bytes are no sentencepiece model."""

    kind = "sentencepiece"
    file_name = "tokenizer.model"

    def __init__(self, model: bytes, name: str) -> None:
        self.payload = model
        self._proto = _model_protos.ModelProto()
        try:
            self._proto.ParseFromString(model)
        except Exception as error:  # protobuf's DecodeError has no stable home between versions
            raise ValueError(f"{name} is no sentencepiece model ({error}).") from error
        if not self._proto.pieces:
            raise ValueError(f"{name} is no sentencepiece model: it holds no pieces.")
        self._id_of = {p.piece: i for i, p in enumerate(self._proto.pieces)}
        if not all(isinstance(piece, str) for piece in self._id_of):
            raise ValueError(f"{name} is no usable sentencepiece model: a piece is not UTF-8.")
        self._processor = _processor(self._proto, name)

    @property
    def num_pieces(self) -> int:
        return len(self._proto.pieces)

    def declared(self, special: str) -> str | None:
        """The piece the model itself declares for a special: only its unknown piece."""
        unknown = (p.piece for p in self._proto.pieces if p.type == _PieceType.UNKNOWN)
        return next(unknown, None) if special == "unk" else None

    def find(self, piece: str) -> int | None:
        """The id of a piece, or None."""
        return self._id_of.get(piece)

    def make_control(self, ids: list[int]) -> None:
        """From now on these ids never come out of text."""
        for i in ids:
            if self._proto.pieces[i].type != _PieceType.UNKNOWN:
                self._proto.pieces[i].type = _PieceType.CONTROL
        self._processor = _processor(self._proto, "the tokenizer")

    def encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """The ids of each text."""
        return self._processor.encode(texts, return_type="numpy")

    def encode_with_offsets(self, texts: list[str]) -> EncodedTexts:
        """The ids of all texts, and the characters at which each token starts and ends."""
        encoded = self._offsets_by_length(texts) if self._changes_no_character else None
        return encoded or self._offsets_by_library(texts)

    def encode_continuation(self, text: str) -> NDArray[np.int32]:
        """The ids of a segment in the middle of a text: no leading space is invented."""
        trims = self._proto.normalizer_spec.remove_extra_whitespaces
        # A model that trims would lose the space in front; its own invented space stands for it.
        own_space = trims and text[:1].isspace()
        processor = self._processor if own_space else self._continuation_processor
        return processor.encode(text, return_type="numpy")

    def decode(self, ids: NDArray[np.int32], *, at_start: bool) -> str:
        """The text of ordinary ids. at_start: drop the space the model invented in front."""
        raw = b"".join([self._bytes_of[i] for i in ids.tolist()])
        text = raw.decode("utf-8", errors="replace")
        invented = at_start and self._proto.normalizer_spec.add_dummy_prefix
        return text.removeprefix(" ") if invented else text

    def piece(self, token: int) -> str:
        """The token as one printable string."""
        return self._proto.pieces[token].piece.replace("\n", "\\n").replace("\t", "\\t")

    @cached_property
    def _bytes_of(self) -> list[bytes]:
        return [_piece_bytes(p) for p in self._proto.pieces]

    @cached_property
    def _byte_lengths(self) -> NDArray[np.int64]:
        return np.array([len(b) for b in self._bytes_of], np.int64)

    @cached_property
    def _is_byte(self) -> NDArray[np.bool_]:
        return np.array([p.type == _PieceType.BYTE for p in self._proto.pieces])

    @cached_property
    def _changes_no_character(self) -> bool:
        spec = self._proto.normalizer_spec
        return spec.name == "identity" and not spec.remove_extra_whitespaces

    @cached_property
    def _continuation_processor(self) -> sentencepiece.SentencePieceProcessor:
        proto = _model_protos.ModelProto()
        proto.CopyFrom(self._proto)
        proto.normalizer_spec.add_dummy_prefix = False
        return _processor(proto, "the tokenizer")

    def _offsets_by_length(self, texts: list[str]) -> EncodedTexts | None:
        """Offsets from the lengths of pieces, None where they do not add up to the texts."""
        ids = self.encode(texts)
        offsets_N1 = ragged.offsets([len(i) for i in ids])
        joined = "".join(texts)
        if _SPACE in joined or not len(joined):
            return None
        flat = np.concatenate(ids)
        prefix = int(self._proto.normalizer_spec.add_dummy_prefix)
        byte_ends = ragged.offsets(self._byte_lengths[flat])
        # An invented space stands in front of each text that has tokens.
        invented_N = np.cumsum((np.diff(offsets_N1) > 0) * prefix)
        if joined.isascii():
            sizes = [len(t) for t in texts]
        else:
            sizes = [len(t.encode()) for t in texts]
        if not np.array_equal(byte_ends[offsets_N1[1:]] - invented_N, np.cumsum(sizes)):
            return None
        owner = np.repeat(np.arange(len(texts)), np.diff(offsets_N1))
        first_byte = ragged.offsets(sizes)[owner]
        ends = np.maximum(byte_ends[1:] - invented_N[owner], first_byte)
        starts = np.maximum(byte_ends[:-1] - invented_N[owner], first_byte)
        return EncodedTexts(flat, offsets_N1, *_in_characters(joined, starts, ends))

    def _offsets_by_library(self, texts: list[str]) -> EncodedTexts:
        """Offsets as the library itself gives them, ten times slower."""
        encoded = [np.zeros((0, 3), np.int64)]
        for serialized in self._processor.encode(texts, return_type="serialized_proto"):
            pieces = _text_protos.SentencePieceText.FromString(serialized).pieces
            encoded.append(
                np.array([(p.id, p.begin, p.end) for p in pieces], np.int64).reshape(-1, 3)
            )
        offsets_N1 = ragged.offsets([len(e) for e in encoded[1:]])
        first_byte = ragged.offsets([len(t.encode()) for t in texts])[:-1]
        ids, starts, ends = np.concatenate(encoded).T
        moved = np.repeat(first_byte, np.diff(offsets_N1))
        starts, ends = _in_characters("".join(texts), starts + moved, ends + moved)
        # To all bytes of a character but the last the library gives no width.
        ends = np.where(self._is_byte[ids], starts + 1, ends)
        return EncodedTexts(ids.astype(np.int32), offsets_N1, starts, ends)


def _processor(proto: Any, name: str) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    except RuntimeError as error:
        raise ValueError(f"{name} is no usable sentencepiece model ({error}).") from error


def _piece_bytes(piece: Any) -> bytes:
    if piece.type == _PieceType.UNKNOWN:
        return _UNKNOWN_TEXT.encode()
    if piece.type == _PieceType.BYTE:
        value = re.fullmatch(r"<0x([0-9A-F]{2})>", piece.piece)
        return bytes([int(value[1], 16)]) if value else piece.piece.encode()
    return piece.piece.replace(_SPACE, " ").encode()


def _in_characters(text: str, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Spans:
    """Bytes of a text's UTF-8 form as characters: starts rounded down, ends up."""
    if text.isascii():
        return starts, ends
    code = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (code > 0x7F).astype(np.int64) + (code > 0x7FF) + (code > 0xFFFF)
    bounds = ragged.offsets(sizes)  # byte at which each character starts
    return np.searchsorted(bounds, starts, side="right") - 1, np.searchsorted(bounds, ends)

"""Texts written from latent vectors, many at once, one token of each at a time.

    sheet = blank_sheet(run.whole_transform(), max_tokens=30)
    reader = CachedReader(run.objective.decoder(run.model, z_NZ[:, None]))
    written = write(sheet, reader, vocabulary, WriteSettings())     # ids of N texts

Ids and positions of a row are those that the transform of training gives a text of that length;
what is written takes the place of its tokens as it comes. So all rows are at the same column,
whatever model writes them:

    column      0    1       2    3    4          GLM-VAE: CLS [gMASK] | sop, Optimus: CLS
    GLM-VAE    CLS [gMASK]  sop  x1   x2          begin = 2
    Optimus    CLS   x1     x2                    begin = 0

A text has at least one token and never a special one; eos ends it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from data_pipeline.hashing import mix_ints
from data_pipeline.memory import MemorySplit
from data_pipeline.protocols import Transform
from data_pipeline.tokenizing.tokenizer import Tokenizer
from pretrain.filling.sampling import FillSettings, choose_tokens
from pretrain.latent.rows import TextRows
from pretrain.models.backbone import check_positions
from pretrain.objectives.decoding import Decoder


@dataclass(frozen=True, kw_only=True)
class WriteSettings:
    """How texts are written from latent vectors."""

    strategy: Literal["greedy", "sample"] = "greedy"
    """The most probable token each time, or one drawn at random."""
    temperature: float = 1.0
    """Scores are divided by it before drawing; below 1 is bolder, above 1 more varied."""
    top_k: int = 0
    """Draw among this many most probable tokens only; 0 is all."""
    top_p: float = 1.0
    """Draw among the fewest most probable tokens that together reach this probability; 1 is all."""
    max_tokens: int = 64
    """Longest text in tokens; one that is cut there is marked with an ellipsis."""
    batch_texts: int = 32
    """Texts that go through the model together. It changes no result."""
    seed: int = 0
    """Seed of the draws; each text has a stream of its own, whatever else is in its batch."""

    def __post_init__(self) -> None:
        chosen = (self.temperature, self.top_k, self.top_p)
        if self.strategy == "greedy" and chosen != (1.0, 0, 1.0):
            raise ValueError(
                "temperature, top_k and top_p have no effect with --strategy greedy. Add "
                "--strategy sample."
            )
        self.choice()

    def choice(self) -> FillSettings:
        """The same as choose_tokens reads it; ValueError for a value out of range."""
        return FillSettings(**vars(self))


class Written(NamedTuple):
    """A text from a latent vector."""

    ids: list[int]
    nats: float  # -log p of its tokens and, where it is complete, of its end
    complete: bool  # whether the model ended it; else it was cut at max_tokens

    def text(self, tokenizer: Tokenizer) -> str:
        """Its words; an ellipsis where it was cut."""
        return tokenizer.decode(self.ids).strip() + ("" if self.complete else " ...")


@dataclass
class Sheet:
    """Rows that are being written: what stands in them so far, and where all else will stand."""

    ids_NT: Tensor
    positions_2T: Tensor
    hi_T: Tensor
    begin: int  # the column that the first token is read from

    def rows(self, number: int) -> "Sheet":
        """So many rows with nothing written."""
        ids_NT = self.ids_NT[:1].repeat(number, 1)
        return Sheet(ids_NT, self.positions_2T, self.hi_T, self.begin)

    def columns(self, first: int, stop: int) -> dict[str, Tensor]:
        """What a decoder reads of columns first .. stop - 1: ids, lo, hi, document (N, T),
        positions (N, 2, T)."""
        ids_NT = self.ids_NT[:, first:stop]
        hi_NT = self.hi_T[first:stop].expand_as(ids_NT)
        positions = self.positions_2T[:, first:stop].expand(len(ids_NT), -1, -1)
        nothing = torch.zeros_like(ids_NT)
        return {
            "ids": ids_NT,
            "positions": positions,
            "lo": nothing,
            "hi": hi_NT,
            "document": nothing,
        }

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest text."""
        return self.ids_NT.shape[1] - self.begin - 1


def blank_sheet(transform: Transform, *, max_tokens: int) -> Sheet:
    """A row for a text of up to `max_tokens` tokens, of a transform that writes whole texts."""
    split = MemorySplit.from_documents([np.zeros(max_tokens, np.int32)])
    if transform.reads_encoder:
        split = replace(split, encoder=MemorySplit.from_documents([[0]]))
    rows = TextRows(split, transform, seed=0, source_tokens=max_tokens + 2)
    row = rows.batch(np.zeros(1, np.int64))
    begin = int(row.weights[0].nonzero()[0])
    stop = begin + max_tokens + 1
    assert row.ids.shape[1] >= stop
    return Sheet(row.ids[:, :stop], row.positions[0, :, :stop], row.hi[0, :stop], begin)


class Reader(Protocol):
    """Gives the scores of the next token of every row of a sheet."""

    def __call__(self, sheet: Sheet, first: int, stop: int, rows: Sequence[int] | None) -> Tensor:
        """Scores fp32 (N, V) of what follows column stop - 1; columns from `first` on are new.

        rows: which rows of the call before are still written; None: all.
        """
        ...


class CachedReader:
    """Reads every token once, by a decoder that knows what it has read."""

    def __init__(self, decoder: Decoder, device: torch.device | str = "cpu") -> None:
        """device: of the decoder."""
        self.decoder, self.device = decoder, device

    def __call__(self, sheet: Sheet, first: int, stop: int, rows: Sequence[int] | None) -> Tensor:
        if rows is not None:
            self.decoder.keep(torch.tensor(rows, device=self.device))
        columns = sheet.columns(first, stop)
        return self.decoder.next_scores({n: t.to(self.device) for n, t in columns.items()})


class AnewReader:
    """Asks `scores(columns, z)` with whole rows each time, where weights are sharded over ranks."""

    def __init__(self, scores: Callable[[Mapping[str, Tensor]], Tensor], z_NZ: Tensor) -> None:
        self._scores, self._z_NZ = scores, z_NZ

    def __call__(self, sheet: Sheet, first: int, stop: int, rows: Sequence[int] | None) -> Tensor:
        if rows is not None:
            self._z_NZ = self._z_NZ[list(rows)]
        return self._scores({**sheet.columns(0, stop), "z": self._z_NZ})


class Vocabulary(NamedTuple):
    """Which ids may be written, and which one ends a text."""

    usable_V: Tensor  # bool, for every row of the token table
    eos: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, num_rows: int) -> "Vocabulary":
        """Words alone: neither special ids nor the padding of a table of `num_rows` rows."""
        usable_V = torch.arange(num_rows) < tokenizer.vocab_size
        usable_V[list(tokenizer.special.by_name().values())] = False
        return cls(usable_V, tokenizer.special.eos)


@torch.no_grad()
def write(
    sheet: Sheet,
    reader: Reader,
    vocabulary: Vocabulary,
    settings: WriteSettings,
    generators: Sequence[torch.Generator],
) -> list[Written]:
    """One text for each generator; the reader knows the latent vector of each."""
    choice, number = settings.choice(), len(generators)
    sheet = sheet.rows(number)
    texts: list[Written] = [Written([], 0.0, False)] * number
    open_rows, kept = list(range(number)), None
    first, stop = 0, sheet.begin + 1
    while open_rows:
        scores_NV = reader(sheet, first, stop, kept)
        allowed_V = vocabulary.usable_V.clone()
        allowed_V[vocabulary.eos] = stop > sheet.begin + 1
        chosen_N = choose_tokens(
            scores_NV.cpu(),
            allowed_V.expand(len(open_rows), -1),
            choice,
            [generators[row] for row in open_rows],
        )
        nats_N = -scores_NV.cpu().log_softmax(-1).gather(1, chosen_N[:, None])[:, 0]
        for row, token, nats in zip(open_rows, chosen_N.tolist(), nats_N.tolist(), strict=True):
            ids, before, _ = texts[row]
            ends = token == vocabulary.eos
            texts[row] = Written(ids if ends else [*ids, token], before + nats, ends)
        is_open = [
            n
            for n, row in enumerate(open_rows)
            if not texts[row].complete and len(texts[row].ids) < sheet.max_tokens
        ]
        kept = None if len(is_open) == len(open_rows) else is_open
        open_rows = [open_rows[n] for n in is_open]
        if open_rows:
            sheet.ids_NT = sheet.ids_NT[is_open]
            sheet.ids_NT[:, stop] = chosen_N[is_open].int()
        first, stop = stop, stop + 1
    return texts


def generators_of(
    seed: int, numbers: Sequence[int], draws: Literal["tokens", "vectors"] = "tokens"
) -> list[torch.Generator]:
    """A stream of draws for each text, by its number.

    draws: what for; words must not be drawn with the numbers that their z was drawn with.
    """
    purpose = ("tokens", "vectors").index(draws)
    return [
        torch.Generator().manual_seed(mix_ints(seed, purpose, number) >> 1) for number in numbers
    ]


def check_length(max_tokens: int, sheet: Sheet, table_rows: int) -> None:
    """ValueError where a position table of `table_rows` rows does not reach so many tokens."""
    try:
        check_positions(sheet.positions_2T, table_rows)
    except ValueError:
        raise ValueError(
            f"--max_tokens {max_tokens}: the position table of this model has {table_rows} rows. "
            "Lower it."
        ) from None

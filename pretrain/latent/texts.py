"""Texts that a user names, as documents of a model: from the command line, a file, or shards.

    texts = given_texts(run, ["The sea is calm."], "--text")
    texts.rows(run.transform()).batch(np.array([0]))

What cannot be used is a ValueError that says which text it is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from numpy.typing import NDArray

from data_pipeline.memory import MemorySplit
from data_pipeline.protocols import Split, Transform
from data_pipeline.storage.shards import open_shards
from data_pipeline.tokenizing.tokenizer import Tokenizer
from pretrain.latent.opened import LatentRun
from pretrain.latent.rows import TextRows


@dataclass(frozen=True)
class Texts:
    """Documents of a run's vocabulary."""

    split: Split
    source: str  # where they come from, for messages
    seed: int
    source_tokens: int
    written: Sequence[str] | None = None  # as they were given; None: in shards
    num_texts: int | None = None  # the first so many; None: all

    def rows(self, transform: Transform) -> TextRows:
        """A row for each of them."""
        return TextRows(
            self.split,
            transform,
            seed=self.seed,
            source_tokens=self.source_tokens,
            num_documents=self.num_texts,
        )


def given_texts(
    run: LatentRun, texts: Sequence[str], source: str, *, places: Sequence[int] = (), seed: int = 0
) -> Texts:
    """Texts as they stand. source: what named them; places: the line of each, where it is a file.

    Raises ValueError for an empty text, or one longer than the model reads.
    """
    # White space alone is a token in some vocabularies, and no text.
    encoded = run.tokenizer.encode([text if text.strip() else "" for text in texts])
    names = [
        f"{source}, line {places[number]}" if places else f"{source} {text[:40]!r}"
        for number, text in enumerate(texts)
    ]
    _check(encoded, names, run.source_tokens, "this model", "data.packing.source_tokens")
    split = MemorySplit.from_documents(encoded, sentence_ends=[[len(ids)] for ids in encoded])
    if run.encoder_tokenizer is not None:
        read = run.encoder_tokenizer.encode(list(texts))
        _check(read, names, run.encoder_tokens, "its encoder", "max_positions of the encoder")
        split = replace(split, encoder=MemorySplit.from_documents(read))
    return Texts(split, source, seed, run.source_tokens, list(texts))


def _check(
    encoded: Sequence[NDArray], names: Sequence[str], most_tokens: int, reader: str, setting: str
) -> None:
    """ValueError for the first text that is empty or too long; names: how to call each."""
    for name, ids in zip(names, encoded, strict=True):
        if not len(ids):
            raise ValueError(f"{name}: there is no text to read. Give some words.")
        if len(ids) + 2 > most_tokens:
            raise ValueError(
                f"{name} has {len(ids) + 2} tokens with its beginning and end, and {reader} reads "
                f"at most {most_tokens}. Shorten it, or train with a larger {setting}."
            )


def read_lines(path: Path, source: str) -> tuple[list[str], list[int]]:
    """The lines of a UTF-8 file that are not empty, and their numbers from 1.

    source: the flag that named the file. Raises ValueError where it cannot be read or is empty.
    """
    try:
        # Where `prepare` ends lines; splitlines() would end them at U+2028 and its like, too.
        lines = re.split("\r\n|[\r\n]", path.read_bytes().decode().removeprefix("\ufeff"))
    except OSError as error:
        raise ValueError(
            f"{source} {path} cannot be read: {error.strerror}. Name a file of texts, one a line."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source} {path} is not UTF-8 at byte {error.start} (from 0). Convert it to UTF-8."
        ) from None
    kept = [(line.strip(), number) for number, line in enumerate(lines, 1) if line.strip()]
    if not kept:
        raise ValueError(f"{source} {path} holds no text. Write one a line.")
    return [text for text, _ in kept], [number for _, number in kept]


def file_texts(
    run: LatentRun, path: Path, source: str, *, num_texts: int | None = None, seed: int = 0
) -> Texts:
    """The lines of a file; see read_lines and given_texts."""
    texts, places = read_lines(path, source)
    most = len(texts) if num_texts is None else num_texts
    return given_texts(run, texts[:most], f"{source} {path}", places=places[:most], seed=seed)


def shard_texts(
    run: LatentRun, folder: Path, split: str, *, num_texts: int | None = None, seed: int = 0
) -> Texts:
    """A split of prepared shards.

    Raises ValueError where the tokenizer of the shards is not the run's, or the split is empty.
    """
    shards = open_shards(folder)
    _check_tokenizer(run, folder, shards.manifest.tokenizer_fingerprint, run.tokenizer)
    if run.encoder_tokenizer is not None:
        if shards.encoder is None:
            raise ValueError(
                f"{folder} holds the ids of one tokenizer, and the encoder of {run.path} reads "
                "those of another. Prepare it with --encoder-tokenizer "
                f"{run.path / 'encoder_tokenizer'}."
            )
        theirs = shards.encoder.tokenizer_fingerprint
        _check_tokenizer(run, folder, theirs, run.encoder_tokenizer)
    chosen = shards.splits[split]
    if not chosen.num_documents:
        raise ValueError(
            f"{folder} has no {split} split. Prepare it with --validation 0.01, or choose --split."
        )
    return Texts(chosen, f"{split} of {folder}", seed, run.source_tokens, num_texts=num_texts)


def texts_at(
    run: LatentRun, path: Path, split: str, *, num_texts: int | None = None, seed: int = 0
) -> Texts:
    """The texts of a folder of shards, or the lines of a file; see shard_texts and file_texts."""
    if path.is_dir():
        return shard_texts(run, path, split, num_texts=num_texts, seed=seed)
    return file_texts(run, path, "--data", num_texts=num_texts, seed=seed)


def _check_tokenizer(run: LatentRun, folder: Path, theirs: str, own: Tokenizer) -> None:
    if theirs != own.fingerprint:
        name = "tokenizer" if own is run.tokenizer else "encoder_tokenizer"
        raise ValueError(
            f"{folder} was prepared with another tokenizer (fingerprint {theirs}) than {run.path} "
            f"was trained with ({own.fingerprint}): the same ids would mean other words. Prepare "
            f"the text with {run.path / name}."
        )

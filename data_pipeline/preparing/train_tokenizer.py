"""A sentencepiece unigram model of a corpus: `python -m data_pipeline train-tokenizer`.

No character is lost: text is not normalised, white space is kept, newline is a piece of its own and
characters outside the vocabulary become byte pieces. decode(encode(text)) is the text again, but
for U+2581, which the library uses for the space. All specials are control pieces, ids 0 to 10 in
the order of SPECIALS. The same corpus and settings give the same bytes on every machine.
"""

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sentencepiece
import xxhash

from data_pipeline.preparing.output_folder import check_named
from data_pipeline.reading.documents import ReadSettings, Tally, read_source
from data_pipeline.reading.sources import find_sources, total_bytes
from data_pipeline.reading.unusable import OnError, policy, skipped_by
from data_pipeline.tokenizing.special import SPECIAL_TEXT, SPECIALS
from data_pipeline.watch import Watch, unwatched

_CHUNK_BYTES = 4096  # the library leaves longer pieces of text out
_NUM_THREADS = 4  # fixed: the sums over the corpus, and so the model, depend on it
_RESERVED = "\t"  # the library leaves text with it out; it becomes a byte piece anyway


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """What train-tokenizer is asked for."""

    input: list[str]
    output: str
    vocab_size: int
    character_coverage: float = 0.9995
    """Share of the characters of the corpus that get a piece; the others become bytes."""
    sample_bytes: int = 1 << 30
    """Text kept in memory for training; of a larger corpus a fixed sample of about this size."""
    on_error: OnError = "stop"
    """What is done about lines, rows and files that cannot be used; skip: left out and counted."""
    max_skipped: int = 1000
    """Lines, rows and files that may be skipped before the run ends after all."""
    read: ReadSettings = field(default_factory=ReadSettings)

    def __post_init__(self) -> None:
        check_named("--output", self.output)
        smallest = len(SPECIALS) + 256 + 2  # bytes, newline, and one piece to learn
        if self.vocab_size < smallest:
            raise ValueError(f"--vocab-size must be at least {smallest}, got {self.vocab_size}.")
        if not 0.98 <= self.character_coverage <= 1.0:
            raise ValueError(
                f"--character-coverage must lie in [0.98, 1], got {self.character_coverage}."
            )


def train_tokenizer(settings: TokenizerSettings, watch: Watch = unwatched) -> Tally:
    """Train a model, write it to settings.output and give what reading left out.

    Raises ValueError if the corpus is empty, or too small or too varied for the vocabulary.
    """
    output = Path(settings.output)
    if output.exists():
        raise ValueError(f"--output {output} exists. Choose another name, or remove it.")
    tally = Tally(refuse=policy(settings.on_error, settings.max_skipped))
    sources = find_sources(settings.input, tally.skipped)
    with watch(total_bytes(sources)) as on_bytes:
        documents = (
            document
            for source in sources
            for document in read_source(source, settings.read, tally, on_bytes)
        )
        sample = sampled((c for d in documents for c in chunks(d.text)), settings.sample_bytes)
    tally.skipped.update(skipped_by(tally.refuse))
    if not sample:
        raise ValueError("the inputs hold no document, so there is nothing to train on.")
    model = _train(sample, settings.vocab_size, settings.character_coverage)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.partial")
    partial.write_bytes(model)
    partial.replace(output)
    return tally


def chunks(text: str) -> Iterator[str]:
    """A text cut into pieces of at most 4,096 bytes, at newlines if that works, else at spaces."""
    text = text.replace(_RESERVED, " ")
    for stretch in re.split(r"(?<=\n)", text):
        at = 0
        while len(rest := stretch[at : at + _CHUNK_BYTES + 1].encode()) > _CHUNK_BYTES:
            head = rest[:_CHUNK_BYTES].decode("utf-8", "ignore")
            cut = head.rfind(" ") if " " in head[1:] else len(head)
            cut = cut if cut > 0 else len(head)
            yield head[:cut]
            at += cut
        if (last := stretch[at:]).strip():
            yield last


def sampled(texts: Iterable[str], limit_bytes: int) -> list[str]:
    """All texts, or where they exceed the limit those whose hash is low: half, a quarter, ..."""
    kept, size_bytes, ceiling = [], 0, 1 << 64
    for text in texts:
        if xxhash.xxh3_64_intdigest(text.encode("utf-8")) >= ceiling:
            continue
        kept.append(text)
        size_bytes += len(text.encode("utf-8"))
        while size_bytes > limit_bytes and len(kept) > 1 and ceiling > 1:
            ceiling //= 2
            kept = [t for t in kept if xxhash.xxh3_64_intdigest(t.encode("utf-8")) < ceiling]
            size_bytes = sum(len(t.encode("utf-8")) for t in kept)
    return kept


def _train(sample: list[str], vocab_size: int, character_coverage: float) -> bytes:
    model = io.BytesIO()
    own = ("pad", "eos", "unk")  # the library has settings for these
    names: dict[str, Any] = {f"{name}_id": SPECIALS.index(name) for name in own}
    names |= {f"{name}_piece": SPECIAL_TEXT[name] for name in own}
    others = [SPECIAL_TEXT[name] for name in SPECIALS if name not in own]
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            control_symbols=others,
            user_defined_symbols=["\n"],
            bos_id=-1,
            max_sentence_length=2 * _CHUNK_BYTES,
            num_threads=_NUM_THREADS,
            minloglevel=2,
            **names,
        )
    except RuntimeError as error:
        raise ValueError(_too_small(str(error), vocab_size)) from error
    return model.getvalue()


def _too_small(message: str, vocab_size: int) -> str:
    if largest := re.search(r"Please set it to a value <= (\d+)", message):
        return (
            f"--vocab-size {vocab_size} is too large for this corpus; the largest possible is "
            f"{largest[1]}. Choose at most that, or add text."
        )
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"--vocab-size {vocab_size} is too small for the characters of this corpus; the "
            f"smallest possible is {needed[1]}. Choose that, or lower --character-coverage."
        )
    return f"sentencepiece cannot train on this corpus: {' '.join(message.split())}"

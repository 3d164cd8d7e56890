"""The second tokenizer of a run, which an encoder may have: whether recipe and shards agree on it.

    vocabulary = encoder_vocabulary(config.objectives, shards)    # None: one tokenizer for all
    check_streams(config, [shards])                               # before the first step

Shards that hold a second stream have it from `python -m data_pipeline prepare --encoder-tokenizer`.
"""

from collections.abc import Sequence

from data_pipeline.storage.manifest import EncoderEntry
from data_pipeline.storage.shards import Shards
from data_pipeline.tokenizing.special import Vocabulary
from pretrain.settings.config import Config
from pretrain.settings.objectives_config import ObjectivesConfig


def reads_two(objectives: ObjectivesConfig) -> bool:
    """Whether an objective of the run has an encoder with a tokenizer of its own."""
    return objectives.optimus.weight > 0 and objectives.optimus.tokenizers == "two"


def encoder_vocabulary(objectives: ObjectivesConfig, shards: Shards) -> Vocabulary | None:
    """That of the encoder's tokenizer, where the run has one; the shards then hold its stream."""
    if not reads_two(objectives) or shards.encoder is None:
        return None
    return Vocabulary(shards.encoder.special, shards.encoder.vocab_size)


def stream_in_words(objectives: ObjectivesConfig, shards: Shards) -> str:
    """What the log adds to the tokens of shards that hold a second stream."""
    if shards.encoder is None:
        return ""
    if not reads_two(objectives):
        return " (and a second stream, which no objective of this run reads)"
    tokens = sum(s.tokens for s in shards.encoder.shards["train"])
    return f" and {tokens} of the encoder's, of {shards.encoder.vocab_size} ids,"


def check_streams(config: Config, opened: Sequence[Shards]) -> None:
    """Raise ValueError where the recipe reads another number of streams than shards hold, or one of
    their texts does not fit."""
    two = reads_two(config.objectives)
    for shards in opened:
        if two and shards.encoder is None:
            raise ValueError(
                f"objectives.optimus.tokenizers: two, but {shards.folder} holds the ids of one "
                "tokenizer. Prepare it with --encoder-tokenizer, or set "
                "objectives.optimus.tokenizers: one."
            )
        if not two and shards.encoder is not None and config.objectives.optimus.weight > 0:
            raise ValueError(
                f"objectives.optimus.tokenizers: one, but {shards.folder} holds the ids of two. "
                "Set objectives.optimus.tokenizers: two, so that the encoder reads its own, or "
                "prepare without --encoder-tokenizer."
            )
        if two and shards.encoder is not None:
            _check_lengths(config, shards, shards.encoder)


def _check_lengths(config: Config, shards: Shards, encoder: EncoderEntry) -> None:
    """Raise ValueError where the longest document of either stream does not fit."""
    packing = config.data.packing
    positions = config.objectives.optimus.encoder_positions(packing.source_tokens)
    rooms = (
        ("", "data.packing.source_tokens", packing.source_tokens),
        ("encoder ", "positions of objectives.optimus.encoder", positions),
        ("encoder ", "data.packing.row_tokens", packing.row_tokens),
    )
    first, second = (max(lengths) + 2 for lengths in zip(*encoder.longest_tokens.values()))
    for (stream, setting, room), longest in zip(rooms, (first, second, second)):
        if longest > room:
            raise ValueError(
                f"{shards.folder} holds a text of {longest} {stream}tokens with its beginning and "
                f"end, and {setting} is {room}: with two tokenizers no text is cut. Raise it "
                "(positions: objectives.optimus.encoder.max_positions), or prepare with "
                f"--max-tokens {room - 2}."
            )

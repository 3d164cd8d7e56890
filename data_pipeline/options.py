"""The options of a command as the settings that it takes, each in the module that does the work.

Nothing heavy is imported before a command is run.
"""

from typing import TYPE_CHECKING

from data_pipeline.reading.documents import ReadSettings

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from data_pipeline.preparing.megatron_import import ImportSettings
    from data_pipeline.preparing.request import PrepareSettings
    from data_pipeline.preparing.train_tokenizer import TokenizerSettings

_MAX_SKIPPED = 1000  # where --on-error skip is given alone


def prepare_settings(options: "Namespace") -> "PrepareSettings":
    """What prepare, slices, prepare-slice and merge are asked for."""
    from data_pipeline.preparing.length_limits import LengthLimits
    from data_pipeline.preparing.request import PrepareSettings
    from data_pipeline.tokenizing.special import parse_aliases

    return PrepareSettings(
        input=options.input,
        tokenizer=options.tokenizer,
        output=options.output,
        validation=options.validation,
        shard_tokens=options.shard_tokens,
        mix=options.mix,
        dedup=options.dedup,
        on_error=options.on_error,
        max_skipped=_max_skipped(options),
        workers=options.workers,
        slice_bytes=options.slice_bytes,
        aliases=parse_aliases(options.alias),
        encoder_tokenizer=options.encoder_tokenizer,
        encoder_aliases=parse_aliases(options.encoder_alias, "--encoder-alias"),
        lengths=LengthLimits(
            min_words=options.min_words,
            max_words=options.max_words,
            max_tokens=options.max_tokens,
        ),
        source=options.source,
        licence=options.licence,
        read=_read_settings(options, options.prompt_field),
    )


def import_settings(options: "Namespace") -> "ImportSettings":
    """What import-megatron is asked for."""
    from data_pipeline.preparing.megatron_import import ImportSettings, parse_end_id
    from data_pipeline.tokenizing.special import parse_aliases

    return ImportSettings(
        input=options.input,
        tokenizer=options.tokenizer,
        output=options.output,
        validation=options.validation,
        shard_tokens=options.shard_tokens,
        mix=options.mix,
        end_id=parse_end_id(options.end_id),
        vocab_size=options.vocab_size,
        retokenize=options.retokenize,
        aliases=parse_aliases(options.alias),
        source=options.source,
        licence=options.licence,
    )


def tokenizer_settings(options: "Namespace") -> "TokenizerSettings":
    """What train-tokenizer is asked for."""
    from data_pipeline.preparing.train_tokenizer import TokenizerSettings

    return TokenizerSettings(
        input=options.input,
        output=options.output,
        vocab_size=options.vocab_size,
        character_coverage=options.character_coverage,
        on_error=options.on_error,
        max_skipped=_max_skipped(options),
        read=_read_settings(options, None),
    )


def _max_skipped(options: "Namespace") -> int:
    if options.max_skipped is None:
        return _MAX_SKIPPED
    if options.on_error != "skip":
        raise ValueError(
            f"--max-skipped {options.max_skipped} has no effect without --on-error skip: the first "
            "line that cannot be used ends the run. Add --on-error skip, or leave it out."
        )
    return options.max_skipped


def _read_settings(options: "Namespace", prompt_field: str | None) -> ReadSettings:
    return ReadSettings(
        document=options.document,
        text_field=options.text_field,
        prompt_field=prompt_field,
        encoding=options.encoding,
    )

"""The command line of the data pipeline: words in, settings out. Nothing heavy is imported here."""

import sys
from pathlib import Path
from typing import NoReturn

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace, set_parsing_settings

from data_pipeline.command_line import ReadableParser, config_files, yaml_problem

_DESCRIPTION = "Text to shards: prepare them, look into them, check them."


class Parser(ReadableParser):
    """A parser whose errors are one line on stderr, with exit code 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        sys.stderr.write(f"data_pipeline: {self.readable(message)}\n")
        raise SystemExit(2)


def parse(argv: list[str]) -> Namespace:
    """The command and its options. Ends the process with one line and exit code 2 on a mistake."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = Parser(prog="data_pipeline", description=_DESCRIPTION)
    commands = parser.add_subcommands(dest="command", required=True)
    for name, build in _COMMANDS.items():
        assert build.__doc__ is not None
        command = Parser(description=build.__doc__)
        build(command)
        commands.add_subcommand(name, command, help=build.__doc__)
    if argv and argv[0] in _WITH_CONFIG:
        for file in config_files(argv):
            _check_config(parser, argv[0], file)
    return parser.parse_args(argv)


def _check_config(parser: Parser, command: str, file: str) -> None:
    """Read one settings file alone, so that an error in it names the file."""
    if not Path(file).is_file():
        parser.error(f"--config {file} is not a file.")
    if problem := yaml_problem(file):
        parser.error(f"{file}: not a YAML file of settings: {problem}")
    settings = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        parser.error(f"{file}: must hold settings as `validation: 0.01`, one a line.")
    for name in {"input", "alias", "encoder_alias"} & set(settings):
        if not isinstance(settings[name], list):
            parser.error(f"{file}: {name} must be a list, as {name}: [a, b], got {settings[name]}.")
    alone = ArgumentParser(exit_on_error=False)
    _COMMANDS[command](alone)
    try:
        alone.parse_args([*_WITH_CONFIG[command], "--config", file])
    except (ArgumentError, TypeError, ValueError, KeyError) as error:
        parser.error(f"{file}: {error}")


def _prepare(parser: ArgumentParser) -> None:
    """Turn text into a folder of shards that training reads."""
    _input_options(parser)
    option = parser.add_argument
    option("--tokenizer", type=str, required=True, metavar="FILE|FOLDER", help=_TOKENIZER)
    option("--output", type=str, required=True, metavar="DIR", help=_OUTPUT)
    option("--validation", type=float, default=0.0, metavar="SHARE", help=_VALIDATION)
    option(
        "--prompt-field", default=None, metavar="NAME", help="field put before the text, no loss"
    )
    option("--alias", type=str, action="append", default=[], metavar="NAME=NAME", help=_ALIAS)
    option("--shard-tokens", type=int, default=None, metavar="N", help=_SHARD_TOKENS)
    option("--mix", type=int, default=1, metavar="N", help=_MIX)
    option("--dedup", choices=["none", "exact"], default="none", help=_DEDUP)
    option("--encoder-tokenizer", default=None, metavar="FILE|FOLDER", help=_ENCODER)
    option("--encoder-alias", action="append", default=[], metavar="NAME=NAME", help=_ENCODER_ALIAS)
    for name, about in _LENGTHS.items():
        option(name, type=int, default=None, metavar="N", help=about)
    option("--workers", type=int, default=None, metavar="N", help=_WORKERS)
    option("--slice-bytes", type=int, default=64 << 20, metavar="N", help=_SLICE_BYTES)
    option(
        "--source", type=str, default=None, help="where the text comes from, kept in the manifest"
    )
    option("--licence", type=str, default=None, help="licence of the text, kept in the manifest")


def _slices(parser: ArgumentParser) -> None:
    """Say how many slices prepare-slice has to do, and which tasks of an array have some left."""
    _prepare(parser)
    option = parser.add_argument
    option("--of", type=int, default=None, metavar="N", help=_NUM_TASKS)
    option("--tasks", action="store_true", help="print only these tasks, as for sbatch --array")
    option("--json", action="store_true", help="print one JSON object")


def _prepare_slice(parser: ArgumentParser) -> None:
    """Prepare the slices of one task of a job array; options as of prepare, the same in each."""
    _prepare(parser)
    parser.add_argument("--task", type=int, required=True, metavar="I", help="0..N-1: which task")
    parser.add_argument("--of", type=int, required=True, metavar="N", help=_OF)


def _merge(parser: ArgumentParser) -> None:
    """Merge the slices of all tasks, each of which must be finished; options as of prepare."""
    _prepare(parser)


def _import_megatron(parser: ArgumentParser) -> None:
    """Turn indexed datasets of Megatron-LM (.bin and .idx) into a folder of shards."""
    option = parser.add_argument
    option("--config", action="config", help="YAML file with these options")
    option("--input", type=str, nargs="+", required=True, metavar="NAME", help=_INDEXED)
    option("--tokenizer", type=str, required=True, metavar="FILE|FOLDER", help=_TOKENIZER)
    option("--output", type=str, required=True, metavar="DIR", help="folder to make")
    option("--validation", type=float, default=0.0, metavar="SHARE", help=_VALIDATION)
    option("--end-id", type=str, default="auto", metavar="ID|auto|none", help=_END_ID)
    option("--vocab-size", type=int, default=None, metavar="N", help=_OWN_VOCABULARY)
    option("--retokenize", choices=["check", "ignore"], default="check", help=_RETOKENIZE)
    option("--alias", type=str, action="append", default=[], metavar="NAME=NAME", help=_ALIAS)
    option("--shard-tokens", type=int, default=None, metavar="N", help=_SHARD_TOKENS)
    option("--mix", type=int, default=1, metavar="N", help=_MIX)
    option("--source", type=str, default=None, help="where the text comes from")
    option("--licence", type=str, default=None, help="licence of the text")


def _train_tokenizer(parser: ArgumentParser) -> None:
    """Train a sentencepiece unigram model on text."""
    _input_options(parser)
    option = parser.add_argument
    option(
        "--output", required=True, metavar="FILE", help="model file to write, as tokenizer.model"
    )
    option("--vocab-size", type=int, required=True, metavar="N", help="pieces, specials included")
    option("--character-coverage", type=float, default=0.9995, metavar="SHARE", help=_COVERAGE)


def _inspect(parser: ArgumentParser) -> None:
    """Draw one training row: tokens, masks, targets, both positions, what each token sees."""
    from data_pipeline.transforms.blank import BlankConfig

    option = parser.add_argument
    option("folder", metavar="DIR", help="folder of shards")
    option("--document", type=int, default=0, metavar="N", help="which document")
    option("--piece", type=int, default=0, metavar="N", help="which piece of a long document")
    option("--row", type=int, default=None, metavar="N", help="a packed row of the epoch instead")
    option("--text", type=str, default=None, help="a text of your own instead")
    option("--split", choices=["train", "validation"], default="train")
    kinds = ["token", "sentence", "document", "single", "whole"]
    option("--kind", choices=kinds, default=None, help=_KIND)
    option("--epoch", type=int, default=0)
    option("--seed", type=int, default=1234)
    option(
        "--source-tokens", type=int, default=512, metavar="N", help="longest piece of a document"
    )
    option("--row-tokens", type=int, default=1152, metavar="T", help="tokens of a packed row")
    option("--picture-tokens", type=int, default=64, metavar="N", help=_PICTURE)
    parser.add_class_arguments(BlankConfig, "blanks")


def _verify(parser: ArgumentParser) -> None:
    """Compare every file of a folder of shards with its checksum; exit code 1 on damage."""
    parser.add_argument("folder", metavar="DIR", help="folder of shards")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _stats(parser: ArgumentParser) -> None:
    """Show what folders of shards hold, each and together, and how their text fills rows."""
    from data_pipeline.transforms.blank import BlankConfig

    parser.add_argument("folders", nargs="+", metavar="DIR", help="folder of shards")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--row-tokens", type=int, default=None, metavar="T", help=_ROW_TOKENS)
    parser.add_argument("--source-tokens", type=int, default=512, metavar="N", help=_SOURCE_TOKENS)
    parser.add_class_arguments(BlankConfig, "blanks")


def _input_options(parser: ArgumentParser) -> None:
    option = parser.add_argument
    option("--config", action="config", help="YAML file with these options")
    option("--input", type=str, nargs="+", required=True, metavar="PATH", help=_INPUT)
    option("--document", choices=["line", "paragraph", "file"], default="line", help=_DOCUMENT)
    option(
        "--text-field",
        type=str,
        default="text",
        metavar="NAME",
        help="field of rows that is the text (not of .txt)",
    )
    option(
        "--encoding",
        type=str,
        default="utf-8",
        metavar="NAME",
        help="encoding of files, but for .parquet",
    )
    option("--on-error", choices=["stop", "skip"], default="stop", help=_ON_ERROR)
    option("--max-skipped", type=int, default=None, metavar="N", help=_MAX_SKIPPED)


_COMMANDS = {
    "prepare": _prepare,
    "slices": _slices,
    "prepare-slice": _prepare_slice,
    "merge": _merge,
    "import-megatron": _import_megatron,
    "train-tokenizer": _train_tokenizer,
    "inspect": _inspect,
    "verify": _verify,
    "stats": _stats,
}
_NAMES = ["--input=unnamed", "--tokenizer=unnamed", "--output=unnamed"]
_WITH_CONFIG = {  # commands with --config, and stand-ins for what a file may leave out
    "prepare": _NAMES,
    "slices": _NAMES,
    "prepare-slice": [*_NAMES, "--task=0", "--of=1"],
    "merge": _NAMES,
    "import-megatron": _NAMES,
    "train-tokenizer": ["--input=unnamed", "--output=unnamed", "--vocab-size=1000"],
}
_INPUT = (
    "files ending in .txt .jsonl .json .csv .tsv (or these with .gz .bz2 .xz .zst) or .parquet, "
    "folders, globs, saved datasets, URLs (s3://, hf://, ...)"
)
_INDEXED = "NAME of NAME.bin and NAME.idx, several in the order of their documents"
_END_ID = "id taken off where it ends a document (auto: eos, if the tokenizer itself has one)"
_OWN_VOCABULARY = "ids that the tokenizer must have by itself, else an error"
_RETOKENIZE = "ignore: import ids that their own text does not give again"
_TOKENIZER = "sentencepiece model, or local folder of a transformers tokenizer"
_OUTPUT = "folder to make; one that is there must be empty, or finished by the same request"
_VALIDATION = "share of the documents kept for validation, chosen by the hash of their text"
_ALIAS = "two specials with one id, as pad=eos; may be repeated"
_ENCODER = "second tokenizer: shards then hold every document in its ids too, for an encoder"
_ENCODER_ALIAS = "as --alias, of --encoder-tokenizer"
_LENGTHS = {
    "--min-words": "leave out documents of fewer words (parts between white space), counted",
    "--max-words": "leave out documents of more words, counted",
    "--max-tokens": "leave out documents of more tokens under either tokenizer, counted",
}
_SHARD_TOKENS = "tokens after which a shard is closed (default: token files of 256 MiB)"
_MIX = "write N shards side by side, documents dealt to them by the hash of their text"
_DEDUP = "exact: leave out documents whose text and prompt an earlier one has"
_ON_ERROR = "lines, rows and files that cannot be used: an error, or left out and counted"
_MAX_SKIPPED = "with --on-error skip: the most that may be left out (default: 1,000)"
_WORKERS = "processes at work (default: one for each CPU)"
_SLICE_BYTES = "bytes of input that are one piece of work, kept once finished"
_OF = "tasks among which the slices are dealt: task I prepares slices I, I + N, I + 2N, ..."
_NUM_TASKS = "tasks of the array (default: one a slice, at most 1,001)"
_COVERAGE = "share of the characters that get a piece, the others become bytes"
_DOCUMENT = "what one document of a .txt file is"
_KIND = "blank everything this way (default: as --blanks says)"
_PICTURE = "longest row whose mask is drawn"
_SOURCE_TOKENS = "with --row-tokens: the longest piece of a document"
_ROW_TOKENS = (
    "also plan one window of rows of T tokens: padding, cuts, blanks that are lost or clipped "
    "(with --source-tokens and --blanks.*)"
)

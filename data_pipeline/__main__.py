"""python -m data_pipeline prepare | prepare-slice | merge | inspect | verify | stats | ..."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.mpi_launch import is_rank, run_on_ranks
from data_pipeline.watch import logged

try:
    from data_pipeline.cli import parse
    from data_pipeline.options import import_settings, prepare_settings, tokenizer_settings
    from data_pipeline.reading.file_kinds import scrubbed
except ModuleNotFoundError as error:
    sys.stderr.write(
        f"data_pipeline: {sys.executable} has no {error.name}. Run `make setup` and use "
        ".venv/bin/python, or an interpreter in which this project is installed.\n"
    )
    sys.exit(2)

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from data_pipeline.preparing.missing_slices import Deal
    from data_pipeline.storage.manifest import Manifest
    from data_pipeline.storage.shards import Shards


def main(argv: list[str] | None = None) -> int:
    """Run one command and give its exit code: 0, 1 for damage found, 2 for a user's mistake."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] != ["prepare"] or not is_rank():
        return _run(words)
    try:
        return run_on_ranks(
            lambda deal: _run(words, deal), lambda: prepare_settings(parse(words).prepare)
        )
    except ValueError as error:
        return _fail(str(error))


def _run(words: list[str], deal: "Deal | None" = None) -> int:
    """deal: prepares the slices of prepare, where the ranks of MPI do."""
    arguments = parse(words)
    logging.basicConfig(format="data_pipeline: %(message)s")
    logging.getLogger("data_pipeline").setLevel(logging.INFO)
    options = arguments[arguments.command]
    try:
        return _prepare(options, deal) if deal else _RUN[arguments.command](options)
    except ValueError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "))
    except KeyboardInterrupt:
        left = "nothing was finished."
        if arguments.command.startswith("prepare"):
            left = "finished slices are kept: the same command goes on behind them."
        sys.stderr.write(f"data_pipeline: interrupted, {left}\n")
        return 130


def _fail(message: str) -> int:
    sys.stderr.write(f"data_pipeline: {scrubbed(message)}\n")
    return 2


def _prepare(options: "Namespace", deal: "Deal | None" = None) -> int:
    from data_pipeline.preparing.prepare import prepare

    settings = prepare_settings(options)
    return _show_finished(options, lambda: prepare(settings, _progress_bar, deal))


def _merge(options: "Namespace") -> int:
    from data_pipeline.preparing.array import merge_slices

    settings = prepare_settings(options)
    return _show_finished(options, lambda: merge_slices(settings, _progress_bar))


def _show_finished(options: "Namespace", finish: "Callable[[], Manifest]") -> int:
    """Say what a finished folder holds, whether `finish` finishes it now or finds it so."""
    from data_pipeline.preparing.finished import AlreadyPrepared
    from data_pipeline.stats import table

    try:
        manifest = finish()
    except AlreadyPrepared as done:
        _say_nothing_to_do(options.output)
        manifest = done.manifest
    print(table(manifest))
    return 0


def _say_nothing_to_do(output: str) -> None:
    sys.stderr.write(
        f"data_pipeline: {output} is finished already, by the same request from the "
        "same files. Nothing to do.\n"
    )


def _prepare_slice(options: "Namespace") -> int:
    from data_pipeline.preparing.array import prepare_share
    from data_pipeline.preparing.finished import AlreadyPrepared

    settings = prepare_settings(options)
    try:
        share = prepare_share(settings, options.task, options.of, _progress_bar)
    except AlreadyPrepared:
        _say_nothing_to_do(options.output)
        return 0
    print(f"task {options.task} of {options.of}: {share}")
    return 0


def _slices(options: "Namespace") -> int:
    from data_pipeline.preparing.array import survey

    found = survey(prepare_settings(options), options.of)
    if options.json:
        print(json.dumps(found.counts()))
    elif options.tasks:
        print(found.tasks_left)
    else:
        print(found)
    return 0


def _import_megatron(options: "Namespace") -> int:
    from data_pipeline.preparing.megatron_import import import_megatron
    from data_pipeline.stats import table

    settings = import_settings(options)
    print(table(import_megatron(settings, _progress_bar)))
    return 0


def _train_tokenizer(options: "Namespace") -> int:
    from data_pipeline.preparing.train_tokenizer import train_tokenizer
    from data_pipeline.stats import describe_counts

    settings = tokenizer_settings(options)
    tally = train_tokenizer(settings, _progress_bar)
    skipped = describe_counts(dict(+tally.skipped))
    print(f"{options.output}: {options.vocab_size:,} pieces. Skipped: {skipped}.")
    return 0


def _verify(options: "Namespace") -> int:
    from data_pipeline.stats import counts
    from data_pipeline.storage.manifest import read_manifest
    from data_pipeline.storage.verify import verify

    folder = Path(options.folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder. Name one that prepare has written.")
    numbers: dict[str, Any] = {}
    try:
        manifest = read_manifest(folder)
    except ValueError as error:  # nothing of such a folder can be believed
        problems = [str(error)]
    else:
        numbers = counts(manifest)
        problems = verify(folder, manifest, _progress_bar)
    if options.json:
        print(json.dumps({**numbers, "damaged": problems}, ensure_ascii=False))
    elif not problems:
        print(f"{folder}: {len(manifest.files())} files, all whole.")
    for problem in problems:
        sys.stderr.write(f"data_pipeline: damaged: {problem}\n")
    return 1 if problems else 0


def _stats(options: "Namespace") -> int:
    from data_pipeline.padding import describe
    from data_pipeline.stats import counts, describe_together, table, together
    from data_pipeline.storage.shards import open_shards

    opened = {str(folder): open_shards(folder) for folder in options.folders}
    planned = {folder: _planned(shards, options) for folder, shards in opened.items()}
    whole = together({folder: shards.manifest for folder, shards in opened.items()})
    if options.json:
        numbers = {f: counts(s.manifest) | planned[f] for f, s in opened.items()}
        several = {"folders": numbers, "together": whole}
        one = next(iter(numbers.values()))
        print(json.dumps(several if len(opened) > 1 else one, ensure_ascii=False))
        return 0
    for folder, shards in opened.items():
        if len(opened) > 1:
            print(f"{folder}:")
        print(table(shards.manifest))
        for packing in planned[folder].values():
            print("\n".join(describe(packing)))
    if len(opened) > 1:
        print(describe_together(whole))
    return 0


def _planned(shards: "Shards", options: "Namespace") -> dict[str, Any]:
    """What the first window's rows lose, under `packing`, where --row-tokens asks for it."""
    from data_pipeline.packing.plan import PackingConfig
    from data_pipeline.padding import padding
    from data_pipeline.transforms.blank import BlankConfig

    if options.row_tokens is None:
        return {}
    if options.row_tokens < options.source_tokens + 2:
        raise ValueError(
            f"--row-tokens must be at least --source-tokens + 2 = {options.source_tokens + 2} (a "
            f"text and one blank), got {options.row_tokens}. Choose more, or fewer --source-tokens."
        )
    packing = PackingConfig(source_tokens=options.source_tokens, row_tokens=options.row_tokens)
    return {"packing": padding(shards, packing, BlankConfig(**options.blanks.as_dict()))}


def _inspect(options: "Namespace") -> int:
    from data_pipeline.inspect import run
    from data_pipeline.transforms.blank import BlankConfig

    picture = run(
        options.folder,
        text=options.text,
        document=options.document,
        piece=options.piece,
        row=options.row,
        split=options.split,
        epoch=options.epoch,
        seed=options.seed,
        kind=options.kind,
        source_tokens=options.source_tokens,
        row_tokens=options.row_tokens,
        blank=BlankConfig(**options.blanks.as_dict()),
        picture_tokens=options.picture_tokens,
    )
    print(picture)
    return 0


@contextmanager
def _progress_bar(total_bytes: int | None) -> Iterator[Callable[[int], object]]:
    """A bar on stderr while a person watches, else a line in the log now and then."""
    if not sys.stderr.isatty():
        with logged(total_bytes) as on_bytes:
            yield on_bytes
        return
    from tqdm import tqdm

    with tqdm(total=total_bytes, unit="B", unit_scale=True) as bar:
        yield bar.update


_RUN = {
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

if __name__ == "__main__":
    sys.exit(main())

"""Weights of another run to begin with: `--init-from RUN`.

`--resume` goes on: weights, optimizer, step, data. `--init-from` takes weights alone, and begins
step, schedule and data anew.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from data_pipeline.tokenizing.tokenizer import open_tokenizer
from pretrain.checkpoints.checkpoint_files import MANIFEST, checked_weights, choose, complete
from pretrain.checkpoints.weights import WeightFiles, difference
from pretrain.handing_over import exported
from pretrain.recording.run_folder import RunFolder


class Source(NamedTuple):
    """Weights to begin with."""

    path: Path
    weights: WeightFiles
    tokenizer_fingerprint: str
    encoder_fingerprint: str | None = None
    """Of the tokenizer whose ids an encoder of its own has read; None: the same."""


def open_source(init_from: str, resume: str | None, checkpoints: Path) -> Source:
    """The weights that --init-from names.

    checkpoints: of the run that is about to begin. Raises ValueError where the path holds no
    weights, or together with --resume where the run has checkpoints to go on from.
    """
    if resume not in (None, "auto") or (resume and complete(checkpoints)):
        raise ValueError(
            f"--init-from {init_from} begins anew, --resume {resume} goes on from a checkpoint "
            f"({checkpoints} holds {len(complete(checkpoints))}). Leave out one of them."
        )
    path = Path(init_from)
    if exported.is_exported(path):
        second = path / exported.ENCODER_TOKENIZER
        return Source(
            path,
            exported.open_weights(path),
            _fingerprint(path / exported.TOKENIZER),
            _fingerprint(second) if second.is_dir() else None,
        )
    saved = path if (path / MANIFEST).is_file() else None
    if saved is None and (path / "checkpoints").is_dir():
        saved = choose(path)
    if saved is None:
        raise ValueError(
            f"--init-from {init_from}: holds no weights. Give a run folder, one of its checkpoints "
            "(RUN/checkpoints/step-00001000), or a folder that `export` wrote."
        )
    run = RunFolder(saved.resolve().parents[1])
    second = run.encoder_tokenizer
    return Source(
        saved,
        WeightFiles.open([checked_weights(saved)]),
        _fingerprint(run.tokenizer),
        _fingerprint(second) if second.is_dir() else None,
    )


def unshared_parts(
    source: Source, needed: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Parts that the new run has and `source` lacks as a whole, and the other way round, with the
    number of their weights: what objectives add (parts.NAME), LoRA and prefixes.

    The first begin as they are drawn, the second are of no use.
    """
    wanted, held = (Counter(map(_part_of, names)) for names in (needed, source.weights.shapes))
    both = wanted.keys() & held.keys() | {""}
    return (
        {name: number for name, number in wanted.items() if name not in both},
        {name: number for name, number in held.items() if name not in both},
    )


def check_source(
    source: Source,
    needed: Mapping[str, tuple[int, ...]],
    tokenizer_fingerprint: str | None,
    encoder_fingerprint: str | None = None,
) -> None:
    """ValueError, naming the first differing weights, where `source` does not fit; parts that one
    of the two lacks as a whole are left out of account.

    needed: names and shapes of the new run's weights. tokenizer_fingerprint: of its vocabulary;
    None allows another one. encoder_fingerprint: of the tokenizer of an encoder that has its own.
    """
    unshared = set().union(*unshared_parts(source, needed))
    compared, held = (
        {name: shape for name, shape in shapes.items() if _part_of(name) not in unshared}
        for shapes in (needed, source.weights.shapes)
    )
    if not held:
        raise ValueError(
            f"--init-from {source.path}: it has no weight that this recipe's model has. Leave it "
            "out, or choose a run with the same backbone."
        )
    error = difference(compared, held)
    if error:
        raise ValueError(
            f"--init-from {source.path}: its weights are not those of this recipe: {error}. Use "
            "the recipe's model, vocabulary and packing.source_tokens of that run."
        )
    if tokenizer_fingerprint not in (None, source.tokenizer_fingerprint):
        raise ValueError(
            f"--init-from {source.path}: it was trained with another tokenizer than the shards "
            "were prepared with, so that its ids mean other words. Prepare the shards with the "
            "tokenizer in its folder, or set --data.allow_other_data true."
        )
    shares_encoder = any(name.startswith("parts.optimus.encoder.") for name in held)
    if tokenizer_fingerprint is None or not shares_encoder:
        return
    if encoder_fingerprint != source.encoder_fingerprint:
        raise ValueError(
            f"--init-from {source.path}: its encoder was trained with another tokenizer than the "
            "encoder's of the shards. Prepare the shards with --encoder-tokenizer and the folder "
            "encoder_tokenizer of that run (without it, where that run has none), or set "
            "--data.allow_other_data true."
        )


def _part_of(name: str) -> str:
    """Which part a weight belongs to, as a whole there or not; "" for the backbone itself."""
    if name.startswith("parts."):
        return ".".join(name.split(".")[:2])
    kind = name.rpartition(".")[2].partition("_")[0]
    return kind if kind in ("lora", "prefix") else ""


def _fingerprint(folder: Path) -> str:
    return open_tokenizer(folder).fingerprint

"""Weights of another run to begin with: `--init-from RUN`.

`--resume` goes on: weights, optimizer, step, data. `--init-from` takes weights alone, and begins
step, schedule and data anew.
"""

from pathlib import Path
from typing import NamedTuple

from data_pipeline.tokenizing.tokenizer import open_tokenizer
from pretrain import exported
from pretrain.checkpoint_files import MANIFEST, checked_weights, choose, complete
from pretrain.weights import WeightFiles, difference


class Source(NamedTuple):
    """Weights to begin with."""

    path: Path
    weights: WeightFiles
    tokenizer_fingerprint: str


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
        return Source(path, exported.open_weights(path), _fingerprint(path / exported.TOKENIZER))
    saved = path if (path / MANIFEST).is_file() else None
    if saved is None and (path / "checkpoints").is_dir():
        saved = choose(path)
    if saved is None:
        raise ValueError(
            f"--init-from {init_from}: holds no weights. Give a run folder, one of its checkpoints "
            "(RUN/checkpoints/step-00001000), or a folder that `export` wrote."
        )
    run = saved.resolve().parents[1]
    return Source(
        saved, WeightFiles.open([checked_weights(saved)]), _fingerprint(run / "tokenizer")
    )


def check_source(
    source: Source, needed: dict[str, tuple[int, ...]], tokenizer_fingerprint: str | None
) -> None:
    """ValueError, naming the first differing weights, where `source` does not fit.

    needed: names and shapes of the new run's weights. tokenizer_fingerprint: of its vocabulary;
    None allows another one.
    """
    error = difference(needed, source.weights.shapes)
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


def _fingerprint(folder: Path) -> str:
    return open_tokenizer(folder).fingerprint

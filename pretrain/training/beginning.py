"""Weights that a run begins with: those of another run, or of BERT and GPT-2."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from data_pipeline.storage.shards import Shards
from pretrain.checkpoints.weights import shapes_of
from pretrain.distributed.world import World
from pretrain.handing_over.imported import imported_folders, imported_weights
from pretrain.handing_over.warm_start import Source, check_source, open_source, unshared_parts
from pretrain.objectives.loss import ObjectiveModel
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import Start
from pretrain.settings.config import Config
from pretrain.settings.two_tokenizers import reads_two

logger = logging.getLogger(__name__)


def first_weights(
    config: Config,
    shards: Shards,
    folder: RunFolder,
    start: Start,
    world: World,
    make_model: Callable[[], ObjectiveModel],
    found: Path | None,
) -> Callable[[str], torch.Tensor | None] | None:
    """How rank 0 reads each weight that --init-from or the recipe begins with; None: as they are
    drawn, or read from the checkpoint that was found."""
    imports = imported_folders(config)
    if start.init_from is None and (not imports or found is not None):
        return None

    def opened() -> Callable[[str], torch.Tensor | None]:
        with torch.device("meta"):
            needed = shapes_of(make_model())
        if start.init_from is None:
            read = imported_weights(config, needed, shards).get
            logger.info("weights to begin with: %s", " and ".join(imports))
            return read
        if imports:
            raise ValueError(
                f"--init-from {start.init_from} and the recipe's {' and '.join(imports)} are "
                "two beginnings. Leave out one of them."
            )
        source = open_source(start.init_from, start.resume, folder.checkpoints)
        other_words = config.data.allow_other_data
        vocabulary = None if other_words else shards.tokenizer().fingerprint
        two = reads_two(config.objectives)
        encoder = shards.encoder_tokenizer().fingerprint if two else None
        check_source(source, needed, vocabulary, encoder)
        logger.info("weights to begin with: %s", source.path)
        return _read_of(source, needed)

    return world.together(opened if world.leads else lambda: _only_rank_0_reads)


def _read_of(
    source: Source, needed: Mapping[str, tuple[int, ...]]
) -> Callable[[str], torch.Tensor | None]:
    """Reads a weight of `source`; None for those of a part that it lacks, which is said once."""
    fresh, unused = unshared_parts(source, needed)
    for part, number in fresh.items():
        logger.info("not in %s, begins as it is drawn: %s (%d weights)", source.path, part, number)
    for part, number in unused.items():
        logger.info("in %s, of no use here: %s (%d weights)", source.path, part, number)
    held = source.weights.shapes
    return lambda name: source.weights.tensor(name) if name in held else None


def _only_rank_0_reads(name: str) -> torch.Tensor:
    raise AssertionError(f"{name} is read by rank 0, which hands it to the others")

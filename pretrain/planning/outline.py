"""A run's model without its weights: what learns, what is frozen, and the arithmetic of a row.

    corpora, encoder = planned_rows(config, None)
    outline = outline_of(config, vocab_size, encoder)
    outline.trained, outline.frozen, outline.flop(config, rows, number)

For recipes with more than GLM, or with frozen weights: the objectives themselves say what they add
to the backbone, how a document becomes a row and what their arithmetic is, on the meta device. So
this file needs torch, which takes some seconds to import; a plan of GLM alone does without.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from data_pipeline.protocols import Split
from data_pipeline.storage.shards import Shards, open_shards
from data_pipeline.tokenizing.special import SpecialIds, Vocabulary
from pretrain.models.backbone import Backbone
from pretrain.models.flop import Work
from pretrain.models.latent import WideLinear
from pretrain.objectives.loss import Objective, ObjectiveModel
from pretrain.objectives.select import objectives_of, parts_of
from pretrain.planning.rows import (
    ASSUMED_IDS,
    SENTENCE_TOKENS,
    MadeUpText,
    RowContent,
    counted,
    has_shards,
)
from pretrain.settings.config import Config
from pretrain.settings.data_config import CorpusConfig
from pretrain.settings.trains import TrainsPolicy
from pretrain.settings.two_tokenizers import check_streams, encoder_vocabulary, reads_two

ASSUMED_ENCODER_IDS = 28_996  # of BERT-base, cased


@dataclass(frozen=True)
class Outline:
    """Sizes of a run's model. Tuples hold the elements of every parameter."""

    objectives: tuple[Objective, ...]
    trained: tuple[int, ...]
    frozen: tuple[int, ...]
    parts_size: int  # elements of what objectives add to the backbone
    wide_size: int  # elements of matrices that are taken to fp32 in the forward pass
    vocab_size: int  # rows of the token table

    def flop(self, config: Config, rows: Mapping[str, RowContent], number: int) -> float:
        """Of forward and backward over `number` rows of each objective."""
        return sum(
            o.flop(config.model, work_of(rows[o.name], number), vocab_size=self.vocab_size)
            for o in self.objectives
        )


def outline_of(config: Config, vocab_size: int, encoder: Vocabulary | None) -> Outline:
    """vocab_size: rows of the token table. encoder: of a second tokenizer, where the run has
    one."""
    objectives = objectives_of(config.objectives, steps=config.steps, encoder=encoder)
    tokens = config.data.packing.source_tokens
    with torch.device("meta"):
        parts = parts_of(
            objectives, config.model, vocab_size=vocab_size, source_tokens=tokens, seed=config.seed
        )
        backbone = None
        if any(objective.backbone_calls for objective in objectives):
            backbone = Backbone(
                config.model, vocab_size=vocab_size, num_positions=config.model.table_rows(tokens)
            )
    model = ObjectiveModel(backbone, parts)
    TrainsPolicy(
        config.trains, config.unfreezing, num_layers=config.model.num_layers,
        shared_layers=config.shared_layers,
    ).freeze(model)  # fmt: skip
    wide = [module for module in model.modules() if isinstance(module, WideLinear)]
    return Outline(
        objectives=tuple(objectives),
        trained=tuple(p.numel() for p in model.parameters() if p.requires_grad),
        frozen=tuple(p.numel() for p in model.parameters() if not p.requires_grad),
        parts_size=sum(p.numel() for p in model.parts.parameters()),
        wide_size=sum(module.weight.numel() for module in wide),
        vocab_size=vocab_size,
    )


def planned_rows(
    config: Config, vocab_size: int | None
) -> tuple[list[tuple[CorpusConfig, dict[str, RowContent]]], Vocabulary | None]:
    """What a row of every objective holds, by corpus; and the vocabulary of a second tokenizer.

    vocab_size: ids in use; None takes those of the shards, or ASSUMED_IDS. Raises ValueError for
    shards that cannot be read, or of another number of streams than the recipe reads.
    """
    folders = [corpus.shards for corpus in config.data.sources]
    opened = {folder: open_shards(folder) for folder in folders if has_shards(folder)}
    check_streams(config, list(opened.values()))
    encoder = None
    if reads_two(config.objectives):
        encoder = Vocabulary(SpecialIds(*range(11)), ASSUMED_ENCODER_IDS)
        for shards in opened.values():
            encoder = encoder_vocabulary(config.objectives, shards) or encoder
    objectives = objectives_of(config.objectives, steps=config.steps, encoder=encoder)
    found = []
    for corpus in config.data.sources:
        shards = opened.get(corpus.shards)
        rows = {o.name: _rows(config, corpus, shards, o, vocab_size) for o in objectives}
        found.append((corpus, rows))
    return found, encoder


def work_of(rows: RowContent, number: int) -> Work:
    """What `number` rows hold."""
    each = (rows.tokens, rows.visible_pairs, rows.targets, rows.read_tokens, rows.read_pairs)
    return Work(*(number * value for value in each))


def _rows(
    config: Config,
    corpus: CorpusConfig,
    shards: Shards | None,
    objective: Objective,
    vocab_size: int | None,
) -> RowContent:
    packing = config.data.packing
    if shards is not None:
        split: Split = shards.splits["train"]
        special, ids = shards.special, vocab_size or shards.vocab_size
        origin, size = f"counted in the first window of {corpus.shards}", split.num_tokens
    else:
        # Where documents are cut because they are too long and for no other reason, they are
        # sentences, and those of two streams are never cut.
        split = MadeUpText(config.seed)
        if packing.cut == "long":
            limit = packing.source_tokens - 2
            split = MadeUpText(config.seed, mean=SENTENCE_TOKENS, longest=limit)
        special, ids, size = SpecialIds(*range(11)), vocab_size or ASSUMED_IDS, None
        origin = f"counted in made-up text, since there are no shards in {corpus.shards}: {split}"
        if reads_two(config.objectives):
            origin += f", as long in the encoder's ids, {ASSUMED_ENCODER_IDS:,} of them"
    transform = objective.transform(special, source_tokens=packing.source_tokens, vocab_size=ids)
    found = counted(split, transform, packing, config.seed, size, origin)
    if objective.health is None:  # it has no latent space, so that nothing reads whole texts
        return replace(found, read_tokens=0.0, read_pairs=0.0)
    return found

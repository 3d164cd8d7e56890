"""Everything a run needs before its first step, built in an order that shows what depends on what.

shards -> objectives and their transforms -> sizes -> engine (weights, optimizer) -> checkpoint, if
there is one
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from data_pipeline.packing.loader import Place, first_place
from data_pipeline.padding import first_window_lines
from data_pipeline.protocols import Transform
from data_pipeline.storage.shards import Shards
from data_pipeline.tokenizing.words import word_table
from kernels.dispatch import choose_backend
from pretrain.checkpoints import checkpoint, checkpoint_files, resume
from pretrain.distributed import network
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World
from pretrain.models.backbone import Backbone, decays, num_positions
from pretrain.models.layer import Layer
from pretrain.models.shape import padded_vocabulary
from pretrain.objectives.loss import Objective, ObjectiveModel
from pretrain.objectives.select import objectives_of, parts_of
from pretrain.objectives.turns import Turns
from pretrain.recording.run_folder import RunFolder
from pretrain.settings import deepspeed_settings
from pretrain.settings.cli import Start
from pretrain.settings.config import Config
from pretrain.settings.trains import SIDES, TrainsPolicy, in_words
from pretrain.settings.two_tokenizers import encoder_vocabulary, reads_two, stream_in_words
from pretrain.training.beginning import first_weights
from pretrain.training.corpora import Corpora, Corpus
from pretrain.training.judge import Judge
from pretrain.training.numerics import compile_layers, set_numerics

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """A run of which `step` steps are done."""

    config: Config
    corpora: Corpora
    folder: RunFolder
    world: World
    objectives: list[Objective]
    transforms: dict[str, Transform]
    vocab_size: int  # rows of the token table
    engine: Engine
    step: int
    positions: dict[str, Place]  # where each objective's stream goes on
    judge: Judge
    policy: TrainsPolicy
    owes_evaluation: bool = False  # after `step`, before anything else

    @property
    def shards(self) -> Shards:
        """Those whose tokenizer and special ids are the run's."""
        return self.corpora.shards

    @property
    def turns(self) -> Turns | None:
        """Of the objective whose encoder and decoder take turns, where one does."""
        return next((o.turns for o in self.objectives if o.turns), None)

    def move_at(self, step: int) -> None:
        """Let the update of `step` move what the recipe lets it move; said where it changes for
        good."""
        turns = self.turns
        sides = turns.sides() if turns else SIDES
        moves = self.policy.groups_at(self.judge.updates, sides)
        if self.engine.learn(moves) and (turns is None or turns.is_over):
            logger.info("step %d: from here on these learn: %s", step, ", ".join(sorted(moves)))


def set_up(
    config: Config, corpora: Corpora, folder: RunFolder, start: Start, world: World
) -> Setup:
    """Build or restore the run. Raises ValueError for what the user can mend; the same on every
    rank."""
    found = world.on_leader(lambda: checkpoint_files.find(folder.checkpoints, start.resume))
    choose_backend(None, world.device.type)
    set_numerics(config.numerics)

    shards, packing = corpora.shards, config.data.packing
    encoder = encoder_vocabulary(config.objectives, shards)
    # Behind the vocabulary may stand the marks of blanks, at most two for each token of a text.
    marks = torch.zeros(2 * packing.source_tokens, dtype=torch.bool)
    words = torch.cat((torch.from_numpy(word_table(shards.tokenizer())), marks))
    objectives = objectives_of(
        config.objectives, steps=config.steps, encoder=encoder, word_table_V=words
    )
    transforms = {
        o.name: o.transform(
            shards.special, source_tokens=packing.source_tokens, vocab_size=shards.vocab_size
        )
        for o in objectives
    }
    vocab_size = padded_vocabulary(max(t.vocab_size for t in transforms.values()))
    _refuse_other_runs(config, corpora, found, vocab_size, world)
    settings = world.together(lambda: _deepspeed_settings(config, world))
    policy = TrainsPolicy(
        config.trains, config.unfreezing,
        num_layers=config.model.num_layers, shared_layers=config.shared_layers,
        alternates=any(o.turns for o in objectives),
    )  # fmt: skip

    def make_model() -> ObjectiveModel:
        parts = parts_of(
            objectives, config.model, vocab_size=vocab_size,
            source_tokens=packing.source_tokens, seed=config.seed,
        )  # fmt: skip
        is_called = any(o.backbone_calls for o in objectives)
        backbone = make_backbone(config, vocab_size) if is_called else None
        model = ObjectiveModel(backbone, parts)
        policy.freeze(model)
        return model

    engine = Engine(
        make_model, decays=decays, optimizer=config.optimizer, settings=settings, world=world,
        first_weights=first_weights(config, shards, folder, start, world, make_model, found),
        group_of=policy.group, gathered_whole=_gathered_whole(objectives),
    )  # fmt: skip
    if config.memory.compile == "layers":
        compile_layers(engine.module, world.device, config.memory)
    setup = Setup(
        config, corpora, folder, world, objectives, transforms, vocab_size, engine,
        step=0, positions={o.name: first_place(corpora.train) for o in objectives},
        judge=Judge(config.spikes, skip_steps=config.data.skip_steps), policy=policy,
    )  # fmt: skip
    # Rank 0 reads the first rows for it, in which there may be damage.
    world.together(lambda: announce(setup, settings) if world.leads else None)
    if found is not None:
        setup = _restored(setup, found)
    world.on_leader(lambda: _write_folder(setup, settings, start, is_new=found is None))
    return setup


def _refuse_other_runs(
    config: Config, corpora: Corpora, found: Path | None, vocab_size: int, world: World
) -> None:
    """Raise AgreedError where the run must not go on from `found`, before anything large is
    built."""
    if found is not None:
        manifest = world.together(lambda: checkpoint_files.read_manifest(found))
        wanted = resume.identity(
            config, data_fingerprint=corpora.fingerprint, vocab_size=vocab_size
        )
        world.agree(resume.refusal(found, manifest, wanted, config))


def _gathered_whole(objectives: Sequence[Objective]) -> tuple[type[torch.nn.Module], ...]:
    """Layers, where each is called once between two backward passes.

    0.19.8 reduces the gradients of a module that is gathered whole after every call's backward, the
    first time before all of them are there; parameter by parameter it waits for the last one.
    """
    return (Layer,) if sum(o.backbone_calls for o in objectives) == 1 else ()


def _write_folder(setup: Setup, settings: dict[str, Any], start: Start, *, is_new: bool) -> None:
    """Describe the run in its folder, saying what changed since its last start."""
    if is_new:
        setup.folder.note_origin(start.init_from)
    for change in setup.folder.changes(setup.config):
        logger.info("changed since the last start of this run: %s", change)
    setup.folder.describe(setup.config, settings)
    setup.shards.tokenizer().save(setup.folder.tokenizer)
    if reads_two(setup.config.objectives):
        setup.shards.encoder_tokenizer().save(setup.folder.encoder_tokenizer)


def make_backbone(config: Config, vocab_size: int) -> Backbone:
    """The backbone of `config`, freshly initialised from its seed."""
    return Backbone(
        config.model,
        vocab_size=vocab_size,
        num_positions=num_positions(config.model, config.data.packing.source_tokens),
        generator=torch.Generator().manual_seed(config.seed),
        layers_per_checkpoint=config.memory.layers_per_checkpoint,
    )


def _deepspeed_settings(config: Config, world: World) -> dict[str, Any]:
    path = Path(config.deepspeed_config or deepspeed_settings.REPOSITORY / "ds_config.json")
    on_gpu = world.device.type == "cuda"
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if on_gpu else "fp32"
    return deepspeed_settings.complete(
        path,
        micro_rows=config.batch.micro_rows,
        accumulation=config.batch.accumulation(world.world_size),
        world_size=world.world_size,
        gradient_clipping=config.optimizer.gradient_clipping,
        precision=precision,
        reduction_dtype=config.numerics.reduction_dtype,
    )


def _restored(setup: Setup, found: Path) -> Setup:
    """`setup` with weights, optimizer and data positions of the checkpoint `found`."""
    world = setup.world
    manifest = world.together(lambda: checkpoint_files.read_manifest(found))
    # An objective that the checkpoint does not know (data.allow_other_data) begins afresh.
    positions = setup.positions | world.together(lambda: resume.positions(manifest))
    judged = manifest.state.get("judge", {})
    world.together(lambda: setup.judge.restore(judged, manifest.update))
    alarms = manifest.state.get("alarms", {})
    world.together(lambda: _restore_alarms(setup.objectives, alarms))
    turns = manifest.state.get("turns", {})
    world.together(lambda: [o.turns.restore(turns) for o in setup.objectives if o.turns])
    checkpoint.load(setup.engine, found)
    if found.parent.resolve() == setup.folder.checkpoints.resolve():
        # Before the first save: what lies ahead is given up now, also if the run is killed here.
        world.on_leader(lambda: checkpoint_files.note_latest(found.parent, found.name))
    logger.info("resumed from %s: step %d is done", found, manifest.update)
    return replace(
        setup,
        step=manifest.update,
        positions=positions,
        owes_evaluation=manifest.state.get("owes_evaluation") is True,
    )


def _restore_alarms(objectives: Sequence[Objective], states: Any) -> None:
    for objective in objectives:
        if objective.alarm:
            own = states.get(objective.name, {}) if isinstance(states, dict) else states
            objective.alarm.restore(own)


def identity_of(setup: Setup) -> dict[str, Any]:
    """What a checkpoint of this run and whoever resumes from it must agree on."""
    return resume.identity(
        setup.config,
        data_fingerprint=setup.corpora.fingerprint,
        vocab_size=setup.vocab_size,
    )


def _announce_corpus(setup: Setup, corpus: Corpus) -> None:
    config = setup.config
    share = f"{corpus.name}, {setup.corpora.rows_ratio(corpus):.2%} of the rows: "
    logger.info(
        "data: %s%d documents, %d tokens%s in %s",
        share if setup.corpora.is_mixed else "",
        corpus.train.num_documents,
        corpus.train.num_tokens,
        stream_in_words(config.objectives, corpus.shards),
        corpus.shards.folder,
    )
    for objective in setup.objectives:
        lines = first_window_lines(
            corpus.train, setup.transforms[objective.name], config.data.packing, seed=config.seed
        )
        logger.info("%s, first window: %s", objective.name, "; ".join(lines))


def announce(setup: Setup, settings: dict[str, Any]) -> None:
    """Say once what the run is made of and what was chosen for the user."""
    config, world, engine = setup.config, setup.world, setup.engine
    packing, batch = config.data.packing, config.batch
    logger.info("run folder %s", setup.folder.path)
    for corpus in setup.corpora.corpora:
        _announce_corpus(setup, corpus)
    if gap := setup.corpora.held_out_gap():
        logger.info("data: %s", gap)
    logger.info(
        "model: %s; vocabulary %d padded to %d",
        in_words(engine.num_parameters[True], engine.num_parameters[False]),
        max(t.vocab_size for t in setup.transforms.values()),
        setup.vocab_size,
    )
    logger.info(
        "batch: %d rows of %d positions = %d rows a micro-batch x %d ranks x %d accumulated",
        batch.global_rows,
        packing.row_tokens,
        batch.micro_rows,
        world.world_size,
        engine.accumulation,
    )
    logger.info(
        "engine: ZeRO stage %d, %s%s on %s, %d torch threads a rank",
        engine.stage,
        "bf16 with fp32 master weights" if settings["bf16"]["enabled"] else "fp32",
        " (precision: auto)" if config.precision == "auto" else "",
        world.device,
        torch.get_num_threads(),
    )
    logger.info(
        "numerics: gradients summed in %s, TF32 %s, deterministic kernels %s",
        config.numerics.reduction_dtype,
        "on" if config.numerics.tf32 else "off",
        "only" if config.numerics.deterministic else "not asked for",
    )
    spikes = config.spikes
    logger.info(
        "skips: a loss that is not finite%s; %d in a row end the run; steps not trained on: %s",
        f", or above median + {spikes.loss_deviations:g} x MAD of the last {spikes.history}"
        if spikes.loss_deviations
        else "",
        spikes.stop_after,
        ", ".join(f"{a}-{b}" for a, b in setup.judge.skip_steps) or "none named",
    )
    logger.info(
        "memory: activation checkpointing %s, compile %s, offload %s",
        config.memory.activation_checkpointing,
        config.memory.compile,
        ", ".join(deepspeed_settings.offloads(settings)) or "none",
    )
    is_evaluated = config.evaluation.every_steps > 0 and bool(setup.corpora.held_out())
    idle = config.idle_additions()
    for said in filter(None, (config.objectives.undecided(is_evaluated=is_evaluated), idle)):
        logger.warning(said)
    network.say(config.interface, config.timeout_s)

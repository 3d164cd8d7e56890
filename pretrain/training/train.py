"""A training run, top to bottom: set up, then updates until the last.

    text -> shards -> (order, blanks, packing) -> batch -> objective -> loss terms -> update ->
    metrics, checkpoint

`data_pipeline` owns what stands left of the batch, `objectives` the loss, `engine` the weights;
this file only says in which order they meet. It knows no objective by name.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from data_pipeline.packing.loader import Batch, Place, training_batches
from pretrain.checkpoints import checkpoint, resume
from pretrain.checkpoints.retention import Retention
from pretrain.distributed.local_cache import local_sources
from pretrain.distributed.lost_ranks import lost_ranks_named, roll_called
from pretrain.distributed.stopping import StopRequests
from pretrain.distributed.world import World, join_world, leave_world
from pretrain.evaluate.while_training import evaluate, fill_texts
from pretrain.objectives.loss import Objective
from pretrain.recording.run_folder import RunFolder
from pretrain.recording.run_log import log_end, log_to_file
from pretrain.recording.status import note_failure
from pretrain.settings.cli import Start
from pretrain.settings.config import Config
from pretrain.settings.data_config import CorpusConfig
from pretrain.settings.schedule import learning_rate
from pretrain.settings.two_tokenizers import check_streams
from pretrain.training.corpora import Corpora, check_every_byte, open_corpora
from pretrain.training.metrics import Metrics
from pretrain.training.setup import Setup, identity_of, set_up
from pretrain.training.throughput import StepScalars, corpus_scalars, objective_scalars
from pretrain.training.update import MicroBatch, Update, apply_update, pass_over
from pretrain.training.watching import Watch

logger = logging.getLogger(__name__)


def run(config: Config, start: Start) -> str | None:
    """Train as `config` says, on the ranks that the environment describes.

    Returns why the run saved itself and stopped before its last step, or None where it is done.
    Raises ValueError for what the user can mend: missing shards, a wrong --resume or
    --init-from, sizes that do not fit.
    """
    world = join_world(config.timeout_s, config.interface, config.expected_ranks)
    with roll_called(world) as world, lost_ranks_named(world):
        stopped_by = run_in(world, config, start)
    leave_world()
    return stopped_by


def run_in(world: World, config: Config, start: Start) -> str | None:
    """`run` on ranks that have joined; they may run another one after it."""
    sources = local_sources(config.data, world)
    corpora = world.together(lambda: checked_corpora(config, sources))
    if config.data.verify == "hashes":
        check_every_byte(corpora, world)
    folder = RunFolder(Path(config.runs) / config.name)
    world.on_leader(folder.lock)
    if start.task:
        task = start.task
        world.on_leader(lambda: folder.note_task(task))
    log_file = world.together(lambda: log_to_file(folder.logs, world.rank))
    try:
        stopped_by = train(set_up(config, corpora, folder, start, world))
    except Exception as error:
        log_end(error)
        if world.leads:
            note_failure(folder.path, config.steps, error)
        raise
    folder.unlock()
    logging.getLogger().removeHandler(log_file)
    log_file.close()
    return stopped_by


def checked_corpora(config: Config, sources: tuple[CorpusConfig, ...] | None = None) -> Corpora:
    """The corpora of the run in `sources` (by default where the
    recipe says), their sizes compared with their manifests.

    Raises ValueError for damage, or where they lack what the recipe needs.
    """
    corpora = open_corpora(sources or config.data.sources)
    check_streams(config, [corpus.shards for corpus in corpora.corpora])
    if config.checkpoints.keep_best and not corpora.held_out():
        raise ValueError(
            f"checkpoints.keep_best needs held-out text, and {corpora.folders} has none. "
            "Prepare the shards with --validation 0.01, or leave out keep_best."
        )
    return corpora


def train(setup: Setup) -> str | None:
    """Go on from where `setup` stands; rank 0 keeps the record.

    Returns why all ranks agreed to save and stop early, or None.
    """
    record = setup.world.together(lambda: Metrics.of(setup) if setup.world.leads else None)
    if record:
        setup.world.before_end.append(record.fail)
    with record or nullcontext() as metrics, lost_ranks_named(setup.world):
        return updates(setup, metrics)


def updates(setup: Setup, metrics: Metrics | None) -> str | None:
    """Updates from the next to the last, with evaluations and checkpoints on the way."""
    config, world = setup.config, setup.world
    last = config.stop_at_step or config.steps
    if setup.owes_evaluation:
        logger.info("step %d: evaluated now, the run was asked to stop before it was", setup.step)
        evaluate(setup, setup.step, metrics)
        say_shares(setup, setup.step, setup.positions, metrics)
    else:
        # Also before the first step: a text the model cannot read ends the run now, not at night.
        fill_texts(setup, setup.step, metrics if setup.step == 0 else None)
    streams = {o.name: training_stream(setup, o) for o in setup.objectives}
    stops, scalars, watch = StopRequests(setup.folder.path, world), StepScalars(setup), Watch(setup)
    reason = None
    for step in range(setup.step + 1, last + 1):
        applied = setup.judge.updates
        lr = learning_rate(
            applied,
            peak=config.optimizer.lr,
            steps=config.steps,
            schedule=config.schedule,
        )
        watch.before(step)
        done, batches = take_step(setup, streams, step, lr, stops)
        found = watch.after(step, done.data_wait_s)
        if metrics:
            shares = setup.corpora.shares(batches[setup.objectives[0].name].position)
            said = done.skipped and setup.judge.in_words(done.skipped)
            found |= corpus_scalars(shares) | objective_scalars(setup.objectives, applied)
            metrics.step(step, scalars(done, lr) | found, said)
        setup.judge.stop_if_hopeless(step)
        reason = stops.agreed(done.votes) if step < last else None
        places = {name: batch.position for name, batch in batches.items()}
        held_out = None
        # Not at a stop_at_step of its own: evaluations are those of the run without the stop.
        is_due = _due(step, config.evaluation.every_steps, config.steps)
        if is_due and not reason:
            held_out = evaluate(setup, step, metrics)
            say_shares(setup, step, places, metrics)
            scalars.restart_clock()
        if _due(step, config.checkpoints.every_steps, last) or reason:
            state = resume.state(
                identity_of(setup), places, held_out, owes_evaluation=is_due and bool(reason)
            )
            save(setup, step, state, metrics, leaves=bool(reason) or step == last)
            scalars.restart_clock()
        if reason or step == last:
            watch.leave(step)
            break
    if metrics:
        metrics.finish(reason)
    return reason


def say_shares(
    setup: Setup, step: int, places: Mapping[str, Place], metrics: Metrics | None
) -> None:
    """Say what share of the text each corpus has given up to `places`, where there are several."""
    shares = setup.corpora.shares(places[setup.objectives[0].name])
    if metrics and shares:
        said = ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
        metrics.say(f"step {step} | text so far | {said} of the tokens")


def take_step(
    setup: Setup,
    streams: Mapping[str, Iterator[Batch]],
    step: int,
    lr: float,
    stops: StopRequests,
) -> tuple[Update, MicroBatch]:
    """Take the rows of `step` (from 1) and apply their update, unless there is a reason not to."""
    config, judge = setup.config, setup.judge
    if judge.is_named(step):
        done, batches = pass_over(setup.engine, setup.objectives, streams, votes=stops.votes)
    else:
        setup.move_at(step)
        done, batches = apply_update(
            setup.engine,
            setup.objectives,
            streams,
            lr=lr,
            seed=config.seed,
            step=step - 1,
            applied=judge.updates,
            judge=judge.of_loss,
            votes=stops.votes,
        )
    if done.skipped is None and setup.turns:
        setup.turns.note(done.loss(setup.objectives))
    clipping = config.optimizer.gradient_clipping
    judge.count(
        skipped=done.skipped,
        rows=config.batch.global_rows * len(setup.objectives),
        clipped=0 < clipping < (done.gradient_norm or 0.0),
    )
    return done, batches


def training_stream(setup: Setup, objective: Objective) -> Iterator[Batch]:
    """The batches of this rank for `objective`, endless, from where `setup` stands."""
    return training_batches(
        setup.corpora.train,
        setup.transforms[objective.name],
        setup.config.data.packing,
        seed=setup.config.seed,
        rank=setup.world.rank,
        world_size=setup.world.world_size,
        micro_rows=setup.config.batch.micro_rows,
        accumulation=setup.engine.accumulation,
        start=setup.positions[objective.name],
        num_workers=setup.config.data.num_workers,
    )


def save(
    setup: Setup,
    step: int,
    state: dict[str, Any],
    metrics: Metrics | None,
    *,
    leaves: bool,
) -> None:
    """A checkpoint after `step`, with the metrics on disk before it claims the step.

    state: of the data; what the judge and the objectives keep joins it. leaves: the run ends with
    it, so that a full disk is an error whatever the recipe says.
    """
    rules = setup.config.checkpoints
    try:
        folder = checkpoint.save(
            setup.engine,
            setup.folder.checkpoints,
            update=step,
            before=metrics.flush if metrics else lambda: None,
            state=state
            | {"judge": setup.judge.state(step)}
            | {"alarms": {o.name: o.alarm.state() for o in setup.objectives if o.alarm}}
            | {"turns": setup.turns.state() if setup.turns else {}},
            retention=Retention(rules.keep_last, rules.keep_every, rules.keep_best),
        )
    except checkpoint.DiskFullError as problem:
        if leaves or rules.on_disk_full == "stop":
            raise
        logger.error("%s The run goes on (checkpoints.on_disk_full: continue).", problem)
        return
    if metrics:
        metrics.saved(step, folder)


def _due(step: int, every_steps: int, last: int) -> bool:
    return step == last or (every_steps > 0 and step % every_steps == 0)

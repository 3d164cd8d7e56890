"""What a run measures of itself on the way: held-out loss, latent spaces, written texts.

All ranks take part; rank 0 records.
"""

import logging
from collections.abc import Iterator

from data_pipeline.packing.loader import Batch, validation_batches
from pretrain.evaluate.held_out import held_out_nats, mean_nats, minimised
from pretrain.evaluate.latent import held_out_latents
from pretrain.evaluate.latent_samples import latent_samples
from pretrain.evaluate.samples import filled_texts
from pretrain.objectives.latent import LatentObjective
from pretrain.settings.mistakes import AgreedError
from pretrain.training.corpora import Corpus
from pretrain.training.metrics import HELD_OUT, Metrics
from pretrain.training.setup import Setup
from pretrain.training.throughput import tag_name

logger = logging.getLogger(__name__)


def evaluate(setup: Setup, step: int, metrics: Metrics | None) -> float | None:
    """Held-out loss and filled texts after `step`; all ranks take part, rank 0 records.

    Returns what a training on the validation split would minimise, in nats; None without one.
    """
    held_out = None
    corpora = setup.corpora.held_out()
    nats_of = {
        c.name: held_out_nats(setup.engine, setup.objectives, held_out_batches(setup, c))
        for c in corpora
    }
    if corpora:
        nats = mean_nats(nats_of, {c.name: c.weight for c in corpora})
        held_out = minimised(setup.objectives, nats)
        if metrics:
            named = nats_of if setup.corpora.is_mixed else {}
            tags = {f"{name}_{t}": n for name, terms in named.items() for t, n in terms.items()}
            scalars = {f"validation/{tag_name(t)}_nats": n for t, n in (nats | tags).items()}
            total = {} if held_out is None else {HELD_OUT: held_out}
            metrics.evaluation(step, total | scalars)
        report_latents(setup, step, metrics)
        show_latents(setup, step, metrics, corpora[0])
    elif metrics:
        metrics.say(f"step {step} | no validation split in {setup.corpora.folders}, none evaluated")
    fill_texts(setup, step, metrics)
    return held_out


def report_latents(setup: Setup, step: int, metrics: Metrics | None) -> None:
    """What the texts just evaluated say about each latent space; all ranks take part."""
    for objective in setup.objectives:
        if objective.health is None:
            continue
        found = held_out_latents(objective.health, setup.world)
        if metrics and found:
            tag = f"validation/{objective.name}"
            metrics.evaluation(step, {f"{tag}_{n}": value for n, value in found.scalars.items()})
            metrics.histogram(step, f"{tag}_kl_by_dimension_nats", found.kl_by_dimension)
        if objective.turns and found and (said := objective.turns.note_evaluation(found.scalars)):
            logger.info("step %d, %s: %s", step, objective.name, said)
        if objective.alarm and found and (said := objective.alarm.note(found.scalars)):
            if objective.alarm.stops:
                raise AgreedError(
                    f"step {step}, {objective.name}: {said}. The run ends, as "
                    "elbo.alarm.action: stop asks for; its checkpoints stay."
                )
            if metrics:
                logger.warning("step %d, %s: %s", step, objective.name, said)


def show_latents(setup: Setup, step: int, metrics: Metrics | None, corpus: Corpus) -> None:
    """Held-out texts of `corpus` written again from their z, texts from the prior, and where they
    lie; to TensorBoard. All ranks take part."""
    if not setup.config.evaluation.latent_texts:
        return
    for objective in setup.objectives:
        if not isinstance(objective, LatentObjective):
            continue
        shown = latent_samples(setup, objective, corpus.shards.splits["validation"])
        if metrics:
            name = objective.name
            metrics.text(step, f"samples/{name}_reconstructions", shown.reconstructions)
            metrics.text(step, f"samples/{name}_prior", shown.prior)
            metrics.projector(step, name, shown.mu_NZ, shown.labels)


def held_out_batches(setup: Setup, corpus: Corpus) -> dict[str, Iterator[Batch]]:
    """This rank's batches of the validation split of `corpus`, by objective."""
    return {
        o.name: validation_batches(
            corpus.shards.splits["validation"],
            setup.transforms[o.name],
            setup.config.data.packing,
            seed=setup.config.seed,
            rank=setup.world.rank,
            world_size=setup.world.world_size,
            micro_rows=setup.config.batch.micro_rows,
            max_rows=setup.config.evaluation.max_rows,
        )
        for o in setup.objectives
    }


def fill_texts(setup: Setup, step: int, metrics: Metrics | None) -> None:
    """The config's texts with their blanks filled by the model after `step`, to TensorBoard."""
    if setup.config.evaluation.texts:
        text = filled_texts(setup)
        if metrics:
            metrics.text(step, "samples/filled_text", text)

"""Importance-weighted evaluation with 100 draws of z a sentence, ours beside loops over sentences.

All read the same model (Optimus), the same sentences of some 10 to 30 tokens and the same noise, on
one thread and, in the whole run, on two, as `evaluate --latent` does on a machine of two cores (it
leaves torch its own number of threads). The loops do what a plain evaluation does, one sentence
after the other: read it, then write it beside one draw at a time, or beside 5 at a time as the
published code has it (20 times 5), with the scores of every position.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from bench.sentences import SOURCE_TOKENS, sentence_lengths
from bench.sizes import SIZES
from bench.table import Row, rate_row
from bench.texts import invented_split, special_ids
from bench.timing import take_turns
from bench.vae import model_of, optimus_objective
from kernels.visibility import Visibility
from pretrain.evaluate.bound import bound_nats, log_ratio, repeated, text_bounds
from pretrain.latent.rows import TextRows
from pretrain.models.latent import Posterior
from pretrain.objectives.decoding import BackboneDecoder
from pretrain.objectives.latent import LatentObjective
from pretrain.objectives.latent_inputs import noise_of
from pretrain.objectives.loss import ObjectiveModel

SAMPLES = 100
SENTENCES = {"S": 4, "B": 1}
LOOPS = {"one draw at a time": 1, "20 times 5 draws": 5}
GOAL = 5.0


def bound_rows(name: str, quick: bool) -> list[Row]:
    """Draws of z a second, of size `name`, on one thread and on two."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1,) if quick else (1, 2):
            torch.set_num_threads(threads)
            found += _rows(name, threads, quick)
    finally:
        torch.set_num_threads(before)
    return found


def _rows(name: str, threads: int, quick: bool) -> list[Row]:
    size, objective = SIZES[name], optimus_objective(SIZES[name])
    model, special = model_of(size, objective).eval(), special_ids(size.vocab_size)
    transform = objective.transform(
        special, source_tokens=SOURCE_TOKENS, vocab_size=size.vocab_size
    )
    split = invented_split(sentence_lengths()[: SENTENCES[name]], size.vocab_size)
    rows = TextRows(split, transform, seed=3, source_tokens=SOURCE_TOKENS)
    found: dict[str, torch.Tensor] = {}

    def ours() -> None:
        texts = text_bounds(model, objective, rows, samples=SAMPLES, vocab_size=size.vocab_size)
        found["ours"] = texts.iw_nats

    contestants: dict[str, Callable[[], object]] = {"ours": ours}
    for loop, draws in LOOPS.items():

        def run(loop: str = loop, draws: int = draws) -> None:
            found[loop] = _by_sentence(model, objective, rows, draws)

        contestants[loop] = run
    times = take_turns(contestants, rounds=1 if quick else 3)
    for loop in LOOPS:
        assert torch.allclose(found[loop], found["ours"], rtol=1e-4), "all compute the same bounds"
    work = float(len(rows) * SAMPLES)
    return [
        rate_row(
            f"bound_{name}_K{SAMPLES}{'' if threads == 1 else f'_{threads}threads'}",
            f"a loop over sentences, {loop}",
            (times["ours"], times[loop]),
            (work, work),
            "draws/s",
            GOAL if draws == 1 else None,
        )
        for loop, draws in LOOPS.items()
    ]


@torch.no_grad()
def _by_sentence(
    model: ObjectiveModel, objective: LatentObjective, rows: TextRows, draws: int
) -> torch.Tensor:
    """The bounds of all sentences, computed one by one."""
    bounds = []
    for number in range(len(rows)):
        batch = rows.batch(np.array([number]))
        inputs = objective.inputs(batch)
        posterior = Posterior(*(t[:, 0] for t in objective.encode(model, inputs)))
        each = Posterior(*(t[:, None] for t in posterior))
        noise = noise_of(batch, SAMPLES * each.mu.shape[-1])[:, 0].unflatten(-1, (SAMPLES, -1))
        parts = [
            _written(model, objective, repeated(inputs, draws), z_1SZ[0])
            for z_1SZ in each.sample(noise).split(draws, 1)
        ]
        bounds.append(bound_nats(torch.cat(parts)[None], log_ratio(each, noise)))
    return torch.cat(bounds)


def _written(
    model: ObjectiveModel, objective: LatentObjective, rows: dict[str, Any], z_SZ: torch.Tensor
) -> torch.Tensor:
    """-log p(x | z) of one sentence for some draws, with the scores of every position: (S,)."""
    visibility = Visibility(rows["lo"], rows["hi"], rows["document"])
    decoder = objective.decoder(model, z_SZ[:, None])
    assert isinstance(decoder, BackboneDecoder)
    read = decoder.injected._asdict()
    hidden = model.backbone(rows["ids"], rows["positions"], visibility, **read)
    scores_STV = model.backbone.logits(hidden)[:, :-1]
    targets_ST = rows["ids"][:, 1:].long()
    nats = F.cross_entropy(scores_STV.flatten(0, 1), targets_ST.flatten(), reduction="none")
    return nats.view(len(z_SZ), -1).sum(1)

"""The step of a latent model on sentences of 10 to 30 tokens, on one rank and one thread.

Optimus beside BertModel + GPT2LMHeadModel of transformers, equal in size: we pack sentences into
rows and compute logits at targets, they pad them. Tokens are those that are no padding. The shares
of sgemm count the work that these tokens need, not what is done on padding: model FLOP utilisation.
AdaVAE beside training all of the same model: time a step, and memory in processes of their own.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch

from bench.latent_peers import PaddedVae
from bench.peers import adamw, gradients_of
from bench.sentences import SOURCE_TOKENS, packed_batches, padded_batches, sentence_lengths
from bench.sizes import SIZES, Size, engine_of
from bench.step import SGEMM, SGEMM_REPEATS, sgemm, sum_of
from bench.table import Row, rate_row
from bench.texts import special_ids
from bench.timing import Times, take_turns
from data_pipeline.packing.loader import Batch
from pretrain.distributed.world import World, join_world, leave_world
from pretrain.models.backbone import Backbone
from pretrain.models.flop import training_flop
from pretrain.models.shape import BackboneShape
from pretrain.objectives.latent import LatentObjective
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.optimus import Optimus
from pretrain.objectives.select import parts_of
from pretrain.settings.latent_config import BERT_BASE, OptimusConfig
from pretrain.training.update import Update, apply_update

GOAL = 2.0
SENTENCES = {"S": 64, "B": 32}  # of a peer's batch
ROWS = {"S": 6, "B": 3}  # of 256 tokens: about as many sentences
ROW_TOKENS = 256
NUM_BATCHES = 4


def vae_rows(name: str, quick: bool) -> list[Row]:
    """The rows of size `name`, S or B."""
    world = join_world(timeout_s=600)
    try:
        return _rows(SIZES[name], world, quick)
    finally:
        leave_world()


def decoder_shape(size: Size) -> BackboneShape:
    """GPT-2 of a size, whose positions begin behind a slot."""
    return replace(size.shape, block_positions=False, max_positions=SOURCE_TOKENS + 1)


def optimus_objective(size: Size) -> LatentObjective:
    """Optimus with an encoder of BERT's form and the decoder's size, beta at 1."""
    sizes = {name: getattr(size, name) for name in ("num_layers", "hidden_size", "num_heads")}
    encoder = replace(BERT_BASE, **sizes, dropout_prob=0.0, attention_dropout_prob=0.0)
    return LatentObjective(Optimus(OptimusConfig(weight=1.0, encoder=encoder)), steps=1000)


def model_of(size: Size, objective: LatentObjective) -> ObjectiveModel:
    """A decoder and what the objective adds to it."""
    shape = decoder_shape(size)
    backbone = Backbone(
        shape,
        vocab_size=size.vocab_size,
        num_positions=SOURCE_TOKENS + 1,
        generator=torch.Generator().manual_seed(1),
    )
    parts = parts_of(
        [objective],
        shape,
        vocab_size=size.vocab_size,
        source_tokens=SOURCE_TOKENS,
        seed=1,
    )
    return ObjectiveModel(backbone, parts)


def packed_sentences(size: Size, objective: LatentObjective) -> list[Batch]:
    """Micro-batches of a size, as training takes them."""
    transform = objective.transform(
        special_ids(size.vocab_size), source_tokens=SOURCE_TOKENS, vocab_size=size.vocab_size
    )
    return packed_batches(
        transform, size.vocab_size, rows=ROWS[size.name], row_tokens=ROW_TOKENS, count=NUM_BATCHES
    )


def our_step(
    size: Size, world: World, objective: LatentObjective, done: list[Update]
) -> Callable[[], None]:
    """The step that a run takes, on packed sentences; what it did is added to `done`."""
    engine = engine_of(size, ROWS[size.name], world, lambda: model_of(size, objective))
    stream, updates = itertools.cycle(packed_sentences(size, objective)), itertools.count()

    def run() -> None:
        update, _ = apply_update(
            engine, [objective], {objective.name: stream}, lr=1e-4, seed=1, step=next(updates)
        )
        done.append(update)

    return run


def _rows(size: Size, world: World, quick: bool) -> list[Row]:
    done: list[Update] = []
    contestants: dict[str, Callable[[], object]] = {
        "ours": our_step(size, world, optimus_objective(size), done)
    }
    peer = PaddedVae(size, OptimusConfig().latent.size)
    tokens: dict[str, list[float]] = {}
    for kind in ("as drawn",) if quick else ("as drawn", "by length"):
        stream = padded_batches(
            size.vocab_size, sentences=SENTENCES[size.name], by_length=kind == "by length"
        )
        tokens[kind] = []

        def loss(kind: str = kind, stream=stream) -> torch.Tensor:
            ids_BT, mask_BT = next(stream)
            tokens[kind].append(float(mask_BT.sum()))
            return peer(ids_BT, mask_BT)

        contestants[kind] = gradients_of(peer, loss)
    contestants |= {"AdamW": adamw(peer, fused=False).step, "sgemm": sgemm()}
    rounds = (3 if size.name == "S" else 2) if quick else {"S": 9, "B": 4}[size.name]
    times = take_turns(contestants, rounds=rounds)
    ours = _mean([update.tokens for update in done[1:]])
    rows = [
        rate_row(
            f"vae_step_{size.name}_1rank",
            f"transformers BERT + GPT-2, {SENTENCES[size.name]} sentences {kind}",
            (times["ours"], sum_of(times, (kind, "AdamW"))),
            (ours, _mean(found[1:])),
            "tokens/s",
            GOAL if kind == "as drawn" else None,
        )
        for kind, found in tokens.items()
    ]
    flop = flop_a_token(size)
    shares = {
        f"vae_sgemm_share_{size.name}": (times["ours"], ours),
        f"vae_sgemm_share_{size.name}_transformers": (
            sum_of(times, ("as drawn", "AdamW")),
            _mean(tokens["as drawn"][1:]),
        ),
    }
    return rows + [
        _share(bench, spent, of * flop, times["sgemm"]) for bench, (spent, of) in shares.items()
    ]


def flop_a_token(size: Size) -> float:
    """FLOP that one token of a sentence needs in encoder and decoder, forward and backward."""
    lengths_N = sentence_lengths() + 2.0
    counts = {"vocab_size": size.vocab_size, "tokens": float(lengths_N.sum())}
    encoder = training_flop(
        size.shape, **counts, visible_pairs=float((lengths_N**2).sum()), targets=0.0
    )
    decoder = training_flop(
        size.shape,
        **counts,
        visible_pairs=float((lengths_N * (lengths_N + 1) / 2 + lengths_N).sum()),  # and the slot
        targets=float((lengths_N - 1).sum()),
    )
    return (encoder + decoder) / counts["tokens"]


def _share(bench: str, spent: Times, flop: float, of_sgemm: Times) -> Row:
    m, k, n = SGEMM
    return rate_row(
        bench,
        "sgemm " + "x".join(map(str, SGEMM)),
        (spent, of_sgemm),
        (flop / 1e9, SGEMM_REPEATS * 2 * m * k * n / 1e9),
        "GFLOP/s",
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)

"""Held-out nats per blank token: the model beside two baselines, on exactly the same targets.

Every document of the validation split is packed and blanked as in training, token-level blanks
([MASK]) throughout. A target is one token of a blank, or the end of the blank.

    with end      all targets; both baselines are given the rate of ends (ngram.py)
    without end   the tokens of blanks, given that the blank does not end there: the baselines know
                  no end, and the model's probabilities are divided by 1 - p(end)
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from data_pipeline.packing.loader import Batch, validation_batches
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.rows import PackedRows
from data_pipeline.storage.shards import Shards, Split
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank import BlankConfig
from demo.ngram import Bigram, Unigram, count_bigram, count_unigram, with_end
from pretrain.filling.unpacked import hidden_states
from pretrain.models.backbone import Backbone
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.loss import Objective

MICRO_ROWS = 16


@dataclass(frozen=True)
class Targets:
    """N held-out targets, what stands left of each, and what the model gave them."""

    token_N: NDArray[np.int64]
    left_N: NDArray[np.int64]  # -1 where it is no text: a special token, or the start of a piece
    is_end_N: NDArray[np.bool_]
    model_nats_N: NDArray[np.float64]
    model_end_prob_N: NDArray[np.float64]  # what the model gave to the end of the blank there


@dataclass(frozen=True)
class Comparison:
    """Mean nats per target of the model and both baselines, with the ends of blanks and without."""

    with_end: dict[str, float]
    without_end: dict[str, float]
    num_targets: int
    end_rate: float


def compare(
    backbone: Backbone, shards: Shards, blanks: BlankConfig, packing: PackingConfig, *, seed: int
) -> Comparison:
    """The model of `backbone` beside baselines counted on the training split of `shards`.

    blanks: the run's; its kinds of blank are set aside for token-level ones.
    Raises ValueError where the validation split holds no document.
    """
    if not shards.splits["validation"].num_documents:
        raise ValueError(
            f"{shards.folder} has no validation documents; prepare it with --validation 0.1."
        )
    objective = GlmObjective(token_level(blanks))
    transform = objective.transform(
        shards.special, source_tokens=packing.source_tokens, vocab_size=shards.vocab_size
    )
    batches = validation_batches(
        shards.splits["validation"], transform, packing, seed=seed, rank=0, world_size=1,
        micro_rows=MICRO_ROWS,
    )  # fmt: skip
    targets = held_out_targets(backbone, objective, batches, shards.special)
    tokens, starts = training_tokens(shards.splits["train"])
    return compared(
        targets,
        count_unigram(tokens, shards.vocab_size),
        count_bigram(tokens, starts, shards.vocab_size),
    )


def token_level(blanks: BlankConfig) -> BlankConfig:
    """`blanks` with token-level blanks alone, their inputs left as they are."""
    return replace(
        blanks,
        token_prob=1.0,
        sentence_prob=0.0,
        document_prob=0.0,
        single_span_prob=0.0,
        block_mask_prob=0.0,
    )


def held_out_targets(
    backbone: Backbone, objective: Objective, batches: Iterable[Batch], special: SpecialIds
) -> Targets:
    """Every target of `batches`, with the model's nats."""
    token, left, nats, end_prob = [], [], [], []
    backbone.eval()
    with torch.inference_mode():
        for batch in batches:
            inputs = objective.inputs(batch)
            if not len(inputs["targets"]):
                continue
            hidden_BTD = hidden_states(backbone, packed_rows(batch))
            hidden_ND = hidden_BTD.flatten(0, 1)[inputs["target_index"]]
            log_probs_NV = backbone.logits(hidden_ND).float().log_softmax(dim=-1).double()
            token.append(inputs["targets"].numpy())
            left.append(left_neighbours(batch, inputs["target_index"].numpy(), special))
            chosen_N = log_probs_NV.gather(1, inputs["targets"][:, None])[:, 0]
            nats.append(-chosen_N.numpy())
            end_prob.append(log_probs_NV[:, special.eop].exp().numpy())
    token_N = np.concatenate(token)
    return Targets(
        token_N=token_N,
        left_N=np.concatenate(left),
        is_end_N=token_N == special.eop,
        model_nats_N=np.concatenate(nats),
        model_end_prob_N=np.concatenate(end_prob),
    )


def packed_rows(batch: Batch) -> PackedRows:
    """The arrays of a loader's batch."""
    position, block_position = batch.positions.numpy().transpose(1, 0, 2)
    same = ("ids", "targets", "weights", "kind", "document", "lo", "hi")
    return PackedRows(
        position=position,
        block_position=block_position,
        **{name: getattr(batch, name).numpy() for name in same},
    )


def left_neighbours(
    batch: Batch, index_N: NDArray[np.int64], special: SpecialIds
) -> NDArray[np.int64]:
    """The token left of each target in the text; -1 where that is special.

    index_N: b x T + t of each target. Inside a blank the neighbour is the input at the target's
    place. The first token of a blank reads sop there: its neighbour is the one left of the mask in
    part A, whose place in the row is the start of the document + the position - 1.
    """
    ids = batch.ids.numpy().astype(np.int64)
    row_N, column_N = np.divmod(index_N, ids.shape[1])
    here_N = ids[row_N, column_N]
    start_N = batch.lo.numpy()[row_N, column_N]
    position_N = batch.positions.numpy()[row_N, 0, column_N]
    before_N = ids[row_N, np.maximum(start_N + position_N - 1, start_N)]
    left_N = np.where(here_N == special.sop, before_N, here_N)
    return np.where(np.isin(left_N, list(special.by_name().values())), -1, left_N)


def training_tokens(split: Split) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """All tokens of `split` end to end, and where each document starts."""
    documents = np.arange(split.num_documents)
    lengths_N = split.lengths(documents)
    tokens = split.tokens(documents, np.zeros_like(lengths_N), lengths_N)
    starts_N = np.cumsum(lengths_N) - lengths_N
    return tokens, starts_N[lengths_N > 0]


def compared(targets: Targets, unigram: Unigram, bigram: Bigram) -> Comparison:
    """The three means, with and without the ends of blanks."""
    is_end_N = targets.is_end_N
    end_rate = float(is_end_N.mean())
    counted = {
        "unigram": unigram.nats(targets.token_N),
        "bigram": bigram.nats(targets.left_N, targets.token_N),
    }
    going_on = targets.model_nats_N + np.log1p(-targets.model_end_prob_N)
    token_nats = {"model": going_on, **counted}
    all_nats = {"model": targets.model_nats_N}
    all_nats |= {name: with_end(n, is_end_N, end_rate) for name, n in counted.items()}
    return Comparison(
        with_end={name: float(n.mean()) for name, n in all_nats.items()},
        without_end={name: float(n[~is_end_N].mean()) for name, n in token_nats.items()},
        num_targets=len(is_end_N),
        end_rate=end_rate,
    )

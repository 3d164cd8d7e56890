"""Nats per target and the truth of single blanks, against sums over whole distributions."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_pipeline.transforms.blank import BlankConfig
from kernels.visibility import Visibility, single_documents
from pretrain.evaluate.likelihood import Nats, nats_per_target, score_blanks


def random_batch(seed: int) -> SimpleNamespace:
    """Three rows of 17 positions with targets of all kinds, one in four an end."""
    generator = torch.Generator().manual_seed(seed)
    lengths, seps = torch.tensor([17, 9, 13]), torch.tensor([8, 4, 0])
    visibility = single_documents(lengths, seps, 17)
    inside = torch.arange(17) < lengths[:, None]
    has_target = (torch.rand(3, 17, generator=generator) < 0.5) & inside
    targets = torch.randint(0, 26, (3, 17), generator=generator)
    targets[torch.rand(3, 17, generator=generator) < 0.25] = 33
    return SimpleNamespace(
        ids=torch.randint(0, 26, (3, 17), generator=generator),
        positions=torch.randint(0, 33, (3, 2, 17), generator=generator),
        targets=targets,
        weights=has_target.float(),
        kind=torch.randint(1, 4, (3, 17), generator=generator) * has_target,
        document=visibility.document,
        lo=visibility.lo,
        hi=visibility.hi,
    )


@torch.no_grad()
def test_sums_equal_brute_force_by_kind_and_without_the_end(untrained):
    batches = [random_batch(seed) for seed in range(3)]
    nats = nats_per_target(untrained, batches, end_id=33)
    expected = {}
    for batch in batches:
        visibility = Visibility(batch.lo, batch.hi, batch.document)
        log_probs = untrained.logits(untrained(batch.ids, batch.positions, visibility)).log_softmax(
            -1
        )
        for b, t in batch.weights.nonzero().tolist():
            target = int(batch.targets[b, t])
            loss = -log_probs[b, t, target].item()
            kind = ("none", "token", "sentence", "document")[batch.kind[b, t]]
            for name in ("total", kind):
                for ending in ("", "_without_end"):
                    if not (ending and target == 33):
                        expected.setdefault(name + ending, []).append(loss)
    assert nats.keys() == expected.keys()
    for name, losses in expected.items():
        assert nats[name].count == len(losses)
        assert nats[name].sum == pytest.approx(sum(losses), rel=1e-6)
        assert nats[name].mean == pytest.approx(np.mean(losses), rel=1e-6)


def test_no_target_at_all_is_a_count_of_zero(untrained):
    batch = random_batch(0)
    batch.weights.zero_()
    nats = nats_per_target(untrained, [batch], end_id=33)
    assert nats == {"total": Nats(0.0, 0.0), "total_without_end": Nats(0.0, 0.0)}
    assert math.isnan(nats["total"].mean)


@torch.no_grad()
def test_the_truth_is_scored_as_training_reads_it(untrained, words):
    """Row written out: CLS a M c M eos, sop b, sop d e; the second blank knows the first."""
    special = words.special
    ids = [special.cls, 0, special.mask, 2, special.smask, special.eos]
    ids += [special.sop, 1, special.sop, 3, 4]
    positions = [[0, 1, 2, 3, 4, 5, 2, 2, 4, 4, 4], [0, 0, 0, 0, 0, 0, 1, 2, 1, 2, 3]]
    visibility = single_documents(torch.tensor([11]), torch.tensor([6]), 11)
    hidden = untrained(torch.tensor([ids]), torch.tensor([positions]), visibility)
    probs = untrained.logits(hidden[0]).softmax(-1)

    (scores,) = score_blanks(untrained, words, [("a [MASK] c [sMASK]", ["b", "d e"])])
    assert [len(blank.tokens) for blank in scores] == [1, 2]
    places = [(6, 1), (8, 3), (9, 4)]
    for token, (place, truth) in zip([t for b in scores for t in b.tokens], places, strict=True):
        row = probs[place]
        assert token.piece == words.pieces([truth])[0]
        assert token.prob == pytest.approx(row[truth].item(), rel=1e-4)
        assert token.rank == 1 + int((row > row[truth]).sum())
        best = row[:26].topk(3)
        assert [c.piece for c in token.candidates] == words.pieces(best.indices.tolist())
        assert [c.prob for c in token.candidates] == pytest.approx(best.values.tolist(), rel=1e-4)
    assert scores[0].end_prob == pytest.approx(probs[7, special.eop].item(), rel=1e-4)
    assert scores[1].end_prob == pytest.approx(probs[10, special.eop].item(), rel=1e-4)
    assert scores[1].prob == pytest.approx((probs[8, 3] * probs[9, 4]).item(), rel=1e-4)
    assert scores[1].nats == pytest.approx(-math.log(scores[1].prob))


def test_a_trained_model_ranks_the_truth_first(alphabet, words):
    texts = [
        ("a b [MASK] d e [MASK] h i j", ["c", "f g"]),
        ("f g [MASK] j k [MASK] m n", ["h i", "l"]),
    ]
    for blanks in score_blanks(alphabet, words, texts, blanks=BlankConfig()):
        for blank in blanks:
            assert all(token.rank == 1 for token in blank.tokens)
            assert blank.prob > 0.7
            assert blank.end_prob > 0.7


def test_texts_of_different_lengths_do_not_disturb_each_other(untrained, words):
    texts = [("a [MASK] c", ["b"]), ("a b c d e f g [MASK] i [MASK]", ["h", "j k l"])]
    together = score_blanks(untrained, words, texts)
    alone = [score_blanks(untrained, words, [text])[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert [b.nats for b in one] == pytest.approx([b.nats for b in other], rel=1e-4)


def test_a_truth_for_every_blank_is_asked_for(untrained, words):
    with pytest.raises(ValueError, match="has 2 blanks, got 1 truths"):
        score_blanks(untrained, words, [("a [MASK] c [MASK]", ["b"])])

"""Which tokens are blanked: the published sampler's statistics, its defects put right, edges."""

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data_pipeline import hashing, ragged
from data_pipeline.rows import KINDS, Pieces
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms import blank_build, blank_draw
from data_pipeline.transforms.blank import BlankConfig, BlankPlan, BlankTransform
from data_pipeline.transforms.sentence_spans import sentence_spans
from data_pipeline.transforms.span_lengths import SpanLengths

GOLDEN_DIR = Path(__file__).parents[1] / "golden/glm"
STATS = json.loads((GOLDEN_DIR / "sampler_stats.json").read_text())
BLOCKS = json.loads((GOLDEN_DIR / "data_blocks.json").read_text())
SPECIAL = SpecialIds(100, 100, 102, 103, 101, 104, 105, 106, 107, 108, 109)
TOKEN, SENTENCE, DOCUMENT, SINGLE = range(1, 5)


def pieces_of(lengths, *, prompts=None, ends_document=True, sentence_ends=None) -> Pieces:
    """Pieces of whole documents: `lengths` stored tokens each."""
    stop_N = np.asarray(lengths, np.int64)
    ends = sentence_ends if sentence_ends is not None else [[] for _ in stop_N]
    return Pieces(
        document_N=np.arange(len(stop_N)),
        start_N=np.zeros(len(stop_N), np.int64),
        stop_N=stop_N,
        prompt_N=np.zeros(len(stop_N), np.int64) if prompts is None else np.asarray(prompts),
        ends_document_N=np.full(len(stop_N), ends_document),
        sentence_ends=np.array([end for each in ends for end in each], np.int64),
        sentence_offsets_N1=ragged.offsets(np.array([len(each) for each in ends], np.int64)),
    )


def draw(pieces: Pieces, *, seed=1, max_row_tokens=10_000, **settings) -> BlankPlan:
    config = BlankConfig(**settings)
    transform = BlankTransform(config, SPECIAL, source_tokens=512, vocab_size=128)
    keys_N = hashing.key(seed, 0, pieces.document_N, pieces.start_N)
    return transform.draw(pieces, keys_N, np.full(len(pieces), max_row_tokens))


def spans_of(plan: BlankPlan, i: int) -> list[tuple[int, int]]:
    """The spans [start, stop) of piece i in target order."""
    own = slice(*plan.span_offsets_N1[i : i + 2])
    return [(int(a), int(a + n)) for a, n in zip(plan.start_S[own], plan.length_S[own])]


def mask_ratios(plan: BlankPlan) -> np.ndarray:
    return ragged.sums(plan.length_S, plan.span_offsets_N1) / plan.source_lengths_N


def assert_same_mean(ours, published_mean: float, published_std: float, num: int, sigmas=4.0):
    """Two samples of `num` values have the same mean within `sigmas` standard errors."""
    standard_error = published_std * math.sqrt(2 / num)
    assert abs(np.mean(ours) - published_mean) < sigmas * standard_error


# ---------------------------------------------------------------- span lengths


def zero_truncated_poisson(mean: float, longest: int) -> np.ndarray:
    weights = [math.exp(-mean) * mean**k / math.factorial(k) for k in range(1, longest + 1)]
    return np.array(weights) / sum(weights)


def test_span_lengths_follow_the_published_theory():
    published = STATS["theory"]["zero_truncated_poisson3"]
    probs = SpanLengths(3.0, 39).probs
    for length, share in published.items():
        assert probs[int(length) - 1] == pytest.approx(share, abs=1e-6)
    assert SpanLengths(3.0, 39).mean == pytest.approx(STATS["theory"]["mean"], abs=1e-12)


@pytest.mark.parametrize(
    ("mean", "longest"), [(3.0, 39), (0.3, 1), (8.0, 5), (12.0, 64), (1.0, 65)]
)
def test_span_lengths_are_a_truncated_poisson(mean, longest):
    num = 400_000
    keys = hashing.key(3, 0, np.arange(num), np.zeros(num, np.int64))
    drawn = SpanLengths(mean, longest)(hashing.draws(keys, 0))
    expected = zero_truncated_poisson(mean, longest) * num
    counts = np.bincount(drawn, minlength=longest + 1)[1:]
    assert len(counts) == longest
    assert drawn.min() >= 1
    common = expected >= 5
    rest = expected[~common].sum(), counts[~common].sum()
    chi2 = ((counts - expected)[common] ** 2 / expected[common]).sum()
    chi2 += (rest[1] - rest[0]) ** 2 / rest[0] if rest[0] > 0.5 else 0.0
    # chi-square with df degrees of freedom: mean df, variance 2 df
    df = common.sum()
    assert chi2 < df + 4 * math.sqrt(2 * df)


def test_every_table_entry_adds_up_to_the_exact_probability():
    lengths = SpanLengths(3.0, 39)
    threshold = lengths._threshold.astype(np.float64) / 2**32
    probs = np.zeros(64 + 1)
    np.add.at(probs, lengths._below, threshold / 64)
    np.add.at(probs, lengths._above, (1 - threshold) / 64)
    np.testing.assert_allclose(probs[1:40], zero_truncated_poisson(3.0, 39), atol=1e-9)
    assert probs[0] == 0
    assert (probs[40:] < 1e-12).all()


# ---------------------------------------------------------------- token level


@pytest.mark.golden
@pytest.mark.parametrize(("name", "tokens"), [("token_512", 512), ("token_128", 128)])
def test_token_level_has_the_published_statistics(name, tokens):
    published, num = STATS[name], 20_000
    plan = draw(pieces_of(np.full(num, tokens - 2)))
    ratio = mask_ratios(plan)
    assert_same_mean(ratio, published["mask_ratio_mean"], published["mask_ratio_std"], num)
    assert np.std(ratio) == pytest.approx(published["mask_ratio_std"], rel=0.03)
    assert ratio.min() == published["mask_ratio_min"]  # the budget, reached exactly
    assert ratio.max() <= published["mask_ratio_max"] + 4 / tokens
    std = published["n_spans_std"]
    assert_same_mean(plan.num_spans_N, published["n_spans_mean"], std, num)
    assert np.std(plan.num_spans_N) == pytest.approx(std, rel=0.03)
    assert_same_mean(plan.row_lengths_N, published["built_seq_len_mean"], 2 * std, num)
    octiles = np.bincount(plan.start_S * 8 // tokens, minlength=8) / len(plan.start_S)
    np.testing.assert_allclose(octiles, published["start_density_octiles"], atol=4e-3)


@pytest.mark.golden
def test_drawn_spans_have_the_published_histogram():
    plan = draw(pieces_of(np.full(20_000, 510)))
    probs = zero_truncated_poisson(3.0, 39)
    num = len(plan.length_S)
    counts = np.bincount(plan.length_S, minlength=40)[1:11]
    sigma = np.sqrt(num * probs[:10])
    assert (np.abs(counts - num * probs[:10]) < 4 * sigma).all()
    for length, share in STATS["token_512"]["span_len_frac"].items():
        assert np.mean(plan.length_S == int(length)) == pytest.approx(share, abs=0.003)


@pytest.mark.golden
def test_single_span_has_the_published_statistics():
    published = STATS["token_512_single_span"]
    plan = draw(pieces_of(np.full(4000, 510)), single_span_prob=1.0)
    assert (plan.kind_N == SINGLE).all()
    assert (plan.num_spans_N == 1).all()
    assert (plan.row_lengths_N == published["built_seq_len_mean"]).all()
    assert_same_mean(
        mask_ratios(plan), published["mask_ratio_mean"], published["mask_ratio_std"], 4000
    )


def test_blanks_reach_the_budget_and_stop_there():
    lengths = np.arange(1, 700)
    plan = draw(pieces_of(lengths))
    covered = ragged.sums(plan.length_S, plan.span_offsets_N1)
    budget = np.maximum(np.floor(0.15 * (lengths + 2)), 1)
    assert (covered >= budget).all()
    for i in range(len(plan)):
        spans = spans_of(plan, i)
        longest = max(stop - start for start, stop in spans)
        assert covered[i] - longest < budget[i]  # without some span it is not reached


def test_a_prompt_is_not_part_of_what_is_to_be_blanked():
    # CLS + 100 text tokens + eos behind a prompt of 400: 15 of 102, not 75 of 502
    plan = draw(pieces_of(np.full(200, 500), prompts=np.full(200, 400)))
    covered = ragged.sums(plan.length_S, plan.span_offsets_N1)
    assert (covered >= 15).all()
    assert covered.mean() < 18
    assert plan.start_S.min() == 401


def test_the_last_drawn_span_stands_anywhere_in_the_text():
    # the last one drawn is longer on average: unshuffled lengths would show it at the text's end
    plan = draw(pieces_of(np.full(20_000, 38)), span_order="text")
    two = plan.take(plan.num_spans_N == 2)
    first, second = two.length_S[::2], two.length_S[1::2]
    assert len(first) > 5000
    standard_error = math.hypot(first.std(), second.std()) / math.sqrt(len(first))
    assert abs(first.mean() - second.mean()) < 4 * standard_error


def test_places_follow_the_published_rule():
    # two blanks of one token among four: each draws an offset 0 or 1, sorted they give the places
    num = 40_000
    plan = draw(pieces_of(np.full(num, 4)), mask_ratio=0.4, max_span=1, span_order="text")
    counts = Counter(map(tuple, plan.start_S.reshape(num, 2).tolist()))
    expected = {(1, 3): 0.25, (1, 4): 0.5, (2, 4): 0.25}
    assert set(counts) == set(expected)
    for layout, prob in expected.items():
        assert abs(counts[layout] - prob * num) < 4 * math.sqrt(prob * (1 - prob) * num)


@pytest.mark.golden
def test_placements_keep_the_published_invariants():
    # the published placements themselves: disjoint, one token apart, inside the stretch
    for case in BLOCKS["sample_spans"]:
        assert_apart(case["spans"], case["offset"], case["offset"] + case["total_length"])
    for case in BLOCKS["span_in_document"]:
        assert_apart(sorted(case["spans"]), 1, 112)
    # and ours, in a stretch as tight and in one as wide
    plan = draw(pieces_of([11] * 50 + [40] * 50), mask_ratio=0.6)
    for i in range(100):
        assert_apart(sorted(spans_of(plan, i)), 1, 12 if i < 50 else 41)


def assert_apart(spans, low: int, high: int) -> None:
    assert spans[0][0] >= low
    assert spans[-1][1] <= high
    for (_, stop), (start, _) in pairwise(spans):
        assert stop < start


def test_the_last_token_of_a_cut_document_is_never_blanked():
    plan = draw(pieces_of(np.full(2000, 9), ends_document=False), mask_ratio=0.4)
    stops = plan.start_S + plan.length_S
    assert stops.max() == 9  # CLS is 0, the last stored token 9
    assert plan.start_S.min() == 1


# ---------------------------------------------------------------- short texts


def test_a_text_of_one_token_gets_one_blank_of_one_token():
    plan = draw(pieces_of(np.ones(300, np.int64)))
    assert plan.start_S.tolist() == [1] * 300
    assert plan.length_S.tolist() == [1] * 300
    assert plan.row_lengths_N.tolist() == [5] * 300
    assert plan.num_targets_N.tolist() == [2] * 300
    # the lengths drawn were longer: what was clipped is counted
    assert plan.tokens_clipped_N.mean() == pytest.approx(3.157 - 1, abs=0.4)
    assert plan.counts()["span_tokens_clipped"] == plan.tokens_clipped_N.sum()


def test_short_texts_lose_no_document_and_no_span_to_the_ratio():
    plan = draw(pieces_of(np.repeat(np.arange(1, 30), 100)))
    assert (plan.num_spans_N >= 1).all()
    assert plan.counts()["spans_lost_text_too_short"] == 0
    assert plan.counts()["pieces_without_target"] == 0


def test_a_text_too_short_for_its_ratio_clips_and_counts():
    # 90 % of 12 tokens = 10 of the 10 free ones: 1-token spans need a gap each
    pieces = pieces_of(np.full(400, 10))
    plan = draw(pieces, mask_ratio=0.9, max_span=1)
    assert (plan.num_spans_N == 5).all()
    assert (plan.spans_unplaced_N == 5).all()
    assert (plan.tokens_clipped_N == 0).all()
    wide = draw(pieces, mask_ratio=0.9, poisson_lambda=9.0)
    stop_S = wide.start_S + wide.length_S
    covered = ragged.sums(wide.length_S, wide.span_offsets_N1)
    assert stop_S.max() == 11
    assert (covered + wide.num_spans_N - 1 == 10)[wide.tokens_clipped_N > 0].all()


def test_a_text_without_room_stays_and_is_counted():
    # all prompt; and a piece of one token that no eos follows
    plan = draw(pieces_of([7], prompts=[7]))
    assert plan.num_spans_N.tolist() == [0]
    assert plan.spans_unplaced_N.tolist() == [1]
    assert plan.row_lengths_N.tolist() == [9]
    cut = draw(pieces_of([1], ends_document=False))
    assert cut.row_lengths_N.tolist() == [2]
    assert cut.counts()["pieces_without_target"] == 1


# ---------------------------------------------------------------- rows that are too short


def test_a_full_row_loses_spans_and_never_tokens():
    pieces = pieces_of(np.full(300, 510))
    free = draw(pieces)
    tight = draw(pieces, max_row_tokens=542)
    assert free.counts()["spans_lost_no_room_in_row"] == 0
    assert tight.num_spans_N.max() == 15  # (542 - 512) / 2
    assert (tight.row_lengths_N <= 542).all()
    assert (tight.num_spans_N + tight.spans_lost_N == free.num_spans_N).all()
    assert (tight.source_lengths_N == 512).all()


@pytest.mark.parametrize(
    ("settings", "tokens_lost"),
    [
        ({}, [2, 1, 1, 0]),
        ({"token_prob": 0, "sentence_prob": 1}, [2, 1, 1, 0]),
    ],
)
def test_the_row_decides_how_many_of_two_blanks_stay(settings, tokens_lost):
    # a text of 22 tokens with a budget of 3, spans and sentences of 2 tokens: two blanks
    ends = [list(range(2, 21, 2))]
    settings = {"max_span": 2, "poisson_lambda": 1000.0, **settings}
    for spare, lost in zip((1, 2, 3, 4), tokens_lost):
        plan = draw(pieces_of([20], sentence_ends=ends), max_row_tokens=22 + spare, **settings)
        assert plan.spans_lost_N.tolist() == [lost]
        assert plan.num_spans_N.tolist() == [2 - lost]
        assert plan.row_lengths_N.tolist() == [22 + 2 * (2 - lost)]


def test_document_level_gives_way_to_a_suffix_and_then_to_plain_text():
    settings = {"token_prob": 0, "document_prob": 1, "infill_prob": 1.0}
    pieces = pieces_of(np.full(50, 20))
    assert not draw(pieces, max_row_tokens=24, **settings).suffix_N.any()
    suffix = draw(pieces, max_row_tokens=23, **settings)
    assert suffix.suffix_N.all()
    assert (suffix.row_lengths_N == 23).all()
    plain = draw(pieces, max_row_tokens=22, **settings)
    assert (plain.row_lengths_N == 22).all()
    assert (plain.spans_lost_N == 1).all()
    assert not plain.suffix_N.any()


def test_a_piece_longer_than_its_row_is_refused():
    with pytest.raises(ValueError, match="piece of 22 tokens does not fit a row of 21"):
        draw(pieces_of([5, 20]), max_row_tokens=21)


def test_an_empty_piece_is_refused():
    with pytest.raises(ValueError, match="empty"):
        draw(pieces_of([0], ends_document=False))


# ---------------------------------------------------------------- sentence level


def sentences_of(tokens: list[int], prompt: int = 0) -> list[list[int]]:
    """Our sentences of a text with written-out specials; ends are where a golden end id stands."""
    ends_document = tokens[-1] == 100
    stored = tokens[1 : len(tokens) - ends_document]
    end_ids = {int(id_) for id_ in BLOCKS["sentence_end_ids"]}
    ends = [i + 1 for i, token in enumerate(stored) if token in end_ids]
    pieces = pieces_of(
        [len(stored)], prompts=[prompt], ends_document=ends_document, sentence_ends=[ends]
    )
    owner, start, stop = sentence_spans(pieces, np.array([0]))
    assert not owner.any()
    return np.stack((start, stop), axis=1).tolist()


@pytest.mark.golden
@pytest.mark.parametrize("case", BLOCKS["sentence_spans"], ids=lambda case: case["name"])
def test_sentences_are_the_published_ones_with_their_defects_put_right(case):
    right = {
        "packed_two_docs": [[1, 4], [4, 9], [9, 12]],  # one piece: CLS of a second is never inside
        "trailing_fragment_then_eos": [[1, 4], [4, 7]],  # the tail is a sentence
    }
    if case["name"] == "packed_two_docs":
        # never packed before blanking: each document is a piece of its own
        split = case["tokens"].index(100) + 1
        assert sentences_of(case["tokens"][:split]) == [[1, 4]]
        assert sentences_of(case["tokens"][split:]) == [[1, 4], [4, 7]]
        return
    assert sentences_of(case["tokens"]) == right.get(case["name"], case["sentence_spans"])


def test_sentences_start_behind_the_prompt():
    tokens = [102, 21, 22, 10, 23, 24, 10, 25, 10, 100]
    assert sentences_of(tokens, prompt=4) == [[5, 7], [7, 9]]
    assert sentences_of(tokens, prompt=3) == [[4, 7], [7, 9]]
    assert sentences_of(tokens, prompt=8) == []


def test_sentences_of_many_pieces_keep_their_owner():
    ends = [[2, 5], [], [3], [1, 2, 3]]
    pieces = pieces_of([5, 4, 6, 3], prompts=[0, 0, 0, 3], sentence_ends=ends)
    owner, start, stop = sentence_spans(pieces, np.array([2, 3, 0, 1]))
    found = list(zip(owner.tolist(), start.tolist(), stop.tolist()))
    assert found == [(0, 1, 4), (0, 4, 7), (2, 1, 3), (2, 3, 6), (3, 1, 5)]


@pytest.mark.golden
def test_sentence_level_has_the_published_statistics():
    published, num = STATS["sent_512"], 8000
    rng = np.random.default_rng(0)
    is_end = rng.random((num, 510)) < 1 / published["settings"]["avg_sentence_tokens"]
    ends = [(np.flatnonzero(row) + 1).tolist() for row in is_end]
    pieces = pieces_of(np.full(num, 510), sentence_ends=ends)
    plan = draw(pieces, token_prob=0, sentence_prob=1)
    assert (plan.kind_N == SENTENCE).all()
    std = published["masked_frac_std"]
    assert_same_mean(mask_ratios(plan), published["masked_frac_mean"], std, num)
    assert np.std(mask_ratios(plan)) == pytest.approx(std, rel=0.05)
    std = plan.num_spans_N.std()
    assert_same_mean(plan.num_spans_N, published["n_sentences_mean"], std, num)


def test_sentence_blanks_are_whole_sentences_and_stop_at_the_budget():
    ends = [list(range(3, 61, 3))]
    plan = draw(pieces_of([60], sentence_ends=ends), token_prob=0, sentence_prob=1)
    spans = spans_of(plan, 0)
    assert len(spans) == 3  # floor(0.15 * 62) = 9 tokens
    assert all(start % 3 == 1 and stop == start + 3 for start, stop in spans)


def test_neighbouring_sentences_may_both_be_blanked():
    pieces = pieces_of(np.full(200, 12), sentence_ends=[[3, 6, 9, 12]] * 200)
    plan = draw(pieces, token_prob=0, sentence_prob=1, sentence_ratio=0.4)
    assert (plan.num_spans_N == 2).all()
    starts = np.sort(plan.start_S.reshape(200, 2), axis=1)
    touching = np.mean(starts[:, 0] + 3 == starts[:, 1])
    assert abs(touching - 0.5) < 4 * math.sqrt(0.25 / 200)  # 3 of the 6 pairs


def test_a_text_without_sentence_ends_is_one_sentence():
    plan = draw(pieces_of([30]), token_prob=0, sentence_prob=1)
    assert spans_of(plan, 0) == [(1, 31)]
    cut = draw(pieces_of([30], ends_document=False), token_prob=0, sentence_prob=1)
    assert spans_of(cut, 0) == [(1, 31)]


# ---------------------------------------------------------------- document level


@pytest.mark.golden
@pytest.mark.parametrize(("name", "ratio"), [("doc_512_min0.5", 0.5), ("doc_512_min0.25", 0.25)])
def test_document_level_has_the_published_statistics(name, ratio):
    published = STATS[name]
    num = published["settings"]["docs"]
    num_draws = num // published["settings"]["batch"]  # there one draw serves a batch
    plan = draw(
        pieces_of(np.full(num, 510)), token_prob=0, document_prob=1, min_generation_ratio=ratio
    )
    assert (plan.kind_N == DOCUMENT).all()
    assert (plan.num_spans_N == 1).all()
    share = plan.length_S / 512
    std = (1 - ratio) / math.sqrt(12)
    error = std * math.sqrt(1 / num_draws + 1 / num)
    assert abs(share.mean() - published["gen_len_frac_mean"]) < 4 * error
    assert plan.length_S.min() == published["gen_len_min"]
    assert plan.length_S.max() == published["gen_len_max"]
    bins = np.bincount((share * 10).astype(int), minlength=10) / num
    tolerance = 4 * math.sqrt(0.2 * 0.8 / num_draws)
    np.testing.assert_allclose(bins, published["frac_hist_10bins"], atol=tolerance)
    error = math.sqrt(0.25 / num + 0.25 / num)
    assert abs(plan.suffix_N.mean() - published["suffix_form_fraction"]) < 4 * error


def test_a_suffix_runs_to_the_end_and_an_infill_never_reaches_it():
    settings = {"token_prob": 0, "document_prob": 1}
    pieces = pieces_of(np.full(500, 8))
    suffix = draw(pieces, infill_prob=0.0, **settings)
    assert (suffix.start_S + suffix.length_S == 10).all()
    assert set(suffix.length_S.tolist()) == {5, 6, 7, 8}  # floor(0.5 * 10) .. 10 - 2
    assert (suffix.row_lengths_N == 11).all()
    infill = draw(pieces, infill_prob=1.0, **settings)
    assert not infill.suffix_N.any()
    assert set(infill.length_S.tolist()) == {5, 6, 7, 8}
    assert infill.start_S.min() == 1
    assert (infill.start_S + infill.length_S).max() == 9
    assert len({*infill.start_S[infill.length_S == 5].tolist()}) == 4


def test_document_level_respects_the_prompt():
    settings = {"token_prob": 0, "document_prob": 1}
    pieces = pieces_of(np.full(300, 20), prompts=np.full(300, 15))
    infill = draw(pieces, infill_prob=1.0, **settings)
    assert infill.start_S.min() == 16
    assert (infill.start_S + infill.length_S).max() == 21
    assert (infill.length_S == 5).all()
    assert (infill.tokens_clipped_N >= 6).all()  # 11 tokens or more were drawn
    suffix = draw(pieces, infill_prob=0.0, **settings)
    assert (suffix.num_targets_N == np.minimum(suffix.length_S, 6)).all()
    assert suffix.length_S.max() > 6


def test_document_level_of_short_texts():
    settings = {"token_prob": 0, "document_prob": 1}
    for infill_prob, spans in ((1.0, [(1, 2)]), (0.0, [(2, 3)])):
        plan = draw(pieces_of([1]), infill_prob=infill_prob, **settings)
        assert spans_of(plan, 0) == spans
    cut = draw(pieces_of([1], ends_document=False), infill_prob=1.0, **settings)
    assert spans_of(cut, 0) == [(1, 2)]  # no room inside: the suffix form writes the token
    assert cut.suffix_N.all()
    assert cut.num_targets_N.tolist() == [1]


def test_unidirectional_writes_all_but_one_token():
    plan = draw(
        pieces_of([20, 1, 9], prompts=[4, 0, 0]),
        token_prob=0,
        document_prob=1,
        direction="unidirectional",
    )
    assert plan.suffix_N.all()
    assert plan.start_S.tolist() == [2, 2, 2]
    assert plan.sep_N.tolist() == [3, 3, 3]
    assert plan.num_targets_N.tolist() == [20 - 3 - 1 + 1, 1, 9]


# ---------------------------------------------------------------- kinds and orders


def test_whole_texts_are_all_but_cls_and_drawn_before_the_others():
    num = 4000
    plan = draw(pieces_of(np.full(num, 20)), single_span_prob=1.0, whole_prob=0.3)
    whole = plan.kind_N == KINDS.index("whole")
    assert abs(whole.mean() - 0.3) < 4 * math.sqrt(0.21 / num)
    assert (plan.kind_N[~whole] == KINDS.index("single")).all()
    some = plan.take(whole)
    assert (some.num_spans_N == 1).all() and some.suffix_N.all()
    assert (some.start_S == 1).all() and (some.length_S == some.source_lengths_N - 1).all()
    assert (some.sep_N == 2).all()  # CLS and [gMASK]


@pytest.mark.golden
@pytest.mark.parametrize("name", ["mode_mix_10B", "mode_mix_large_chinese", "mode_mix_10B_longer"])
def test_kinds_follow_the_published_mixes(name):
    settings, num = STATS[name]["settings"], 40_000
    token, sentence = settings["bert_prob"], settings["gap_sentence_prob"]
    single = settings["single_span_prob"]
    plan = draw(
        pieces_of(np.full(num, 20), sentence_ends=[[5, 10, 15]] * num),
        token_prob=token,
        sentence_prob=sentence,
        document_prob=1 - token - sentence,
        single_span_prob=single,
    )
    shares = np.bincount(plan.kind_N, minlength=5) / num
    left = 1 - single
    expected = [0, token * left, sentence * left, (1 - token - sentence) * left, single]
    for share, prob in zip(shares, expected):
        assert abs(share - prob) <= 4 * math.sqrt(prob * (1 - prob) / num)
    published, drawn = STATS[name]["fractions"], settings["batches"]
    ours = {"bert": shares[1] + shares[4], "sentence": shares[2], "gpt": shares[3]}
    for kind, share in published.items():
        error = math.sqrt(share * (1 - share) * (1 / num + 1 / drawn))
        assert abs(ours[kind] - share) < 4 * error


def test_a_share_of_nothing_is_never_drawn():
    num = 20_000
    for name, kind in (("token", 1), ("sentence", 2), ("document", 3)):
        settings = {f"{other}_prob": 0.0 for other in ("token", "sentence", "document")}
        plan = draw(pieces_of(np.full(num, 5)), **(settings | {f"{name}_prob": 1.0}))
        assert (plan.kind_N == kind).all()
        assert KINDS[kind] == name


@pytest.mark.parametrize(
    "settings",
    [
        {"mask_ratio": 0.15, "max_span": 1},
        {"token_prob": 0, "sentence_prob": 1},
    ],
)
def test_all_orders_of_three_blanks_are_equally_likely(settings):
    num = 60_000
    pieces = pieces_of(np.full(num, 20), sentence_ends=[list(range(1, 21))] * num)
    plan = draw(pieces, **settings)
    assert (plan.num_spans_N == 3).all()
    ranks = np.argsort(plan.start_S.reshape(num, 3), axis=1)
    counts = Counter(map(tuple, ranks.tolist()))
    assert len(counts) == 6
    sigma = math.sqrt(num / 6 * 5 / 6)
    assert all(abs(count - num / 6) < 3 * sigma for count in counts.values())


def test_the_ablation_keeps_the_order_of_the_text():
    for settings in ({}, {"token_prob": 0, "sentence_prob": 1}):
        pieces = pieces_of(np.full(50, 60), sentence_ends=[list(range(3, 61, 3))] * 50)
        plan = draw(pieces, span_order="text", **settings)
        for i in range(50):
            spans = spans_of(plan, i)
            assert spans == sorted(spans)
        assert plan.num_spans_N.mean() > 2
        shuffled = draw(pieces, **settings)
        assert [sorted(spans_of(shuffled, i)) for i in range(50)] == [
            spans_of(plan, i) for i in range(50)
        ]


def test_shares_that_miss_one_by_rounding_draw_nothing_else():
    pieces = pieces_of(np.full(200_000, 3))
    plan = draw(pieces, token_prob=1 - 1e-7)
    assert (plan.kind_N == TOKEN).all()
    plan = draw(pieces, token_prob=0, sentence_prob=0, document_prob=1 - 1e-7)
    assert (plan.kind_N == DOCUMENT).all()


def test_no_two_draws_of_a_text_share_a_number():
    # a text has fewer than 2^32 tokens, so each kind of draw has a range of its own
    names = [name for name in vars(blank_draw) if name.endswith(("_DRAW", "_DRAWS"))]
    single = [getattr(blank_draw, name) for name in names if name.endswith("_DRAW")]
    starts = [getattr(blank_draw, name) for name in names if name.endswith("_DRAWS")]
    starts.append(blank_build.DBLOCK_DRAWS)
    assert sorted(single) == [0, 1, 2, 3, 4, 5]
    assert sorted(starts) == [1 << 32, 2 << 32, 3 << 32, 4 << 32]


def test_kinds_are_drawn_by_their_share_of_the_sum():
    shares = SimpleNamespace(
        token_prob=0.25, sentence_prob=0.0, document_prob=0.25, single_span_prob=0.0, whole_prob=0.0
    )
    keys_N = hashing.key(1, 0, np.arange(4000), np.zeros(4000, np.int64))
    counts = np.bincount(blank_draw.draw_kinds(keys_N, shares), minlength=5)
    assert counts[TOKEN] + counts[DOCUMENT] == 4000
    assert abs(counts[TOKEN] - 2000) < 4 * math.sqrt(1000)


def test_a_small_ratio_allows_a_generation_of_one_token():
    settings = {"token_prob": 0, "document_prob": 1, "min_generation_ratio": 0.25}
    plan = draw(pieces_of(np.full(200, 2)), **settings)  # n = 4: from floor(1) to 2
    assert set(plan.length_S.tolist()) == {1, 2}
    plan = draw(pieces_of(np.full(200, 1)), **settings)  # n = 3: floor(0.75) is raised to 1
    assert set(plan.length_S.tolist()) == {1}

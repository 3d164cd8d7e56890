"""A window's plan: its settings, its size, its report, and that it is a pure function."""

import numpy as np
import pytest

from data_pipeline import ragged
from data_pipeline.memory import MemorySplit
from data_pipeline.packing.plan import PackingConfig, num_windows, plan_window
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})


def make_split(lengths, *, mean_sentence: int = 22, seed: int = 0) -> MemorySplit:
    rng, offsets = np.random.default_rng(seed), ragged.offsets(np.asarray(lengths))
    is_end = rng.random(offsets[-1]) < 1 / mean_sentence
    is_end[offsets[1:] - 1] = True
    at = np.flatnonzero(is_end)
    owner = np.searchsorted(offsets, at, side="right") - 1
    return MemorySplit(
        flat_tokens=rng.integers(len(SPECIALS), 1000, offsets[-1]).astype(np.int32),
        token_offsets=offsets,
        prompts=np.zeros(len(lengths), np.int64),
        flat_sentence_ends=at + 1 - offsets[owner],
        sentence_offsets=ragged.offsets(np.bincount(owner, minlength=len(lengths))),
    )


def lognormal(num_documents: int, mean: float, sigma: float) -> np.ndarray:
    drawn = np.random.default_rng(0).lognormal(np.log(mean) - sigma**2 / 2, sigma, num_documents)
    return np.maximum(drawn, 1).astype(np.int64)


def transform(packing: PackingConfig, config: BlankConfig | None = None) -> BlankTransform:
    return BlankTransform(
        config or BlankConfig(), SPECIAL, source_tokens=packing.source_tokens, vocab_size=1000
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source_tokens": 3}, "source_tokens must be at least 8, got 3"),
        ({"row_tokens": 513}, r"row_tokens must be at least source_tokens \+ 2 = 514.*got 513"),
        ({"cut": "never"}, 'cut must be "fill" or "long", got \'never\''),
        ({"window_tokens": 0}, "window_tokens must be at least 1, got 0"),
        ({"short_sequence_prob": 1.5}, r"short_sequence_prob must lie in \[0, 1\], got 1.5"),
        ({"source_tokens": 20, "short_sequence_prob": 0.1}, "at least 34, got 20"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(settings, message):
    with pytest.raises(ValueError, match=message) as raised:
        PackingConfig(**settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("lengths", "source_tokens", "row_tokens", "at_least"),
    [
        (lognormal(30_000, 30, 0.5), 512, 1152, 0.99),
        (lognormal(2500, 411, 1.0), 512, 1152, 0.99),
        (lognormal(2000, 512, 0.3), 512, 1152, 0.97),
        (lognormal(2000, 512, 0.3), 512, 576, 0.97),
    ],
)
def test_rows_are_full(lengths, source_tokens, row_tokens, at_least):
    packing = PackingConfig(source_tokens=source_tokens, row_tokens=row_tokens)
    plan = plan_window(make_split(lengths), transform(packing), packing, seed=1, epoch=0, window=0)
    assert plan.report.nonpadding_ratio >= at_least
    assert plan.report.stored_tokens == lengths.sum()
    counts = plan.report.counts
    assert counts["spans_lost_no_room_in_row"] < 0.002 * counts["spans"]


def test_cut_to_fill_saves_rows_and_cuts_few_documents():
    split = make_split(lognormal(2000, 512, 0.3))
    reports = {}
    for cut in ("long", "fill"):
        packing = PackingConfig(row_tokens=576, cut=cut)
        plan = plan_window(split, transform(packing), packing, seed=1, epoch=0, window=0)
        reports[cut] = plan.report
    assert reports["fill"].num_rows < 0.96 * reports["long"].num_rows
    assert reports["long"].documents_cut_to_fill == 0
    assert 0 < reports["fill"].documents_cut_to_fill < 0.1 * 2000
    assert reports["fill"].documents_long == reports["long"].documents_long


@pytest.mark.parametrize("lengths", [[1], [5], [0], [3, 700, 0], [30_000] * 5, [513] * 249])
def test_tiny_and_awkward_corpora_work(lengths):
    packing = PackingConfig()
    split = make_split(lengths) if sum(lengths) else MemorySplit.from_documents([[]])
    assert num_windows(split, packing) == 1
    plan = plan_window(split, transform(packing), packing, seed=0, epoch=0, window=0)
    packed = plan.build(np.arange(plan.num_rows))
    assert plan.num_rows >= 1 and packed.ids.shape == (plan.num_rows, 1152)
    assert plan.report.source_tokens == plan.report.stored_tokens + plan.report.pieces + len(
        lengths
    )
    assert plan.source_tokens_R.sum() == plan.report.source_tokens


def test_an_empty_split_has_no_windows():
    assert num_windows(MemorySplit.from_documents([]), PackingConfig()) == 0


def test_windows_hold_about_window_tokens_in_whole_blocks():
    split = make_split(np.full(10_000, 98))  # 100 with CLS and eos, 40 blocks
    assert num_windows(split, PackingConfig(window_tokens=100_000)) == 10
    assert num_windows(split, PackingConfig(window_tokens=10**9)) == 1
    assert num_windows(split, PackingConfig(window_tokens=1)) == 40


def test_a_plan_is_the_same_whenever_it_is_made_and_rows_do_not_depend_on_their_batch():
    packing = PackingConfig(window_tokens=50_000)
    split = make_split(lognormal(2000, 100, 0.8))
    plans = [
        plan_window(split, transform(packing), packing, seed=9, epoch=1, window=2) for _ in "ab"
    ]
    whole = plans[0].build(np.arange(plans[0].num_rows))
    some = plans[1].build(np.array([7, 3, 3]))
    assert whole.sources is None  # blanks alone keep no text beside the rows
    for name in set(vars(whole)) - {"sources"}:
        assert np.array_equal(getattr(whole, name)[[7, 3, 3]], getattr(some, name))


def test_seed_epoch_and_window_each_give_other_rows():
    packing = PackingConfig(window_tokens=50_000)
    split = make_split(lognormal(2000, 100, 0.8))
    firsts = set()
    for seed, epoch, window in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]:
        plan = plan_window(
            split, transform(packing), packing, seed=seed, epoch=epoch, window=window
        )
        firsts.add(plan.build(np.array([0])).ids.tobytes())
    assert len(firsts) == 4


def test_short_sequences_cut_their_share_of_the_documents():
    packing = PackingConfig(short_sequence_prob=0.3, cut="long")
    split = make_split(np.full(2000, 480))  # none is too long
    plan = plan_window(split, transform(packing), packing, seed=2, epoch=0, window=0)
    # targets of 32..510: those of 482 and more do not cut a document of 482
    expected = 0.3 * (482 - 32) / (511 - 32)
    assert abs(plan.report.documents_long / 2000 - expected) < 5 * np.sqrt(0.3 * 0.7 / 2000)
    lengths_N = plan.stretches.source_lengths_N
    assert lengths_N.max() == 482 and np.percentile(lengths_N, 10) < 100


def test_pieces_of_nothing_but_prompt_are_counted():
    split = MemorySplit.from_documents(
        [np.full(29, 20), np.full(10, 20), np.full(10, 20)], prompt_lengths=[20, 10, 3]
    )
    packing = PackingConfig(source_tokens=16, row_tokens=32)
    plan = plan_window(split, transform(packing), packing, seed=0, epoch=0, window=0)
    # 29 tokens in 15 + 14: the first piece is prompt; so is the second document
    assert plan.report.pieces == 4
    assert plan.report.pieces_all_prompt == 2


def test_equal_documents_do_not_keep_their_order_over_rows():
    packing = PackingConfig(source_tokens=64, row_tokens=130, cut="long")
    plan = plan_window(
        make_split(np.full(1000, 40)), transform(packing), packing, seed=5, epoch=0, window=0
    )
    numbers = plan.stretches.documents.number_N[plan.stretches.owner_N[plan.order]]
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 5 / np.sqrt(1000)

"""Rows of whole texts, written from left to right, and what is hidden from an encoder."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.hashing import key
from data_pipeline.memory import MemorySplit
from data_pipeline.packing.plan import PackingConfig, plan_window
from data_pipeline.rows import KINDS, Pieces
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.causal import CausalTransform

SPECIAL = SpecialIds(**{name: 100 + number for number, name in enumerate(SPECIALS)})
CLS, EOS, MASK = SPECIAL.cls, SPECIAL.eos, SPECIAL.mask


def pieces_of(lengths: list[int], ends: list[bool], prompts: list[int]) -> Pieces:
    number = len(lengths)
    return Pieces(
        document_N=np.arange(number),
        start_N=np.zeros(number, np.int64),
        stop_N=np.array(lengths),
        prompt_N=np.array(prompts),
        ends_document_N=np.array(ends),
        sentence_ends=np.zeros(0, np.int64),
        sentence_offsets_N1=np.zeros(number + 1, np.int64),
    )


def rows_of(pieces: Pieces, tokens: list[int], **options):
    transform = CausalTransform(SPECIAL, vocab_size=111, **options)
    keys = key(1, 0, pieces.document_N, pieces.start_N)
    plan = transform.draw(pieces, keys, np.full(len(pieces), 1000))
    return plan, transform.build(np.array(tokens, np.int32), plan)


def test_a_text_that_ends_and_one_that_is_cut():
    pieces = pieces_of([3, 2], [True, False], [0, 1])
    plan, rows = rows_of(pieces, [1, 2, 3, 4, 5], first_position=1)
    assert rows.ids.tolist() == [CLS, 1, 2, 3, EOS, CLS, 4, 5]
    assert rows.targets.tolist()[:4] == [1, 2, 3, EOS]
    assert rows.targets.tolist()[6] == 5
    assert rows.weights.tolist() == [1, 1, 1, 1, 0, 0, 1, 0]  # 4 is prompt
    assert rows.position.tolist() == [1, 2, 3, 4, 5, 1, 2, 3]
    assert rows.sep_N.tolist() == [0, 0] and rows.sources is None
    assert set(rows.kind.tolist()) == {0, KINDS.index("whole")}
    assert plan.num_targets_N.tolist() == [4, 1]
    assert plan.counts() == {"pieces_without_target": 0, "targets_whole": 5}


def test_a_piece_that_does_not_fit_is_refused():
    transform = CausalTransform(SPECIAL, vocab_size=111)
    pieces = pieces_of([5], [True], [0])
    with pytest.raises(ValueError, match="a piece of 7 tokens does not fit a row of 6"):
        transform.draw(pieces, np.zeros(1, np.uint64), np.array([6]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.randoms())
def test_a_text_has_the_same_row_in_any_company(lengths, random):
    number = len(lengths)
    pieces = pieces_of(lengths, [random.random() < 0.5 for _ in lengths], [0] * number)
    tokens = np.arange(sum(lengths)) % 90
    transform = CausalTransform(SPECIAL, vocab_size=111, denoise_ratio=0.5, keeps_sources=True)
    plan = transform.draw(pieces, key(1, 0, pieces.document_N, pieces.start_N), np.full(number, 99))
    together = transform.build(tokens.astype(np.int32), plan)
    order = list(range(number))
    random.shuffle(order)
    begins = np.concatenate(([0], np.cumsum(lengths)))
    shuffled = np.concatenate([tokens[begins[i] : begins[i + 1]] for i in order])
    again = transform.build(shuffled.astype(np.int32), plan.take(np.array(order)))
    flat = np.concatenate(([0], np.cumsum(plan.row_lengths_N)))
    where = np.concatenate([np.arange(flat[i], flat[i + 1]) for i in order])
    for name in ("ids", "targets", "weights", "position", "kind"):
        assert np.array_equal(getattr(again, name), getattr(together, name)[where]), name
    assert np.array_equal(again.sources.ids, together.sources.ids[where])
    joined = type(plan).concatenate([plan.take(slice(0, 1)), plan.take(slice(1, None))])
    assert np.array_equal(joined.keys_N, plan.keys_N)


def test_what_an_encoder_does_not_see_has_berts_shares():
    number, length = 400, 100
    pieces = pieces_of([length] * number, [True] * number, [0] * number)
    tokens = np.tile(np.arange(length) % 90, number)
    _, rows = rows_of(pieces, tokens.tolist(), denoise_ratio=0.15, keeps_sources=True)
    seen, clean = rows.sources.ids, rows.ids
    special = (clean == CLS) | (clean == EOS)
    assert np.array_equal(seen[special], clean[special])
    total, changed = number * length, seen[~special] != clean[~special]
    masked = (seen[~special] == MASK).mean()
    # Another token of 111 is the same one with probability 1 / 111, or the mask.
    expected = 0.15 * (0.8 + 0.1 / 111)
    assert abs(masked - expected) < 4 * (expected / total) ** 0.5
    other = 0.15 * (0.9 - 0.1 / 111)
    assert abs(changed.mean() - other) < 4 * (other / total) ** 0.5
    _, plain = rows_of(pieces, tokens.tolist(), keeps_sources=True)
    assert np.array_equal(plain.sources.ids, clean)
    assert np.array_equal(plain.targets, rows.targets)


def test_rows_are_packed_with_their_sources():
    lengths = np.random.default_rng(0).integers(1, 28, 90)
    split = MemorySplit.from_documents(
        np.split(np.arange(lengths.sum()) % 90, np.cumsum(lengths)[:-1])
    )
    transform = CausalTransform(SPECIAL, vocab_size=111, keeps_sources=True)
    packing = PackingConfig(source_tokens=32, row_tokens=48, window_tokens=9000)
    window = plan_window(split, transform, packing, seed=1, epoch=0, window=0)
    packed = window.build(np.arange(window.num_rows))
    assert np.array_equal(packed.sources.ids, packed.ids)
    assert np.array_equal(packed.sources.document, packed.document)
    assert (packed.document >= 0).mean() > 0.9

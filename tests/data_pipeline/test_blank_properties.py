"""What holds for every text and setting: rows give the text back, blanks never touch."""

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline import hashing, ragged
from data_pipeline.rows import KINDS, Pieces, Rows
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankPlan, BlankTransform

SPECIAL = SpecialIds(100, 100, 102, 103, 101, 104, 105, 106, 107, 108, 109)
VOCAB_SIZE, SOURCE_TOKENS = 110, 64


@st.composite
def texts(draw, max_pieces=6) -> Pieces:
    """Up to `max_pieces` pieces of 1..60 tokens with prompts and sentence ends of all sorts."""
    num = draw(st.integers(1, max_pieces))
    lengths = draw(st.lists(st.integers(1, 60), min_size=num, max_size=num))
    prompts = [draw(st.integers(0, length)) if draw(st.booleans()) else 0 for length in lengths]
    ends = [sorted(draw(st.sets(st.integers(1, length), max_size=8))) for length in lengths]
    start_N = np.array(draw(st.lists(st.integers(0, 900), min_size=num, max_size=num)), np.int64)
    return Pieces(
        document_N=np.array(draw(st.lists(st.integers(0, 10**6), min_size=num, max_size=num))),
        start_N=start_N,
        stop_N=start_N + lengths,
        prompt_N=np.array(prompts, np.int64),
        ends_document_N=np.array(draw(st.lists(st.booleans(), min_size=num, max_size=num))),
        sentence_ends=np.array([end for each in ends for end in each], np.int64),
        sentence_offsets_N1=ragged.offsets(np.array([len(each) for each in ends], np.int64)),
    )


@st.composite
def configs(draw, **fixed) -> BlankConfig:
    mix = draw(st.sampled_from([(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.4, 0.3, 0.3)]))
    values = {
        "token_prob": mix[0],
        "sentence_prob": mix[1],
        "document_prob": mix[2],
        "single_span_prob": draw(st.sampled_from([0.0, 0.3])),
        "whole_prob": draw(st.sampled_from([0.0, 0.3])),
        "mask_ratio": draw(st.sampled_from([0.15, 0.5, 0.95])),
        "sentence_ratio": draw(st.sampled_from([0.15, 0.6])),
        "poisson_lambda": draw(st.sampled_from([1.0, 3.0, 9.0])),
        "max_span": draw(st.sampled_from([1, 2, 39])),
        "min_generation_ratio": draw(st.sampled_from([0.25, 0.5, 0.9])),
        "infill_prob": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "block_mask_prob": draw(st.sampled_from([0.0, 0.3])),
        "span_order": draw(st.sampled_from(["shuffled", "text"])),
        "block_positions": draw(st.sampled_from(["within_span", "none"])),
        "span_marks": draw(st.sampled_from(["mask", "sentinels"])),
        "mask_tokens": draw(st.sampled_from(["by_kind", "single"])),
    }
    return BlankConfig(**(values | fixed))


def stored_tokens(pieces: Pieces) -> np.ndarray:
    """Distinct numbers within each piece, so that any confusion shows."""
    return np.concatenate([np.arange(n) for n in pieces.stop_N - pieces.start_N]).astype(np.int32)


def transform_of(config: BlankConfig) -> BlankTransform:
    return BlankTransform(config, SPECIAL, source_tokens=SOURCE_TOKENS, vocab_size=VOCAB_SIZE)


def plan_of(config: BlankConfig, pieces: Pieces, *, seed=5, spare=1000) -> BlankPlan:
    keys_N = hashing.key(seed, 0, pieces.document_N, pieces.start_N)
    return transform_of(config).draw(pieces, keys_N, pieces.source_lengths_N + spare)


def source_of(pieces: Pieces, i: int) -> list[int]:
    """The i-th text as the model sees it."""
    stored = list(range(pieces.stop_N[i] - pieces.start_N[i]))
    return [SPECIAL.cls, *stored] + [SPECIAL.eos] * int(pieces.ends_document_N[i])


def slow_row(source: list[int], plan: BlankPlan, config: BlankConfig) -> dict[str, list]:
    """The row of a plan of one piece, one token at a time, as section 2 of the paper tells it."""
    spans = [(int(a), int(a + n)) for a, n in zip(plan.start_S, plan.length_S)]
    kind, suffix = KINDS[plan.kind_N[0]], bool(plan.suffix_N[0])
    sentinels = config.span_marks == "sentinels"
    row = {name: [] for name in ("ids", "targets", "weights", "position", "block_position")}

    def mask_of(rank: int) -> int:
        if sentinels and rank > 0:
            return VOCAB_SIZE + 2 * (rank - 1)
        by_kind = dict.fromkeys(("document", "whole"), SPECIAL.gmask)
        by_kind["sentence"] = SPECIAL.smask
        return SPECIAL.mask if config.mask_tokens == "single" else by_kind.get(kind, SPECIAL.mask)

    def add(id_, target, weight, position, block_position):
        for name, value in zip(row, (id_, target, weight, position, block_position)):
            row[name].append(value)

    mask_positions = {}
    for place, token in enumerate(source):
        inside = [rank for rank, (start, stop) in enumerate(spans) if start <= place < stop]
        if not inside:
            add(token, token, 0, len(row["ids"]), 0)
        elif spans[inside[0]][0] == place:
            mask_positions[inside[0]] = len(row["ids"])
            add(mask_of(inside[0]), mask_of(inside[0]), 0, len(row["ids"]), 0)
    row["sep"] = len(row["ids"])
    for rank, (start, stop) in enumerate(spans):
        sop = VOCAB_SIZE + 2 * rank - 1 if sentinels and rank > 0 else SPECIAL.sop
        inputs = [sop, *source[start:stop]]
        targets = [*source[start:stop], SPECIAL.eop]
        if suffix:
            inputs, targets = inputs[:-1], targets[:-1]
        for step, (id_, target) in enumerate(zip(inputs, targets)):
            position = SOURCE_TOKENS if sentinels else mask_positions[rank]
            block = 1 if config.block_positions == "none" else step + 1
            add(id_, target, int(start + step > plan.prompt_N[0]), position, block)
    row["kind"] = [int(plan.kind_N[0]) * weight for weight in row["weights"]]
    return row


@settings(max_examples=300, deadline=None)
@given(texts(), configs(), st.integers(0, 100), st.integers(0, 40))
def test_rows_are_what_one_token_at_a_time_gives(pieces, config, seed, spare):
    plan = plan_of(config, pieces, seed=seed, spare=spare)
    rows = transform_of(config).build(stored_tokens(pieces), plan)
    ends = np.cumsum(rows.lengths_N)
    for i in range(len(pieces)):
        expected = slow_row(source_of(pieces, i), plan.take([i]), config)
        own = slice(ends[i] - rows.lengths_N[i], ends[i])
        assert rows.sep_N[i] == expected.pop("sep")
        for name, values in expected.items():
            ours = getattr(rows, name)[own].astype(int)
            if name == "ids":  # what dBLOCK hides is tested elsewhere
                values = np.where(ours == SPECIAL.dblock, ours, values).tolist()
            assert ours.tolist() == values, name


def unblank(ids, targets, sep: int, suffix: bool, position) -> list[int]:
    """The text a row was made of, from its ids and targets alone."""
    written: dict[int, list[int]] = {}
    for place in range(sep, len(ids)):
        if ids[place] == SPECIAL.sop:
            answer = written[int(position[place])] = []
        answer.append(int(targets[place]))
    text = []
    for place in range(sep):
        answer = written.get(place)
        text += [int(ids[place])] if answer is None else answer if suffix else answer[:-1]
    return text


@settings(max_examples=300, deadline=None)
@given(texts(), configs(span_marks="mask"), st.integers(0, 100), st.integers(0, 40))
def test_context_and_blanks_give_the_text_back(pieces, config, seed, spare):
    plan = plan_of(config, pieces, seed=seed, spare=spare)
    rows = transform_of(config).build(stored_tokens(pieces), plan)
    ends = np.cumsum(rows.lengths_N)
    for i in range(len(pieces)):
        own = slice(ends[i] - rows.lengths_N[i], ends[i])
        text = unblank(
            rows.ids[own], rows.targets[own], rows.sep_N[i], plan.suffix_N[i], rows.position[own]
        )
        assert text == source_of(pieces, i)


@settings(max_examples=300, deadline=None)
@given(texts(), configs(), st.integers(0, 100), st.integers(0, 40))
def test_blanks_never_touch_and_cover_only_what_they_may(pieces, config, seed, spare):
    plan = plan_of(config, pieces, seed=seed, spare=spare)
    assert (plan.length_S >= 1).all()
    for i in range(len(pieces)):
        one = plan.take([i])
        spans = sorted(zip(one.start_S.tolist(), (one.start_S + one.length_S).tolist()))
        kind = KINDS[one.kind_N[0]]
        gap = 1 if kind in ("token", "single") else 0
        assert all(stop + gap <= start for (_, stop), (start, _) in pairwise(spans))
        if not spans or one.suffix_N[0]:
            continue
        assert spans[0][0] >= 1 + pieces.prompt_N[i]
        length, ends_document = one.source_lengths_N[0], pieces.ends_document_N[i]
        may_end = length - ends_document if kind == "sentence" else length - 1
        assert spans[-1][1] <= may_end


@settings(max_examples=300, deadline=None)
@given(texts(), configs(), st.integers(0, 100), st.integers(0, 40))
def test_plans_know_the_lengths_and_targets_of_their_rows(pieces, config, seed, spare):
    plan = plan_of(config, pieces, seed=seed, spare=spare)
    rows = transform_of(config).build(stored_tokens(pieces), plan)
    assert rows.lengths_N.tolist() == plan.row_lengths_N.tolist()
    assert (plan.row_lengths_N <= pieces.source_lengths_N + spare).all()
    assert rows.sep_N.tolist() == plan.sep_N.tolist()
    offsets_N1 = ragged.offsets(plan.row_lengths_N)
    assert offsets_N1[-1] == len(rows.ids)
    weights = ragged.sums(rows.weights.astype(np.int64), offsets_N1)
    assert weights.tolist() == plan.num_targets_N.tolist()
    assert rows.ids.max() < transform_of(config).vocab_size
    if config.span_marks == "mask":
        assert rows.position.max() < pieces.source_lengths_N.max()
    for i in range(len(pieces)):
        text = len(source_of(pieces, i)) - 1 - pieces.prompt_N[i]
        room = text - (not pieces.ends_document_N[i])
        if room - pieces.ends_document_N[i] > 0 and spare >= 2:
            assert plan.num_targets_N[i] >= 1  # whoever has room has something to learn


def assert_equal_plans(one: BlankPlan, other: BlankPlan) -> None:
    for field in fields(BlankPlan):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist(), field.name


def pieces_at(pieces: Pieces, i: int) -> Pieces:
    """The i-th piece alone."""
    ends = slice(*pieces.sentence_offsets_N1[i : i + 2])
    alone = {name: getattr(pieces, name)[i : i + 1] for name in ("document_N", "start_N", "stop_N")}
    return replace(
        pieces,
        **alone,
        prompt_N=pieces.prompt_N[i : i + 1],
        ends_document_N=pieces.ends_document_N[i : i + 1],
        sentence_ends=pieces.sentence_ends[ends],
        sentence_offsets_N1=np.array([0, ends.stop - ends.start]),
    )


@settings(max_examples=200, deadline=None)
@given(texts(), configs(), st.integers(0, 100), st.integers(0, 40))
def test_a_piece_is_blanked_alike_in_any_company(pieces, config, seed, spare):
    plan = plan_of(config, pieces, seed=seed, spare=spare)
    for i in range(len(pieces)):
        alone = plan_of(config, pieces_at(pieces, i), seed=seed, spare=spare)
        assert_equal_plans(plan.take([i]), alone)


def piece_rows(rows: Rows) -> list[dict[str, list]]:
    ends = np.cumsum(rows.lengths_N)
    names = ("ids", "targets", "weights", "position", "block_position", "kind")
    return [
        {name: getattr(rows, name)[end - length : end].tolist() for name in names}
        for end, length in zip(ends, rows.lengths_N)
    ]


@settings(max_examples=150, deadline=None)
@given(texts(), configs(), st.data())
def test_taken_plans_build_the_same_rows_in_the_order_asked_for(pieces, config, data):
    plan, transform = plan_of(config, pieces), transform_of(config)
    order = data.draw(st.lists(st.integers(0, len(pieces) - 1), max_size=8))
    whole = piece_rows(transform.build(stored_tokens(pieces), plan))
    tokens = [np.arange(n) for n in (pieces.stop_N - pieces.start_N)[order]]
    taken = plan.take(np.array(order, int))
    some = transform.build(np.concatenate(tokens) if tokens else np.zeros(0, np.int32), taken)
    assert piece_rows(some) == [whole[i] for i in order]
    assert taken.row_lengths_N.tolist() == plan.row_lengths_N[order].tolist()
    assert taken.num_targets_N.tolist() == plan.num_targets_N[order].tolist()


@settings(max_examples=100, deadline=None)
@given(texts(), configs())
def test_plans_joined_are_the_plan_of_all(pieces, config):
    plan = plan_of(config, pieces)
    parts = [plan.take([i]) for i in range(len(pieces))]
    assert_equal_plans(BlankPlan.concatenate(parts), plan)
    is_even = np.arange(len(pieces)) % 2 == 0
    assert_equal_plans(plan.take(is_even), plan.take(slice(0, None, 2)))


@settings(max_examples=100, deadline=None)
@given(texts(), configs(), st.integers(0, 30))
def test_a_shorter_row_keeps_the_first_spans_that_were_drawn(pieces, config, spare):
    wide, tight = plan_of(config, pieces), plan_of(config, pieces, spare=spare)
    same_kind = (wide.kind_N == tight.kind_N).all()
    assert same_kind
    assert (wide.spans_lost_N == 0).all()
    kept = tight.num_spans_N + tight.spans_lost_N
    assert kept.tolist() == wide.num_spans_N.tolist()
    several = ~np.isin(wide.kind_N, [KINDS.index("document"), KINDS.index("whole")])
    expected = np.minimum(wide.num_spans_N, spare // 2)
    assert tight.num_spans_N[several].tolist() == expected[several].tolist()

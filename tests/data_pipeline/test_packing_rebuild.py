"""From packed rows alone the text comes back: every stored token once an epoch, in its place.

Each stored token has an id of its own, so that an id says which place of which document it is.
"""

from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.pack import ARRAYS
from data_pipeline.packing.plan import PackingConfig, num_windows, plan_window
from data_pipeline.rows import PackedRows
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
FIRST_ID = len(SPECIALS)
MASKS = (SPECIAL.mask, SPECIAL.gmask, SPECIAL.smask)

MODES = {
    "token": BlankConfig(),
    "sentence": BlankConfig(token_prob=0, sentence_prob=1),
    "infill": BlankConfig(token_prob=0, document_prob=1, infill_prob=1),
    "suffix": BlankConfig(token_prob=0, document_prob=1, infill_prob=0),
    "published mix": BlankConfig(
        token_prob=0.4,
        sentence_prob=0.3,
        document_prob=0.3,
        single_span_prob=0.05,
        min_generation_ratio=0.25,
        block_mask_prob=0.1,
    ),
}


def make_split(lengths: list[int], prompts: list[int], sentence_share: float, seed: int):
    """Documents of unique ids; about `sentence_share` of the tokens end a sentence."""
    rng, offsets = np.random.default_rng(seed), np.cumsum([0, *lengths])
    return MemorySplit.from_documents(
        [np.arange(a, b) + FIRST_ID for a, b in pairwise(offsets)],
        prompt_lengths=prompts,
        sentence_ends=[np.flatnonzero(rng.random(n) < sentence_share) + 1 for n in lengths],
    )


def read_packed_row(packed: PackedRows, b: int) -> list[list[int]]:
    """The source tokens of each document of a packed row; asserts all that a row promises."""
    row = {name: getattr(packed, name)[b].tolist() for name in ARRAYS}
    num_documents = max(row["document"]) + 1
    used = len(row["document"]) - row["document"].count(-1)
    assert row["document"][:used] == sorted(row["document"][:used])
    for name, padding in (("lo", 0), ("hi", 0), ("document", -1), ("weights", 0), ("kind", 0)):
        assert set(row[name][used:]) <= {padding}
    sources = []
    for document in range(num_documents):
        begin = row["document"].index(document)
        end = begin + row["document"].count(document)
        sources.append(read_row({name: row[name][begin:end] for name in row}, begin))
    return sources


def read_row(row: dict[str, list], begin: int) -> list[int]:
    """Blanks put back where their positions say; `begin`: the row's place in the packed row."""
    sep = row["hi"][0] - begin
    assert row["lo"] == [begin] * len(row["ids"])
    assert row["hi"] == [begin + max(i + 1, sep) for i in range(len(row["ids"]))]
    assert row["position"][:sep] == list(range(sep))
    assert set(row["block_position"][:sep]) == {0} == set(row["weights"][:sep])
    hidden: dict[int, list[int]] = {}
    i = sep
    while i < len(row["ids"]):
        assert row["ids"][i] == SPECIAL.sop
        stop = i + 1
        while stop < len(row["ids"]) and row["ids"][stop] != SPECIAL.sop:
            stop += 1
        mask = row["position"][i]
        assert row["position"][i:stop] == [mask] * (stop - i)
        assert row["block_position"][i:stop] == list(range(1, stop - i + 1))
        assert mask not in hidden and row["ids"][mask] in MASKS
        target = row["targets"][i:stop]
        hidden[mask] = target[:-1] if target[-1] == SPECIAL.eop else target
        i = stop
    visible = row["ids"][:sep]
    assert {i for i, token in enumerate(visible) if token in MASKS} == set(hidden)
    return [t for i, token in enumerate(visible) for t in hidden.get(i, [token])]


def check_epoch(split: MemorySplit, transform: BlankTransform, packing: PackingConfig, seed: int):
    """Every row of one epoch rebuilds its text, and together they hold each token once."""
    stored: list[int] = []
    ended: list[int] = []
    for window in range(num_windows(split, packing)):
        plan = plan_window(split, transform, packing, seed=seed, epoch=0, window=window)
        packed = plan.build(np.arange(plan.num_rows))
        assert packed.ids.shape == (plan.num_rows, packing.row_tokens)
        for b in range(plan.num_rows):
            for source in read_packed_row(packed, b):
                assert source[0] == SPECIAL.cls and len(source) <= packing.source_tokens
                text = source[1:-1] if source[-1] == SPECIAL.eos else source[1:]
                assert text == list(range(text[0], text[0] + len(text)))
                if source[-1] == SPECIAL.eos:
                    ended.append(text[-1] + 1 - FIRST_ID)
                stored += text
        assert plan.report.tokens == (packed.document >= 0).sum()
    assert sorted(stored) == list(range(FIRST_ID, FIRST_ID + split.num_tokens))
    assert sorted(ended) == split.token_offsets[1:].tolist()


def lognormal_lengths(num_documents: int, median: int, sigma: float, seed: int) -> list[int]:
    lengths = np.random.default_rng(seed).lognormal(np.log(median), sigma, num_documents)
    return np.clip(lengths, 1, 500).astype(int).tolist()


corpora = st.builds(
    make_split,
    st.one_of(
        st.lists(st.integers(1, 400), min_size=1, max_size=5),
        st.builds(
            lognormal_lengths,
            st.integers(2, 120),
            st.integers(20, 80),
            st.sampled_from([0.1, 0.3, 1.0]),
            st.integers(0, 2**32),
        ),
    ),
    st.just(None),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.integers(0, 99),
)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(
    split=corpora,
    cut=st.sampled_from(["fill", "long"]),
    room=st.integers(2, 120),
    short=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 2**63),
)
def test_every_packed_row_rebuilds_its_text(mode, split, cut, room, short, seed):
    packing = PackingConfig(
        source_tokens=64,
        row_tokens=64 + room,
        cut=cut,
        short_sequence_prob=short,
        window_tokens=3000,
    )
    transform = BlankTransform(
        MODES[mode], SPECIAL, source_tokens=64, vocab_size=FIRST_ID + split.num_tokens
    )
    check_epoch(split, transform, packing, seed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("row_tokens", [90, 105, 130])
def test_rows_that_were_cut_to_fill_rebuild_too(mode, row_tokens):
    lengths = np.random.default_rng(row_tokens).integers(40, 62, 300).tolist()
    split = make_split(lengths, [n // 10 for n in lengths], 0.15, seed=0)
    packing = PackingConfig(source_tokens=64, row_tokens=row_tokens)
    transform = BlankTransform(MODES[mode], SPECIAL, source_tokens=64, vocab_size=40_000)
    plan = plan_window(split, transform, packing, seed=3, epoch=0, window=0)
    assert plan.report.documents_cut_to_fill > 5
    check_epoch(split, transform, packing, seed=3)


def test_many_windows_of_many_blocks_rebuild_too():
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 30, 2000).tolist()
    split = make_split(lengths, None, 0.1, seed=0)
    packing = PackingConfig(source_tokens=32, row_tokens=48, window_tokens=7000)
    assert num_windows(split, packing) == 5
    transform = BlankTransform(BlankConfig(), SPECIAL, source_tokens=32, vocab_size=40_000)
    check_epoch(split, transform, packing, seed=4)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=20), st.integers(0, 99))
def test_prompts_are_never_blanked_and_carry_no_loss(lengths, seed):
    prompts = [n // 3 for n in lengths]
    split = make_split(lengths, prompts, 0.1, seed)
    packing = PackingConfig(source_tokens=40, row_tokens=60)
    transform = BlankTransform(
        BlankConfig(), SPECIAL, source_tokens=40, vocab_size=FIRST_ID + split.num_tokens
    )
    plan = plan_window(split, transform, packing, seed=seed, epoch=0, window=0)
    packed = plan.build(np.arange(plan.num_rows))
    learned = set(packed.targets[packed.weights > 0].tolist())
    in_prompt = {
        int(first) + FIRST_ID + i
        for first, prompt in zip(split.token_offsets, prompts)
        for i in range(prompt)
    }
    assert not learned & in_prompt
    assert packed.weights.sum() == sum(
        count for name, count in plan.report.counts.items() if name.startswith("targets_")
    )
    assert asdict(plan.report)["stored_tokens"] == split.num_tokens

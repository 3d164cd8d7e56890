"""Rows of two streams: both halves' rows hold the same documents, and none is dropped."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.loader import Position, training_batches, validation_batches
from data_pipeline.packing.plan import PackingConfig, num_windows, plan_window
from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.storage.shards import open_shards
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds, Vocabulary
from data_pipeline.transforms.causal import CausalTransform
from data_pipeline.transforms.two_streams import TwoStreamTransform

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
ENCODER = Vocabulary(SpecialIds(**{name: 50 - i for i, name in enumerate(SPECIALS)}), 400)
PACKING = PackingConfig(source_tokens=60, row_tokens=64, cut="long", window_tokens=6000)
FIRST_ID = 100  # of the stored tokens; those of document i are FIRST_ID + i


def transform(denoise_ratio: float = 0.0) -> TwoStreamTransform:
    decoder = CausalTransform(SPECIAL, vocab_size=90_000, first_position=1)
    return TwoStreamTransform(decoder, ENCODER, denoise_ratio=denoise_ratio)


def split_of(decoder_lengths, encoder_lengths) -> MemorySplit:
    first, second = (
        MemorySplit.from_documents([np.full(n, FIRST_ID + i) for i, n in enumerate(lengths)])
        for lengths in (decoder_lengths, encoder_lengths)
    )
    return replace(first, encoder=second)


def many(num_documents: int = 700) -> MemorySplit:
    rng = np.random.default_rng(0)
    return split_of(rng.integers(1, 30, num_documents), rng.integers(1, 40, num_documents))


def rows_of(split: MemorySplit, window: int = 0, made=None):
    plan = plan_window(split, made or transform(), PACKING, seed=3, epoch=0, window=window)
    return plan, plan.build(np.arange(plan.num_rows))


def stretches(ids, document) -> list[list[int]]:
    """The documents of one row."""
    return [ids[document == n].tolist() for n in range(document.max() + 1)]


lengths = st.lists(st.tuples(st.integers(1, 58), st.integers(1, 62)), min_size=1, max_size=60)


@given(lengths)
def test_every_document_lies_whole_in_one_row_of_both_streams(pairs):
    first, second = zip(*pairs)
    _, packed = rows_of(split_of(first, second))
    seen, special = [], ENCODER.special
    for row in range(len(packed.ids)):
        written = stretches(packed.ids[row], packed.document[row])
        read = stretches(packed.sources.ids[row], packed.sources.document[row])
        assert len(written) == len(read)
        for ours, theirs in zip(written, read):
            number = ours[1] - FIRST_ID
            assert ours == [SPECIAL.cls, *[number + FIRST_ID] * first[number], SPECIAL.eos]
            assert theirs == [special.cls, *[number + FIRST_ID] * second[number], special.sep]
            seen.append(number)
    assert sorted(seen) == list(range(len(pairs)))


def test_the_decoders_rows_are_those_of_a_causal_model():
    split = split_of([3], [5])
    _, packed = rows_of(split)
    assert packed.ids[0, :6].tolist() == [SPECIAL.cls, 100, 100, 100, SPECIAL.eos, 0]
    assert packed.targets[0, :4].tolist() == [100, 100, 100, SPECIAL.eos]
    assert packed.weights[0].sum() == 4  # eos is a target, CLS is none
    assert packed.position[0, :5].tolist() == [1, 2, 3, 4, 5]


def test_rows_are_filled_by_the_longer_stream():
    split = many(256)  # one window
    plan, packed = rows_of(split)
    assert num_windows(split, PACKING) == 1 and plan.report.documents == 256
    longer = np.maximum(*(s.lengths(np.arange(256)) for s in (split, split.encoder)))
    assert (longer + 2).sum() / (PACKING.row_tokens * plan.num_rows) > 0.95
    counts = plan.report.counts
    assert counts["tokens_decoder"] == (packed.document >= 0).sum()
    assert counts["tokens_encoder"] == (packed.sources.document >= 0).sum()


def batches(split, *, rank=0, world_size=1, start=None, num_workers=0):
    return training_batches(
        split, transform(), PACKING, seed=5, rank=rank, world_size=world_size, micro_rows=2,
        accumulation=2 // world_size, start=start or Position(), num_workers=num_workers,
    )  # fmt: skip


def test_the_order_does_not_depend_on_ranks_and_goes_on_after_a_resume():
    split = many()
    alone = list(islice(batches(split), 180))  # into the second epoch
    assert alone[-1].position.epoch == 1
    ranks = [list(islice(batches(split, rank=r, world_size=2), 90)) for r in range(2)]
    for step in range(90):
        rows = np.stack([r[step].sources.numpy() for r in ranks], 2).reshape(2, 4, -1)
        both = np.concatenate([b.sources.numpy() for b in alone[2 * step : 2 * step + 2]], 1)
        assert (rows == both).all()
    resumed = list(islice(batches(split, start=alone[99].position), 80))
    for ours, theirs in zip(resumed, alone[100:]):
        assert (ours.block == theirs.block).all() and (ours.sources == theirs.sources).all()


def test_denoising_hides_tokens_of_the_encoder_alone():
    split = split_of([20] * 300, [20] * 300)
    _, plain = rows_of(split)
    _, noisy = rows_of(split, made=transform(denoise_ratio=0.3))
    assert (noisy.ids == plain.ids).all()
    ids, was = noisy.sources.ids, plain.sources.ids
    changed = ids != was
    assert 0.25 < changed[was >= FIRST_ID].mean() < 0.30  # a tenth of 0.3 stays as it was
    assert not changed[was < FIRST_ID].any()  # CLS, SEP and padding
    assert (ids[changed] == ENCODER.special.mask).mean() > 0.8
    assert ids.max() < FIRST_ID + 300 and ENCODER.size == 400


@pytest.mark.parametrize(
    "pairs, message",
    [
        (([59], [3]), "document 0 is longer than data.packing.source_tokens"),
        (([3, 4], [3, 63]), "document 1 has 65 tokens of the encoder .* more than a row of 64"),
    ],
)
def test_a_document_that_does_not_fit_is_an_error(pairs, message):
    with pytest.raises(ValueError, match=message):
        rows_of(split_of(*pairs))


def test_shards_of_one_stream_are_refused_where_two_are_read():
    with pytest.raises(ValueError, match=r"the shards hold one stream.*--encoder-tokenizer"):
        next(batches(MemorySplit.from_documents([[100]])))


def test_a_row_decodes_to_the_same_sentences_under_both_tokenizers(
    tmp_path, corpus_file, byte_bpe_folder, wordpiece_folder
):
    prepare(
        PrepareSettings(
            input=[str(corpus_file)], tokenizer=str(byte_bpe_folder), validation=0.2,
            encoder_tokenizer=str(wordpiece_folder), output=str(tmp_path / "shards"), workers=1,
        )
    )  # fmt: skip
    shards = open_shards(tmp_path / "shards")
    encoder, first, second = shards.encoder, shards.tokenizer(), shards.encoder_tokenizer()
    two = TwoStreamTransform(
        CausalTransform(shards.special, vocab_size=shards.vocab_size),
        Vocabulary(encoder.special, encoder.vocab_size),
    )
    longest = max(encoder.longest_tokens["validation"]) + 2
    packing = PackingConfig(source_tokens=longest, row_tokens=2 * longest, cut="long")
    texts = []
    for batch in validation_batches(
        shards.splits["validation"], two, packing, seed=1, rank=0, world_size=1, micro_rows=4
    ):
        ids, document = batch.sources.numpy()
        for row in range(len(batch.ids)):
            written = stretches(batch.ids[row].numpy(), batch.document[row].numpy())
            for ours, theirs in zip(written, stretches(ids[row], document[row]), strict=True):
                text, read = first.decode(ours[1:-1]), second.decode(theirs[1:-1])
                assert read.replace(" ", "") == text.lower().replace(" ", "")
                texts.append(text)
    assert set(texts) <= set(corpus_file.read_text().splitlines())
    assert len(texts) == shards.splits["validation"].num_documents > 30

"""Sentences that latent models are timed on: the same for us and for the peers."""

import itertools

import numpy as np

from bench.sentences import SOURCE_TOKENS, padded_batches, sentence_lengths

VOCAB_SIZE = 300


def test_sentences_have_ten_to_thirty_tokens_and_fit_the_model() -> None:
    lengths_N = sentence_lengths()
    assert 0.6 < np.mean((lengths_N >= 11) & (lengths_N <= 30)) < 0.75
    assert lengths_N.min() >= 3
    assert lengths_N.max() + 2 <= SOURCE_TOKENS


def test_a_padded_batch_is_as_wide_as_its_longest_sentence() -> None:
    for ids_BT, mask_BT in itertools.islice(
        padded_batches(VOCAB_SIZE, sentences=64, by_length=False), 3
    ):
        assert ids_BT.shape == mask_BT.shape
        assert mask_BT.sum(1).max() == mask_BT.shape[1]
        assert (mask_BT.diff(dim=1) <= 0).all()  # padding on the right


def test_batches_by_length_hold_the_same_sentences_with_less_padding() -> None:
    found = {}
    for by_length in (False, True):
        batches = padded_batches(VOCAB_SIZE, sentences=64, by_length=by_length)
        masks = [mask_BT for _, mask_BT in itertools.islice(batches, len(sentence_lengths()) // 64)]
        lengths = sorted(length for mask_BT in masks for length in mask_BT.sum(1).tolist())
        assert lengths == sorted((sentence_lengths() + 2).tolist())
        found[by_length] = sum(mask_BT.numel() for mask_BT in masks)
    assert found[True] < 0.6 * found[False]

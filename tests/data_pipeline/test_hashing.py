"""Hashes are the reference splitmix64, uniform, and depend on nothing but their arguments."""

import numpy as np
import pytest

from data_pipeline.hashing import draws, key, mix, mix_ints, uniform, uniform_int

KEYS = key(7, 0, np.arange(100_000), np.zeros(100_000, np.int64))


def test_draws_of_key_zero_are_the_published_splitmix64_stream():
    # the first outputs of the reference C code seeded with 0
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert draws(np.zeros(3, np.uint64), np.arange(3)).tolist() == expected
    assert [int(draws(np.zeros(1, np.uint64), i)[0]) for i in range(3)] == expected


def test_mix_leaves_its_argument_alone_and_keeps_the_shape():
    words = np.arange(6, dtype=np.uint64).reshape(2, 3)
    assert mix(words).shape == (2, 3)
    assert words.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_key_depends_on_every_argument_and_on_no_neighbour():
    base = key(1, 2, np.array([3]), np.array([4]))[0]
    others = [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0), (2, 1, 3, 4), (1, 2, 4, 3)]
    assert len({base, *(key(s, e, np.array([d]), np.array([t]))[0] for s, e, d, t in others)}) == 7
    assert key(1, 2, np.array([9, 3, 5]), np.array([0, 4, 1]))[1] == base


def test_keys_do_not_collide():
    documents, starts = np.divmod(np.arange(1_000_000), 1000)
    assert len(np.unique(key(0, 0, documents, starts))) == 1_000_000


@pytest.mark.parametrize("draw", [0, 1, 17])
def test_uniform_draws_are_flat(draw):
    counts = np.histogram(uniform(KEYS, draw), bins=100, range=(0, 1))[0]
    assert counts.sum() == len(KEYS)
    assert ((counts - 1000) ** 2 / 1000).sum() < 99 + 5 * np.sqrt(2 * 99)  # chi-squared, 5 sigma


def test_draws_of_neighbouring_numbers_and_keys_are_uncorrelated():
    first, second = uniform(KEYS, 0), uniform(KEYS, 1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(KEYS))
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 5 / np.sqrt(len(KEYS))


def test_uniform_int_covers_exactly_its_range():
    bounds = np.tile([1, 2, 7, 100], 25_000)
    values = uniform_int(KEYS, 3, bounds)
    for bound in (1, 2, 7, 100):
        counts = np.bincount(values[bounds == bound])
        assert len(counts) == bound
        assert np.abs(counts - 25_000 / bound).max() < 5 * np.sqrt(25_000 / bound)


def test_mix_ints_tells_orders_and_negative_numbers_apart():
    values = [mix_ints(1, 2), mix_ints(2, 1), mix_ints(-1), mix_ints(1), mix_ints(), mix_ints(0)]
    assert len(set(values)) == 6

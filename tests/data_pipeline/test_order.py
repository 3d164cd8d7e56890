"""An epoch visits every document once, in an order that looks random and costs nothing to start."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.packing.order import Bijection, num_blocks, window_documents

SIZES = [1, 2, 3, 4, 5, 7, 1000, 4096, 4097, 65536, 65537, 1_000_003]


@pytest.mark.parametrize("size", SIZES)
def test_a_bijection_gives_every_number_once(size):
    numbers = Bijection(size, seed=3)(np.arange(size))
    assert np.array_equal(np.sort(numbers), np.arange(size))


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1), st.data())
def test_any_part_of_a_bijection_agrees_with_the_whole(size, seed, data):
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = Bijection(size, seed)(np.arange(size))
    assert np.array_equal(Bijection(size, seed)(np.arange(start, stop)), whole[start:stop])
    assert np.array_equal(np.sort(whole), np.arange(size))


def test_every_order_of_four_comes_up():
    orders = {tuple(Bijection(4, seed)(np.arange(4))) for seed in range(2000)}
    assert len(orders) == 24


@pytest.mark.parametrize("size", [2_000_000, 2**21, 2**21 + 1])
def test_a_bijection_is_uniform_and_leaves_no_neighbours_together(size):
    numbers = Bijection(size, seed=11)(np.arange(200_000))
    counts = np.histogram(numbers, bins=256, range=(0, size))[0]
    expected = 200_000 / 256
    assert ((counts - expected) ** 2 / expected).sum() / 255 < 1.5
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.012  # 5 sigma


def test_each_place_holds_each_number_equally_often():
    size, num_seeds = 13, 13_000
    counts = np.zeros((size, size))
    for seed in range(num_seeds):
        counts[np.arange(size), Bijection(size, seed)(np.arange(size))] += 1
    expected = num_seeds / size
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected)


@pytest.mark.parametrize(
    ("num_documents", "num_windows"), [(1, 1), (255, 1), (257, 2), (2000, 3), (70_001, 17)]
)
def test_windows_of_an_epoch_hold_every_document_once(num_documents, num_windows):
    parts = [
        window_documents(num_documents, num_windows, seed=5, epoch=2, window=window)
        for window in range(num_windows)
    ]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(num_documents))


def test_orders_differ_between_seeds_and_between_epochs():
    orders = {
        tuple(window_documents(1000, 2, seed=seed, epoch=epoch, window=0)[:20])
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


def test_a_window_reads_whole_blocks_of_neighbours():
    numbers = window_documents(1_000_000, 100, seed=0, epoch=0, window=42)
    assert np.array_equal(np.unique(np.unique(numbers // 256, return_counts=True)[1]), [256])
    assert len(numbers) // 256 in (num_blocks(1_000_000) // 100, num_blocks(1_000_000) // 100 + 1)


def test_a_window_in_a_billion_documents_is_there_at_once():
    started_at = time.process_time()
    numbers = window_documents(10**9, 152_588, seed=0, epoch=3, window=99_999)
    assert time.process_time() - started_at < 0.25
    assert numbers.max() < 10**9 and len(np.unique(numbers)) == len(numbers)

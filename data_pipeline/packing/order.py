"""Which documents come when: a keyed bijection that stores nothing and starts at once.

An epoch visits every document once. Blocks of 256 consecutive documents are shuffled over the
corpus, so that a window touches a few thousand bytes of index in each of its blocks and not one
page per document; then the documents of a window are shuffled among themselves.

    corpus      | block 0 | block 1 | block 2 | block 3 | block 4 |     1,200 documents
    epoch 0     | block 3 | block 0 || block 4 | block 2 | block 1 |    windows of 2 and 3 blocks
    window 0    the documents of blocks 3 and 0 in an order of their own

Both shuffles are Feistel networks (Luby and Rackoff 1988) of four rounds on just as many bits as
the numbers need, with cycle walking: a result that is no valid number is sent through again until
it is one. Less than half of the results are invalid: the walk takes under two steps on average.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline.hashing import GOLDEN, mix_ints

BLOCK_DOCUMENTS = 256
NUM_ROUNDS = 4
_BLOCKS, _DOCUMENTS = 1, 2  # names of the two streams of round keys


@dataclass(frozen=True)
class Bijection:
    """A shuffle of 0..size - 1 chosen by `seed`: called with places, it gives the numbers there."""

    size: int
    seed: int

    def __call__(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers at the given places, int64; index: any places in 0..size - 1."""
        keys = [np.uint64(mix_ints(self.seed, self.size, r) | 1) for r in range(NUM_ROUNDS)]
        x = self._rounds(np.asarray(index).astype(np.uint64), keys)
        outside = np.flatnonzero(x >= self.size)
        while len(outside):
            x[outside] = self._rounds(x[outside], keys)
            outside = outside[x[outside] >= self.size]
        return x.astype(np.int64)

    def _rounds(self, x: NDArray[np.uint64], keys: list[np.uint64]) -> NDArray[np.uint64]:
        num_bits = (self.size - 1).bit_length()
        right_bits, left_bits = (num_bits + 1) // 2, num_bits // 2
        left, right = x >> np.uint64(right_bits), x & _low_bits(right_bits)
        for round_key in keys:
            hashed = (right + round_key) * np.uint64(GOLDEN)
            hashed ^= hashed >> np.uint64(29)
            hashed *= round_key
            hashed >>= np.uint64(32)
            hashed ^= left
            hashed &= _low_bits(left_bits)
            left, right = right, hashed
            left_bits, right_bits = right_bits, left_bits
        return (left << np.uint64(right_bits)) | right


def _low_bits(num_bits: int) -> np.uint64:
    return np.uint64((1 << num_bits) - 1)


def num_blocks(num_documents: int) -> int:
    """Blocks of 256 consecutive documents, the last one perhaps shorter."""
    return -(-num_documents // BLOCK_DOCUMENTS)


def window_documents(
    num_documents: int, num_windows: int, *, seed: int, epoch: int, window: int
) -> NDArray[np.int64]:
    """Document numbers of one window in their order, int64 (N,).

    num_windows: windows of an epoch, at most the number of blocks. Together they hold every
    document once, and each holds as many blocks as the others or one more.
    """
    blocks = num_blocks(num_documents)
    assert 0 <= window < num_windows <= blocks
    places = np.arange(window * blocks // num_windows, (window + 1) * blocks // num_windows)
    block_numbers = Bijection(blocks, mix_ints(seed, epoch, _BLOCKS))(places)
    numbers = (block_numbers[:, None] * BLOCK_DOCUMENTS + np.arange(BLOCK_DOCUMENTS)).ravel()
    numbers = numbers[numbers < num_documents]
    shuffle = Bijection(len(numbers), mix_ints(seed, epoch, _DOCUMENTS, window))
    return numbers[shuffle(np.arange(len(numbers)))]

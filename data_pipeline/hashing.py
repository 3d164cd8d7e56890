"""Random numbers as pure functions: hashes of (seed, epoch, document, draw number).

No generator has a state that could depend on the rank, the worker or the length of the run, and a
million draws are a few array operations. The hash is the finalizer of splitmix64 (Steele, Lea and
Flood 2014).

    keys_N = key(seed, epoch, document_N, start_N)      one key for each piece of text
    uniform(keys_N, 0)                                  its draw number 0, in [0, 1)
    uniform_int(keys_N, 1, bound_N)                     its draw number 1, in 0..bound - 1

Draws of one key with different numbers are independent, and so are the draws of different keys.
Whoever needs many draws of a key at once repeats the key and passes an array of draw numbers.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

WORD_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: the step of splitmix64
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finalizer of every element: a bijection of 64-bit words without pattern."""
    mixed = np.array(x, dtype=np.uint64, ndmin=1)
    shifted = np.empty_like(mixed)
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        np.right_shift(mixed, np.uint64(shift), out=shifted)
        mixed ^= shifted
        mixed *= np.uint64(multiplier)
    np.right_shift(mixed, np.uint64(_SHIFTS[2]), out=shifted)
    mixed ^= shifted
    return mixed.reshape(np.shape(x))


def mix_ints(*values: int) -> int:
    """One 64-bit hash of a few Python integers and their order: seeds, epochs, names of streams."""
    state = 0
    for value in values:
        state = (state + value + GOLDEN) & WORD_MASK
        for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
            state = ((state ^ (state >> shift)) * multiplier) & WORD_MASK
        state ^= state >> _SHIFTS[2]
    return state


def key(
    seed: int, epoch: int, document_N: NDArray[np.int64], start_N: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """The hash keys of N pieces of text; the key of a piece does not depend on the others.

    document_N: document numbers inside the split; start_N: the piece's first token in its document.
    """
    documents = np.asarray(document_N).astype(np.uint64) * np.uint64(GOLDEN)
    starts = np.asarray(start_N).astype(np.uint64) * np.uint64(GOLDEN)
    documents += np.uint64(mix_ints(seed, epoch))
    starts += mix(documents)
    return mix(starts)


def draws(keys: NDArray[np.uint64], draw: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each key; draw: the number of the draw, >= 0, or an array of numbers."""
    if isinstance(draw, int):
        return mix(keys + np.uint64((draw + 1) * GOLDEN & WORD_MASK))
    steps = np.asarray(draw).astype(np.uint64)
    return mix(keys + (steps + np.uint64(1)) * np.uint64(GOLDEN))


def uniform(keys: NDArray[np.uint64], draw: ArrayLike) -> NDArray[np.float64]:
    """A float in [0, 1) for each key, on a grid of 2^-53."""
    return (draws(keys, draw) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform_int(keys: NDArray[np.uint64], draw: ArrayLike, bound: ArrayLike) -> NDArray[np.int64]:
    """An integer in 0..bound - 1 for each key; bound: one for all or one for each, in 1..2^32.

    The upper 32 bits are scaled by the bound: a bias of bound / 2^32, far below what can be seen.
    """
    bounds = np.asarray(bound).astype(np.uint64)
    return (((draws(keys, draw) >> np.uint64(32)) * bounds) >> np.uint64(32)).astype(np.int64)


def normal(keys: NDArray[np.uint64], draw: ArrayLike) -> NDArray[np.float64]:
    """A draw from N(0, 1) for each key. Takes the draws 2 x draw and 2 x draw + 1 (Box-Muller)."""
    first = 2 * np.atleast_1d(np.asarray(draw, np.int64))
    radius = np.sqrt(-2.0 * np.log1p(-uniform(keys, first)))
    return radius * np.cos(2.0 * np.pi * uniform(keys, first + 1))

"""The first of equal documents stays, however they are spread over files and stretches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_pipeline.preparing.duplicates as room
from data_pipeline.preparing.duplicates import find_repeats


def brute_force(pairs: list[tuple[int, int]]) -> list[bool]:
    return [pair in pairs[:number] for number, pair in enumerate(pairs)]


words = st.sampled_from([0, 1, 2, 1 << 63, (1 << 64) - 1])


@pytest.mark.parametrize("sorted_at_once", [1, 3, 1000])
@given(blocks=st.lists(st.lists(st.tuples(words, words), max_size=6), max_size=6))
def test_repeats_are_those_of_brute_force(tmp_path_factory, sorted_at_once, blocks):
    pairs = [pair for block in blocks for pair in block]
    given = [np.array(block, np.uint64).reshape(-1, 2) for block in blocks]
    folder = tmp_path_factory.mktemp("sorting")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_SORTED_AT_ONCE", sorted_at_once)
        found = find_repeats(given, len(pairs), folder)[: len(pairs)]
    assert found.tolist() == brute_force(pairs)


def test_one_document_repeated_needs_no_more_memory_than_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_SORTED_AT_ONCE", 100)
    largest = []
    plain = room._repeats
    monkeypatch.setattr(
        room, "_repeats", lambda seen, new: (largest.append(len(seen)), plain(seen, new))[1]
    )
    same = np.full((50, 2), 7, np.uint64)
    repeats = find_repeats([same] * 20, 1000, tmp_path)
    assert repeats.sum() == 999 and not repeats[0]
    assert max(largest) == 1 and len(largest) == 10


def test_the_answer_has_its_place_on_the_disk_before_it_is_written(tmp_path):
    repeats = find_repeats([], 1 << 20, tmp_path)
    assert not repeats.any()
    assert 512 * (tmp_path / "repeats").stat().st_blocks >= 1 << 20


def test_files_are_removed_as_they_are_done(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_SORTED_AT_ONCE", 10)
    find_repeats([np.random.default_rng(0).integers(0, 99, (200, 2), np.uint64)], 200, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["repeats"]

"""What is written is read back, from any document, over any number of shards."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.storage import shards as shards_module
from data_pipeline.storage.manifest import SplitEntry, split_fingerprint
from data_pipeline.storage.shard_files import index_layout, index_size_bytes
from data_pipeline.storage.shard_writer import ShardWriter
from data_pipeline.storage.shards import Split
from data_pipeline.storage.stored import StoredDocuments


def stored(documents) -> StoredDocuments:
    tokens, prompts, ends = zip(*documents)
    return StoredDocuments(
        tokens=np.array([t for d in tokens for t in d], np.int32),
        lengths_N=np.array([len(d) for d in tokens]),
        prompt_lengths_N=np.array(prompts),
        sentence_ends=np.array([e for d in ends for e in d]),
        num_ends_N=np.array([len(d) for d in ends]),
        text_hash_N=np.zeros(len(documents), np.uint64),
    )


def write(folder, documents, dtype="uint16", shard_tokens=10) -> Split:
    """documents: (tokens, prompt length, sentence ends) each; given to the writer by threes."""
    writer = ShardWriter(folder, "train", dtype, shard_tokens)
    for at in range(0, len(documents), 3):
        writer.add(stored(documents[at : at + 3]))
    shards = writer.close()
    entry = SplitEntry(
        documents=sum(s.documents for s in shards),
        tokens=sum(s.tokens for s in shards),
        fingerprint=split_fingerprint(dtype, "t", shards),
        shards=shards,
    )
    return Split(folder, "train", entry, dtype, 1 << 16)


THREE = [([1, 2, 3, 4, 5], 0, [2, 5]), ([6] * 9, 4, [4, 9]), ([7, 8, 9], 0, [3])]


def test_three_documents_are_read_as_written(tmp_path):
    split = write(tmp_path, THREE)
    assert (split.num_documents, split.num_tokens) == (3, 17)
    assert split.lengths([0, 2, 1]).tolist() == [5, 3, 9]
    assert split.prompt_lengths([0, 1]).tolist() == [0, 4]
    ends, offsets = split.sentence_ends([1, 0])
    assert (ends.tolist(), offsets.tolist()) == ([4, 9, 2, 5], [0, 2, 4])
    assert split.tokens([0, 2, 0], [0, 1, 3], [2, 3, 3]).tolist() == [1, 2, 8, 9]


def test_a_shard_is_closed_by_the_document_that_fills_it(tmp_path):
    write(tmp_path, THREE)
    names = sorted(p.name for p in (tmp_path / "train").iterdir())
    assert names == ["00000.index", "00000.tokens", "00001.index", "00001.tokens"]
    assert (tmp_path / "train/00000.tokens").stat().st_size == 2 * 14


documents_of = st.lists(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 65535), min_size=n, max_size=n),
            st.integers(0, n - 1),
            st.sets(st.integers(1, n)).map(lambda ends: sorted(ends | {n})),
        )
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=60)
@given(documents_of, st.integers(1, 30), st.sampled_from(["uint16", "int32"]), st.randoms())
def test_any_documents_are_read_as_written(tmp_path_factory, documents, shard_tokens, dtype, rng):
    split = write(tmp_path_factory.mktemp("s"), documents, dtype, shard_tokens)
    chosen = [rng.randrange(len(documents)) for _ in range(rng.randrange(30))]
    starts = [rng.randint(0, len(documents[d][0])) for d in chosen]
    stops = [rng.randint(a, len(documents[d][0])) for d, a in zip(chosen, starts)]
    expected = [t for d, a, b in zip(chosen, starts, stops) for t in documents[d][0][a:b]]
    tokens = split.tokens(chosen, starts, stops)
    assert tokens.tolist() == expected and tokens.dtype == np.int32
    assert split.lengths(chosen).tolist() == [len(documents[d][0]) for d in chosen]
    assert split.prompt_lengths(chosen).tolist() == [documents[d][1] for d in chosen]
    ends, offsets = split.sentence_ends(chosen)
    assert [ends[a:b].tolist() for a, b in pairwise(offsets)] == [documents[d][2] for d in chosen]


def test_long_stretches_are_read_as_short_ones(tmp_path, monkeypatch):
    split = write(tmp_path, THREE * 4)
    chosen, starts, stops = [9, 0, 5, 1, 1], [1, 0, 0, 8, 0], [4, 5, 3, 9, 9]
    expected = split.tokens(chosen, starts, stops)
    monkeypatch.setattr(shards_module, "_LONG_STRETCH", 1)
    assert np.array_equal(split.tokens(chosen, starts, stops), expected)


def test_few_files_are_open_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "_MAX_MAPPED", 2)
    split = write(tmp_path, [([n], 0, [1]) for n in range(9)], shard_tokens=1)
    assert split.tokens(range(9), [0] * 9, [1] * 9).tolist() == list(range(9))
    assert len(split._mapped) == 2


def test_a_split_travels_to_another_process_as_a_path(tmp_path):
    split = write(tmp_path, THREE)
    split.lengths([0])
    message = pickle.dumps(split)
    assert len(message) < 2000
    arrived = pickle.loads(message)  # noqa: S301 (our own bytes)
    assert arrived.tokens([1], [0], [2]).tolist() == [6, 6]


def test_questions_outside_a_document_are_our_mistake(tmp_path):
    split = write(tmp_path, THREE)
    with pytest.raises(AssertionError, match="outside a document"):
        split.tokens([0], [0], [6])
    with pytest.raises(AssertionError, match=r"outside \[0, 3\)"):
        split.lengths([3])


def test_the_fingerprint_follows_the_content(tmp_path):
    first = write(tmp_path / "a", THREE).fingerprint
    assert write(tmp_path / "b", THREE).fingerprint == first
    changed = [*THREE[:2], ([7, 8, 10], 0, [3])]
    assert write(tmp_path / "c", changed).fingerprint != first


def test_the_arrays_of_an_index_lie_one_behind_the_other():
    assert index_layout(2, 3) == {
        "token_offsets": ("<u8", 3, 32),
        "sentence_offsets": ("<u8", 3, 56),
        "prompt_lengths": ("<u4", 2, 80),
        "sentence_ends": ("<u4", 3, 88),
    }
    assert index_size_bytes(2, 3) == 100


def test_a_header_that_is_not_the_manifests_is_refused(tmp_path):
    split = write(tmp_path, THREE)
    path = tmp_path / "train/00000.index"
    path.write_bytes(b"X" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"00000\.index is damaged"):
        split.lengths([0])

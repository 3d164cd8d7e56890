"""A part is there whole or not at all, and whatever befalls it is found before it is merged."""

import numpy as np
import pytest

from data_pipeline.preparing.parts import PartWriter, PieceRecord, blocks, finished_slice, part_path
from data_pipeline.storage.shard_writer import ShardWriter
from data_pipeline.storage.stored import StoredDocuments


def documents(lengths, first_token=0) -> tuple[StoredDocuments, np.ndarray]:
    lengths_N = np.array(lengths)
    hashes = np.arange(len(lengths), dtype=np.uint64) + np.uint64(1 << 63)
    stored = StoredDocuments(
        tokens=np.arange(lengths_N.sum(), dtype=np.int32) + first_token,
        lengths_N=lengths_N,
        prompt_lengths_N=lengths_N // 2,
        sentence_ends=lengths_N,
        num_ends_N=np.ones_like(lengths_N),
        text_hash_N=hashes,
    )
    return stored, np.column_stack([hashes, ~hashes])


def write(folder, dtype="uint16"):
    with PartWriter(folder, "ab", dtype) as part:
        part.add(*documents([3, 1, 4]))
        part.add(*documents([5], first_token=60_000))
        return part.finish(
            [PieceRecord(documents=4, size_bytes=70, xxh3="0f")], {"blank": 2}, {}, {}
        )


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_a_part_gives_back_its_documents(tmp_path, dtype):
    record = write(tmp_path, dtype)
    assert finished_slice(tmp_path, "ab") == record
    (first, identity_N2), (second, _) = blocks(tmp_path, record, dtype)
    expected, expected_N2 = documents([3, 1, 4])
    for name, array in vars(expected).items():
        assert np.array_equal(getattr(first, name), array), name
    assert np.array_equal(identity_N2, expected_N2)
    assert second.tokens.tolist() == list(range(60_000, 60_005))
    assert record.documents == 4


def test_a_part_that_was_not_finished_is_not_there(tmp_path):
    with pytest.raises(KeyError), PartWriter(tmp_path, "ab", "uint16") as part:
        part.add(*documents([3]))
        raise KeyError
    assert finished_slice(tmp_path, "ab") is None and not any(tmp_path.iterdir())


def test_two_writers_of_one_part_are_both_right(tmp_path):
    with PartWriter(tmp_path, "ab", "uint16") as slow:
        slow.add(*documents([3, 1, 4]))
        write(tmp_path)
        slow.add(*documents([5], first_token=60_000))
        again = slow.finish(
            [PieceRecord(documents=4, size_bytes=70, xxh3="0f")], {"blank": 2}, {}, {}
        )
    assert finished_slice(tmp_path, "ab") == again == write(tmp_path)
    assert len(list(blocks(tmp_path, again, "uint16"))) == 2


def merge(folder, record, dtype, output) -> None:
    """What prepare does with a part, and what trips over counts that are wrong."""
    writer = ShardWriter(output, "train", dtype, 4)
    for stored, _ in blocks(folder, record, dtype):
        writer.add(stored.take(np.arange(len(stored)) != 1))
    writer.close()


def test_any_flipped_byte_of_a_part_is_found_before_it_is_merged(tmp_path):
    size = write(tmp_path).size_bytes
    for place in range(size):
        record = write(tmp_path)
        path = part_path(tmp_path, "ab")
        content = bytearray(path.read_bytes())
        content[place] ^= 0x81
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"ab\.part is damaged and was removed"):
            merge(tmp_path, record, "uint16", tmp_path / f"merged-{place}")
        assert finished_slice(tmp_path, "ab") is None


@pytest.mark.parametrize("name", ["ab.part", "ab.json"])
@pytest.mark.parametrize("keep", [0, 5, -1])
def test_a_file_cut_short_is_no_finished_slice(tmp_path, name, keep):
    write(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:keep])
    assert finished_slice(tmp_path, "ab") is None


def test_an_edited_record_is_no_finished_slice(tmp_path):
    write(tmp_path)
    path = tmp_path / "ab.json"
    path.write_text(path.read_text().replace('"blank": 2', '"blank": 3'))
    assert finished_slice(tmp_path, "ab") is None

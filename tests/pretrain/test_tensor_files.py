"""tensor_files.py: files that the safetensors library reads, hashed while written."""

from pathlib import Path

import pytest
import torch
import xxhash
from safetensors import safe_open

from pretrain.checkpoints.tensor_files import TensorWriter, read_hashed

TENSORS = {
    "odd": torch.arange(7.0),
    "half": torch.arange(6.0).reshape(2, 3).bfloat16(),
    "none": torch.zeros(0, 4),
    "turned": torch.arange(6.0).reshape(2, 3).t(),
}


def _written(path: Path) -> dict[str, object]:
    layout = {name: (t.dtype, tuple(t.shape)) for name, t in TENSORS.items()}
    with TensorWriter(path, layout, metadata={"format": "pt"}) as writer:
        for tensor in TENSORS.values():
            writer.write(tensor)
        return writer.finish()


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    _written(tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(TENSORS)
        for name, tensor in TENSORS.items():
            assert torch.equal(file.get_tensor(name), tensor)
            assert file.get_tensor(name).dtype == tensor.dtype


def test_size_and_hash_are_those_of_the_file(tmp_path: Path) -> None:
    entry = _written(tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    assert entry == {"size_bytes": len(data), "xxh3": xxhash.xxh3_128_hexdigest(data)}


def test_tensors_begin_where_a_number_may(tmp_path: Path) -> None:
    _written(tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    assert int.from_bytes(data[:8], "little") % 8 == 0


WHOLE = {"a": torch.arange(600_000.0).reshape(2, -1), "b": torch.zeros(0), "c": torch.ones(3)}


def _whole(path: Path) -> dict[str, object]:
    layout = {name: (t.dtype, tuple(t.shape)) for name, t in WHOLE.items()}
    writer = TensorWriter(path, layout, metadata={"a": "b"})
    for tensor in WHOLE.values():
        writer.write(tensor)
    return writer.finish()


def test_what_was_written_is_read_in_one_pass_with_its_hash(tmp_path: Path) -> None:
    entry = _whole(tmp_path / "a.safetensors")
    into = {name: torch.full_like(tensor, -1) for name, tensor in reversed(WHOLE.items())}
    assert read_hashed(tmp_path / "a.safetensors", into) == entry
    assert all(torch.equal(into[name], tensor) for name, tensor in WHOLE.items())


@pytest.mark.parametrize(
    ("into", "said"),
    [
        ({"a": (2, 300_000), "b": (0,)}, "c is not what is wanted"),
        ({"a": (2, 300_000), "b": (0,), "c": (4,)}, "c is not what is wanted"),
        ({"a": (2, 300_000), "b": (0,), "c": (3,), "d": (1,)}, "3 tensors instead of 4"),
    ],
)
def test_other_tensors_than_those_wanted_are_an_error(
    into: dict[str, tuple[int, ...]], said: str, tmp_path: Path
) -> None:
    _whole(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=said):
        read_hashed(tmp_path / "a.safetensors", {n: torch.zeros(s) for n, s in into.items()})


def test_a_file_that_ends_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    _whole(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="ends in the middle of c"):
        read_hashed(path, {name: torch.zeros_like(tensor) for name, tensor in WHOLE.items()})


def test_a_file_without_tensors_is_one_too(tmp_path: Path) -> None:
    TensorWriter(tmp_path / "b.safetensors", {}, metadata={"fragments": "{}"}).finish()
    with safe_open(tmp_path / "b.safetensors", framework="pt") as file:
        assert file.metadata() == {"fragments": "{}"}


def test_a_tensor_of_another_shape_or_a_missing_one_is_our_mistake(tmp_path: Path) -> None:
    writer = TensorWriter(tmp_path / "c", {"a": (torch.float32, (2,))}, metadata={})
    with pytest.raises(AssertionError, match="was not written"):
        writer.finish()
    with pytest.raises(AssertionError, match="a"):
        writer.write(torch.zeros(3))

"""safetensors files written and read one tensor at a time, and hashed on the way.

    writer = TensorWriter(path, {"bias": (torch.float32, (8,))}, metadata={})
    writer.write(bias)
    entry = writer.finish()                     # {"size_bytes": 136, "xxh3": "..."}
    read_hashed(path, {"bias": bias}) == entry  # bias is filled from the file

The library's own save_file wants all tensors at once, which for a model that is gathered parameter
by parameter means the whole model in one process; and it hashes nothing, so that a checksum would
read the file once more. Format: https://huggingface.co/docs/safetensors
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
import xxhash
from torch import Tensor

_BLOCK_BYTES = 1 << 20  # stays in the processor's cache while it is hashed and copied
_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]  # name -> dtype and shape, in file order


class TensorWriter:
    """A safetensors file in the making; its tensors come in the order of `layout`."""

    def __init__(self, path: Path, layout: Layout, *, metadata: Mapping[str, str]) -> None:
        """Create the file and write its header. OSError where the disk refuses."""
        self._path = path
        self._expected = list(layout.items())
        self._digest = xxhash.xxh3_128()
        self._size_bytes = 0
        self._file = open(path, "wb")  # noqa: SIM115 (closed by finish, or with the writer)
        self._put(_header(layout, metadata))

    def write(self, tensor: Tensor) -> None:
        """The next tensor, from any device. OSError where the disk refuses."""
        name, (dtype, shape) = self._expected.pop(0)
        assert tensor.dtype == dtype and tensor.shape == torch.Size(shape), name
        flat = tensor.detach().reshape(-1).to("cpu")
        self._put(flat.view(torch.uint8).numpy().data)

    def finish(self) -> dict[str, Any]:
        """Size and xxh3 of the file, whose bytes are on the disk when this returns."""
        assert not self._expected, f"{self._expected[0][0]} was not written"
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"size_bytes": self._size_bytes, "xxh3": self._digest.hexdigest()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._file.close()
        except OSError:  # a full disk has been reported by the write that met it
            assert self._path.is_file()

    def _put(self, data: bytes | memoryview) -> None:
        for start in range(0, len(data), _BLOCK_BYTES):
            block = data[start : start + _BLOCK_BYTES]
            self._digest.update(block)
            self._file.write(block)
        self._size_bytes += len(data)


@torch.no_grad()
def read_hashed(path: Path, into: Mapping[str, Tensor]) -> dict[str, Any]:
    """Fill every tensor of `into` from the file, which holds just these; its size and xxh3.

    One pass: whoever needs the hash to be right compares it afterwards. Raises ValueError for a
    file of another make.
    """
    digest, block = xxhash.xxh3_128(), memoryview(bytearray(_BLOCK_BYTES))
    with open(path, "rb", buffering=0) as file:
        start = file.read(8)
        text = file.read(int.from_bytes(start, "little"))
        digest.update(start + text)
        for name, length in _places(text, into):
            flat = into[name].reshape(-1)
            done = 0
            while done < length:
                size = file.readinto(block[: min(_BLOCK_BYTES, 4 * (length - done))])
                if not size or size % 4:
                    raise ValueError(f"{path} ends in the middle of {name}.")
                digest.update(block[:size])
                part = torch.frombuffer(block, dtype=torch.float32, count=size // 4)
                flat[done : done + len(part)].copy_(part)
                done += len(part)
        size_bytes = file.tell()
    return {"size_bytes": size_bytes, "xxh3": digest.hexdigest()}


def _places(header: bytes, into: Mapping[str, Tensor]) -> list[tuple[str, int]]:
    """Names and elements of the tensors in the order of the file; all fp32, without gaps."""
    entries = json.loads(header)
    entries.pop("__metadata__", None)
    in_order = sorted(entries.items(), key=lambda item: item[1]["data_offsets"])
    end = 0
    for name, entry in in_order:
        begin, end_before = entry["data_offsets"][0], end
        end = entry["data_offsets"][1]
        fits = name in into and end - begin == 4 * into[name].numel() and begin == end_before
        if entry["dtype"] != "F32" or not fits:
            raise ValueError(f"{name} is not what is wanted of it.")
    if len(in_order) != len(into):
        raise ValueError(f"it holds {len(in_order)} tensors instead of {len(into)}.")
    return [(name, into[name].numel()) for name, _ in in_order]


def _header(layout: Layout, metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in layout.items():
        begin, end = end, end + dtype.itemsize * math.prod(shape)
        entries[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # the format's padding: data begins at a multiple of 8
    return len(text).to_bytes(8, "little") + text

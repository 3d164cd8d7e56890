"""safetensors files written one tensor at a time and hashed on the way to the disk.

    writer = TensorWriter(path, {"bias": (torch.float32, (8,))}, metadata={})
    writer.write(bias)
    entry = writer.finish()                     # {"size_bytes": 136, "xxh3": "..."}

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
        self._digest.update(data)
        self._file.write(data)
        self._size_bytes += len(data)


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

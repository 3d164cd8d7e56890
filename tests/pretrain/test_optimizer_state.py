"""optimizer_state.py: fragments of any cut put a rank's state together again."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from pretrain.checkpoints.optimizer_state import KINDS, fragments, is_own, read, read_own, write
from pretrain.checkpoints.tensor_files import TensorWriter


def _engine(seed: int, updates: int, *, rank: int = 0, world_size: int = 1) -> Any:
    """A rank at stage 0, with what optimizer_state looks at."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3))
    module[1].bias.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for _ in range(updates):
        module(torch.randn(2, 5)).square().sum().backward()
        optimizer.step()
    world, deepspeed = SimpleNamespace(rank=rank, world_size=world_size), SimpleNamespace()
    deepspeed.optimizer = optimizer
    return SimpleNamespace(stage=0, module=module, deepspeed=deepspeed, world=world)


def _state(engine: Any) -> dict[str, Any]:
    return {
        f.name: [f.start, int(f.step), *(f.tensors[kind].tolist() for kind in KINDS)]
        for together in fragments(engine)
        for f in together
    }


def test_what_was_written_is_read_and_frozen_parameters_have_no_state(tmp_path: Path) -> None:
    trained, fresh = _engine(1, updates=3), _engine(2, updates=0)
    write(trained, tmp_path / "a")
    assert _state(fresh) != _state(trained)
    read(fresh, [tmp_path / "a"])
    assert _state(fresh) == _state(trained)
    assert set(_state(fresh)) == {"0.weight", "0.bias", "1.weight"}


def test_the_optimizer_goes_on_from_what_was_read(tmp_path: Path) -> None:
    trained, fresh = _engine(1, updates=3), _engine(2, updates=0)
    write(trained, tmp_path / "a")
    read(fresh, [tmp_path / "a"])
    fresh.module[1].bias.data.copy_(trained.module[1].bias)
    for engine in (trained, fresh):
        engine.deepspeed.optimizer.zero_grad()
        engine.module(torch.ones(2, 5)).square().sum().backward()
        engine.deepspeed.optimizer.step()
    assert _state(fresh) == _state(trained)


def _cut(engine: Any, folder: Path, edges: list[int]) -> list[Path]:
    """The state of `engine` in files of fragments that begin at `edges`, as other ranks cut it."""
    paths = []
    for number, (first, last) in enumerate(itertools.pairwise(edges)):
        parts = {}
        (together,) = fragments(engine)
        for f in together:
            start, end = min(first, f.end), min(last, f.end)
            if start < end:
                parts[f.name] = (f, start, end)
        layout = {
            f"{name}/{kind}": (torch.float32, (end - start,))
            for name, (_, start, end) in parts.items()
            for kind in KINDS
        }
        places = {name: [start, end, int(f.step)] for name, (f, start, end) in parts.items()}
        path = folder / f"part{number}"
        writer = TensorWriter(path, layout, metadata={"fragments": json.dumps(places)})
        for f, start, end in parts.values():
            for kind in KINDS:
                writer.write(f.tensors[kind][start:end])
        writer.finish()
        paths.append(path)
    return paths


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(1, 14), max_size=4, unique=True), st.randoms())
def test_any_cut_in_any_order_gives_the_whole(tmp_path: Path, inner: list[int], rng: Any) -> None:
    trained, fresh = _engine(1, updates=2), _engine(2, updates=0)
    paths = _cut(trained, tmp_path, [0, *sorted(inner), 15])
    rng.shuffle(paths)
    read(fresh, paths)
    assert _state(fresh) == _state(trained)


def test_a_ranks_own_file_is_read_in_one_pass_with_its_hash(tmp_path: Path) -> None:
    trained, fresh = _engine(1, updates=2), _engine(2, updates=0)
    entry = write(trained, tmp_path / "a")
    assert is_own(fresh, tmp_path / "a")
    assert read_own(fresh, tmp_path / "a") == entry
    assert _state(fresh) == _state(trained)
    data = bytearray((tmp_path / "a").read_bytes())
    data[-1] ^= 1
    (tmp_path / "a").write_bytes(data)
    assert read_own(fresh, tmp_path / "a") != entry


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_that_all_hold_everything_save_it_once_together(
    world_size: int, tmp_path: Path
) -> None:
    """Four ranks have more than one element each of 0.weight alone (15, 3 and 3 elements)."""
    paths, saved = [], []
    for rank in range(world_size):
        paths.append(tmp_path / f"{rank}")
        write(_engine(1, updates=2, rank=rank, world_size=world_size), paths[-1])
        saved.append({n: t.numel() for n, t in load_file(paths[-1]).items()})
    for name, elements in (("0.weight", 15), ("0.bias", 3), ("1.weight", 3)):
        for kind in KINDS:
            assert sum(of_rank.get(f"{name}/{kind}", 0) for of_rank in saved) == elements
    fresh = _engine(2, updates=0, world_size=world_size)
    assert not is_own(fresh, paths[0])
    read(fresh, paths)
    assert _state(fresh) == _state(_engine(1, updates=2))


def test_the_file_of_another_cut_is_not_a_ranks_own(tmp_path: Path) -> None:
    trained = _engine(1, updates=2)
    assert [is_own(trained, path) for path in _cut(trained, tmp_path, [0, 7, 15])] == [False, False]


def test_what_no_file_holds_is_named(tmp_path: Path) -> None:
    trained, fresh = _engine(1, updates=2), _engine(2, updates=0)
    paths = _cut(trained, tmp_path, [0, 4, 15])
    with pytest.raises(ValueError, match=r"lack optimizer state of 0\.weight"):
        read(fresh, paths[:1])


def test_a_file_of_another_make_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "pickle").write_bytes(b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(ValueError, match=r"pickle holds no optimizer state of this model"):
        read(_engine(1, updates=0), [tmp_path / "pickle"])

"""The optimizer's state of a rank by parameter, whatever ZeRO stage and number of ranks cut it up.

ZeRO lays parameters end to end, cuts the line into equal partitions and keeps one a rank. What a
rank holds of a parameter is then one run of its elements, a fragment:

    embedding       0 ........ 511 512 ...... 1023        rank 0 holds 0..511, rank 1 the rest
    bias            0 .. 7                                 rank 0 holds it all

`write` puts the fragments of this rank into a file: fp32 weight and both moments, and where the
run of elements begins. At stage 0, where every rank holds everything, each writes an equal share
of every parameter, so that the files together hold it once at any stage. `read` fills the fragments
of this rank from all files that overlap them: a checkpoint of any number of ranks, at any stage,
serves any other, without a conversion. Where nothing has changed, `read_own` takes the one file of
this rank in one pass.

This is the one place that knows where DeepSpeed 0.19.8 keeps its fp32 partitions; everything is
found through the inner torch.optim.AdamW, whose state is keyed by those partitions.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pretrain.checkpoints.tensor_files import TensorWriter, read_hashed
from pretrain.distributed.engine import Engine

BYTES_PER_PARAMETER = 12  # an fp32 weight and two fp32 moments
MOMENTS = ("exp_avg", "exp_avg_sq")
KINDS = ("weight", *MOMENTS)


@dataclass(frozen=True)
class Fragment:
    """Consecutive elements of a parameter, as views into what the optimizer works on."""

    name: str
    start: int  # place of the first element in the flattened parameter
    tensors: Mapping[str, Tensor]  # KINDS -> (elements,) fp32
    step: Tensor  # updates that AdamW has counted; one tensor for each partition

    @property
    def end(self) -> int:
        """Place after the last element."""
        return self.start + self.tensors["weight"].numel()


class _Place(NamedTuple):
    """Where this rank keeps a run of elements of a parameter."""

    name: str
    partition: Tensor  # the flat fp32 weights it lies in; empty while they lie on NVMe
    offset: int  # of the first element in the partition
    start: int  # of the first element in the flattened parameter
    length: int  # elements, at least 1
    swapped: int | None  # ZeRO's number of the partition where it lies on NVMe between updates


def fragments(engine: Engine, *, changed: bool = False) -> Iterator[list[Fragment]]:
    """What this rank holds, in lists of what is in memory together; no fragment is empty.

    One list, in the order of the model's parameters, of all that stays in memory; where the
    optimizer is offloaded to NVMe, then a list for each of ZeRO's groups that lie there, good until
    the next is asked for. changed: whether the caller changes them, so that they are written back.
    State that AdamW has not made yet, since no update came before, is made here: zeros.
    """
    yield from _fragments(engine, _places(engine), changed=changed)


@torch.no_grad()
def _fragments(
    engine: Engine, places: Iterable[_Place], *, changed: bool = False
) -> Iterator[list[Fragment]]:
    inner = _inner(engine)
    for group, together in groupby(places, key=lambda place: place.swapped):
        with _in_memory(engine, group, changed=changed):
            yield [_fragment(place, inner) for place in together]


def stays_in_memory(engine: Engine) -> bool:
    """Whether all that this rank holds lies in memory between updates, and nothing on NVMe."""
    return all(place.swapped is None for place in _places(engine))


def _inner(engine: Engine) -> torch.optim.AdamW:
    optimizer: Any = engine.deepspeed.optimizer
    return optimizer if engine.stage == 0 else optimizer.optimizer


def _places(engine: Engine) -> list[_Place]:
    """In the order of the parameters, those that lie on NVMe behind the others and by group."""
    optimizer: Any = engine.deepspeed.optimizer
    found = [
        _Place(name, *place)
        for name, parameter in engine.module.named_parameters()
        if parameter.requires_grad
        for place in _places_of(engine.stage, optimizer, parameter)
    ]
    return sorted(found, key=lambda place: -1 if place.swapped is None else place.swapped)


def _places_of(
    stage: int, optimizer: Any, parameter: nn.Parameter
) -> Iterator[tuple[Tensor, int, int, int, int | None]]:
    """(partition, offset, start, length, swapped): none or one."""
    if stage == 0:
        yield parameter, 0, 0, parameter.numel(), None
    elif stage == 3:
        # Every rank has equally many elements of each parameter; the last ones may be padding.
        group, offset, share = optimizer.grad_position[optimizer.get_param_id(parameter)]
        start = share * optimizer._get_param_partition_rank(parameter)
        length = min(share, getattr(parameter, "ds_numel") - start)  # noqa: B009 (ZeRO's own)
        if length > 0:
            swapped = group if optimizer._swappable_optimizer_subgroup(group) else None
            yield optimizer.fp32_partitioned_groups_flat[group], offset, start, length, swapped
    else:
        mapping = getattr(parameter, "_hp_mapping")  # noqa: B009 (ZeRO's own)
        if mapping is not None:
            (partition,) = optimizer.optimizer.param_groups[mapping.param_group_index]["params"]
            place, within = mapping.hp_fragment_address, mapping.lp_fragment_address
            yield partition, place.start, within.start, place.numel, None


@contextmanager
def _in_memory(engine: Engine, group: int | None, *, changed: bool) -> Iterator[None]:
    """Inside, ZeRO's group lies in memory; None is what always does."""
    if group is None:
        yield
        return
    optimizer: Any = engine.deepspeed.optimizer
    optimizer._optimizer_states_and_gradient_swap_in(group)
    yield
    if changed:
        optimizer._optimizer_states_and_gradient_swap_out(group)
    else:
        optimizer._release_swap_buffers(group)


def _state(partition: Tensor, inner: torch.optim.AdamW) -> dict[str, Tensor]:
    state = inner.state[partition]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=partition.device)
        state |= {moment: torch.zeros_like(partition) for moment in MOMENTS}
    return state


def _fragment(place: _Place, inner: torch.optim.AdamW) -> Fragment:
    state = _state(place.partition, inner)
    whole = {"weight": place.partition.detach(), **{m: state[m] for m in MOMENTS}}
    views = {
        kind: flat.reshape(-1).narrow(0, place.offset, place.length) for kind, flat in whole.items()
    }
    return Fragment(place.name, place.start, views, state["step"])


def write(engine: Engine, path: Path) -> dict[str, Any]:
    """Write the fragments of this rank; its size and hash. OSError where the disk refuses."""
    held, inner = _saved_places(engine), _inner(engine)
    layout = {f"{p.name}/{kind}": (torch.float32, (p.length,)) for p in held for kind in KINDS}
    places = {
        p.name: [p.start, p.start + p.length, int(_state(p.partition, inner)["step"])] for p in held
    }
    with TensorWriter(path, layout, metadata={"fragments": json.dumps(places)}) as writer:
        for together in _fragments(engine, held):
            for fragment in together:
                for kind in KINDS:
                    writer.write(fragment.tensors[kind])
        return writer.finish()


def _saved_places(engine: Engine) -> list[_Place]:
    """What this rank's file holds: of what several ranks hold, its share alone."""
    held, world = _places(engine), engine.world
    if engine.stage > 0:
        return held
    shares = (_share(place, world.rank, world.world_size) for place in held)
    return [share for share in shares if share.length]


def _share(place: _Place, rank: int, world_size: int) -> _Place:
    first, end = (place.length * part // world_size for part in (rank, rank + 1))
    return place._replace(
        offset=place.offset + first, start=place.start + first, length=end - first
    )


def is_own(engine: Engine, path: Path) -> bool:
    """Whether the file holds just the fragments of this rank, all of which stay in memory;
    ValueError if it is no such file."""
    held = _places(engine)
    with _opened(path) as (_, places):
        found = {name: tuple(place[:2]) for name, place in places.items()}
        mine = {place.name: (place.start, place.start + place.length) for place in held}
        return found == mine and all(place.swapped is None for place in held)


@torch.no_grad()
def read_own(engine: Engine, path: Path) -> dict[str, Any]:
    """Fill the fragments of this rank from its own file, which `is_own`; its size and hash, to be
    compared before anything is done with what was read."""
    with _opened(path) as (_, places):
        steps = {name: place[2] for name, place in places.items()}
    held = [fragment for together in fragments(engine) for fragment in together]
    for fragment in held:
        fragment.step.fill_(steps[fragment.name])
    return read_hashed(path, {f"{f.name}/{kind}": f.tensors[kind] for f in held for kind in KINDS})


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, list[int]]]]:
    """The mapped file, and {parameter: [first element, end, step]}."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file, json.loads(file.metadata()["fragments"])  # pyright: ignore (stubs lack it)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no optimizer state of this model: {error}.") from None


@torch.no_grad()
def read(engine: Engine, paths: Iterable[Path]) -> None:
    """Fill the fragments of this rank from `paths`, whose hashes have been compared.

    paths: the likely ones first; no more are opened than are needed. Raises ValueError for a file
    of another make, or where the files do not hold everything.
    """
    paths = list(paths)
    for together in fragments(engine, changed=True):
        _fill({f.name: f for f in together}, paths)


def _fill(held: Mapping[str, Fragment], paths: Iterable[Path]) -> None:
    missing = {f.name: f.end - f.start for f in held.values()}
    for path in paths:
        if not missing:
            return
        with _opened(path) as (file, places):
            _read_overlaps(file, places, held, missing)
    if missing:
        raise ValueError(
            f"the checkpoint's files lack optimizer state of {', '.join(sorted(missing)[:3])}."
        )


def _read_overlaps(
    file: Any,
    places: Mapping[str, list[int]],
    held: Mapping[str, Fragment],
    missing: dict[str, int],
) -> None:
    for name in missing.keys() & places.keys():
        fragment, (start, end, step) = held[name], places[name]
        first, last = max(start, fragment.start), min(end, fragment.end)
        if first >= last:
            continue
        for kind, view in fragment.tensors.items():
            stored = file.get_tensor(f"{name}/{kind}")  # a view of the mapped file
            part = stored[first - start : last - start]
            view[first - fragment.start : last - fragment.start].copy_(part)
        fragment.step.fill_(step)
        missing[name] -= last - first
        if not missing[name]:
            del missing[name]


@torch.no_grad()
def publish(engine: Engine) -> None:
    """Make the weights that the model computes with follow from the fp32 ones that were read.

    A collective; DeepSpeed does the same at the end of every update.
    """
    optimizer: Any = engine.deepspeed.optimizer
    if engine.stage == 3:
        optimizer.checkpoint_event_prologue()  # parameters that stay gathered are let go
        for group in range(len(optimizer.fp32_partitioned_groups_flat)):
            swapped = group if optimizer._swappable_optimizer_subgroup(group) else None
            with _in_memory(engine, swapped, changed=False):
                optimizer._reassign_or_swap_out_partitioned_parameters(group)
        optimizer.checkpoint_event_epilogue()  # and gathered again
    elif engine.stage > 0:
        optimizer.update_lp_params()

"""The optimizer's state of a rank by parameter, whatever ZeRO stage and number of ranks cut it up.

ZeRO lays parameters end to end, cuts the line into equal partitions and keeps one a rank. What a
rank holds of a parameter is then one run of its elements, a fragment:

    embedding       0 ........ 511 512 ...... 1023        rank 0 holds 0..511, rank 1 the rest
    bias            0 .. 7                                 rank 0 holds it all

`write` puts the fragments of this rank into a file: fp32 weight and both moments, and where the
run of elements begins. `read` fills the fragments of this rank from all files that overlap them:
a checkpoint of any number of ranks, at any stage, serves any other, without a conversion. Where
nothing has changed, `read_own` takes the one file of this rank in one pass.

This is the one place that knows where DeepSpeed 0.19.8 keeps its fp32 partitions; everything is
found through the inner torch.optim.AdamW, whose state is keyed by those partitions.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pretrain.engine import Engine
from pretrain.tensor_files import TensorWriter, read_hashed

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


@torch.no_grad()
def fragments(engine: Engine) -> list[Fragment]:
    """What this rank holds, in the order of the model's parameters; no fragment is empty.

    State that AdamW has not made yet, since no update came before, is made here: zeros.
    """
    optimizer: Any = engine.deepspeed.optimizer
    inner: torch.optim.AdamW = optimizer if engine.stage == 0 else optimizer.optimizer
    return [
        _fragment(name, partition, offset, start, length, inner)
        for name, parameter in engine.module.named_parameters()
        if parameter.requires_grad
        for partition, offset, start, length in _places(engine.stage, optimizer, parameter)
    ]


def _places(
    stage: int, optimizer: Any, parameter: nn.Parameter
) -> Iterator[tuple[Tensor, int, int, int]]:
    """(partition, offset in it, first element of the parameter, elements): none or one."""
    if stage == 0:
        yield parameter, 0, 0, parameter.numel()
    elif stage == 3:
        # Every rank has equally many elements of each parameter; the last ones may be padding.
        group, offset, share = optimizer.grad_position[optimizer.get_param_id(parameter)]
        start = share * optimizer._get_param_partition_rank(parameter)
        length = min(share, getattr(parameter, "ds_numel") - start)  # noqa: B009 (ZeRO's own)
        if length > 0:
            yield optimizer.fp32_partitioned_groups_flat[group], offset, start, length
    else:
        mapping = getattr(parameter, "_hp_mapping")  # noqa: B009 (ZeRO's own)
        if mapping is not None:
            (partition,) = optimizer.optimizer.param_groups[mapping.param_group_index]["params"]
            place, within = mapping.hp_fragment_address, mapping.lp_fragment_address
            yield partition, place.start, within.start, place.numel


def _fragment(
    name: str, partition: Tensor, offset: int, start: int, length: int, inner: torch.optim.AdamW
) -> Fragment:
    state = inner.state[partition]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=partition.device)
        state |= {moment: torch.zeros_like(partition) for moment in MOMENTS}
    whole = {"weight": partition.detach(), **{moment: state[moment] for moment in MOMENTS}}
    views = {kind: flat.reshape(-1).narrow(0, offset, length) for kind, flat in whole.items()}
    return Fragment(name, start, views, state["step"])


def write(engine: Engine, path: Path) -> dict[str, Any]:
    """Write the fragments of this rank; its size and hash. OSError where the disk refuses."""
    held = fragments(engine)
    layout = {
        f"{f.name}/{kind}": (torch.float32, (f.end - f.start,)) for f in held for kind in KINDS
    }
    places = {f.name: [f.start, f.end, int(f.step)] for f in held}
    with TensorWriter(path, layout, metadata={"fragments": json.dumps(places)}) as writer:
        for fragment in held:
            for kind in KINDS:
                writer.write(fragment.tensors[kind])
        return writer.finish()


def is_own(engine: Engine, path: Path) -> bool:
    """Whether the file holds just the fragments of this rank; ValueError if it is no such file."""
    with _opened(path) as (_, places):
        found = {name: tuple(place[:2]) for name, place in places.items()}
        return found == {f.name: (f.start, f.end) for f in fragments(engine)}


@torch.no_grad()
def read_own(engine: Engine, path: Path) -> dict[str, Any]:
    """Fill the fragments of this rank from its own file, which `is_own`; its size and hash, to be
    compared before anything is done with what was read."""
    with _opened(path) as (_, places):
        steps = {name: place[2] for name, place in places.items()}
    held = fragments(engine)
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
    held = {f.name: f for f in fragments(engine)}
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
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        optimizer.checkpoint_event_epilogue()  # and gathered again
    elif engine.stage > 0:
        optimizer.update_lp_params()

"""The run under DeepSpeed: building the model sharded, one update, and the weights as a whole.

The only file that imports deepspeed; where it keeps its partitions, optimizer_state.py knows too.
Everything else sees this `Engine`: a module to call, a loss to go backward from, a learning rate to
step with. ZeRO stage and buckets are the JSON file's business.
"""

import functools
import importlib
import logging
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch import nn

os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")

import deepspeed  # noqa: E402
from deepspeed.accelerator import get_accelerator  # noqa: E402
from deepspeed.runtime.zero.stage_1_and_2 import INITIAL_MICRO_STEP_ID  # noqa: E402
from deepspeed.utils import set_z3_leaf_modules  # noqa: E402

from pretrain.distributed.pausing import Pauses  # noqa: E402
from pretrain.distributed.suited import suited  # noqa: E402
from pretrain.distributed.world import World  # noqa: E402
from pretrain.settings.deepspeed_settings import check_quantized, offloads, stage  # noqa: E402
from pretrain.settings.optimizer_config import OptimizerConfig  # noqa: E402

logger = logging.getLogger(__name__)

# DeepSpeed compiles a shared-memory op for CPU ranks at start (a compiler, a minute, 69 MB files in
# /dev/shm). Plain gloo serves; there is no public switch, so the builder is replaced (pinned
# version, tested). The module is looked up by name, because the attribute deepspeed.comm.torch is
# PyTorch itself.
setattr(importlib.import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None)  # noqa: B010
# On a CPU every step asks how many devices there are, and so starts a `numactl`: once is enough.
_numa = importlib.import_module("deepspeed.utils.numa")
setattr(_numa, "get_numa_cores", functools.cache(_numa.get_numa_cores))  # noqa: B010
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
# Ranges for NVIDIA's profiler, some 400 a step: on a CPU nobody reads them.
_accelerator: Any = get_accelerator()
_nvtx = importlib.import_module("deepspeed.utils.nvtx")
setattr(_nvtx, "enable_nvtx", _accelerator.device_name() != "cpu")  # noqa: B010


class Engine:
    """A model that learns under DeepSpeed on all ranks of `world`.

    make_model() builds the module; it is called inside deepspeed.zero.Init at stage 3, so that no
    rank ever holds the whole model. decays(name, parameter) says which parameters take weight
    decay.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        *,
        decays: Callable[[str, nn.Parameter], bool],
        optimizer: OptimizerConfig,
        settings: dict[str, Any],
        world: World,
        first_weights: Callable[[str], torch.Tensor | None] | None = None,
        group_of: Callable[[str], str] = lambda name: "all",
        gathered_whole: Sequence[type[nn.Module]] = (),
    ) -> None:
        """first_weights(name): called on rank 0 alone, the weights to begin with; None leaves them
        as make_model drew them, and so are the rows of a table behind those that it gives.

        group_of(name): what `learn` lets begin later than others, or pause.

        gathered_whole: modules whose parameters stage 3 gathers and releases together, in one
        collective and under one pair of hooks, instead of part by part.
        """
        self.world = world
        self.stage = stage(settings)
        self.accumulation: int = settings["gradient_accumulation_steps"]
        self.dtype = torch.bfloat16 if settings["bf16"]["enabled"] else torch.float32
        _check_offload(offloads(settings))
        check_quantized(settings, world.device.type)
        settings = suited(
            settings,
            torch.distributed.get_backend(),
            gathers_whole=bool(gathered_whole),
            count=functools.partial(_num_elements, make_model),
        )
        deepspeed.init_distributed(dist_backend=torch.distributed.get_backend())
        # The dtype follows from settings: passed as an argument, 0.19.8 takes bf16 for fp32 on a
        # CPU.
        with deepspeed.zero.Init(config_dict_or_path=settings, enabled=self.stage == 3):
            model = make_model()
        if first_weights is not None:
            self._begin_with(model, first_weights)
        self.num_parameters = {
            trains: sum(_size(p) for p in model.parameters() if p.requires_grad is trains)
            for trains in (True, False)
        }
        if self.stage == 3 and gathered_whole:
            set_z3_leaf_modules(model, list(gathered_whole))
        self.module: nn.Module = model
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.pauses = Pauses({name: group_of(name) for name in names})
        self.pauses.hook_gradients(model)
        inner = _adamw(model, decays, self.pauses.group_of, optimizer)
        self.deepspeed = deepspeed.initialize(model=model, optimizer=inner, config=settings)[0]
        self.pauses.hook_steps(inner)
        _use_timeout(world.timeout_s)

    def learn(self, groups: frozenset[str]) -> bool:
        """Let the next updates move the parameters of these groups alone (pausing.py); whether that
        is a change."""
        moves = groups & self.pauses.groups
        is_other, self.pauses.moves = moves != self.pauses.moves, moves
        return is_other

    @torch.no_grad()
    def _begin_with(self, model: nn.Module, weight: Callable[[str], torch.Tensor | None]) -> None:
        """Copy weights from rank 0 to all, one parameter at a time.

        Before deepspeed.initialize, which makes its fp32 copies of what it finds, and at the stages
        below 3 hands rank 0's parameters to all.
        """
        for name, parameter in model.named_parameters():
            with deepspeed.zero.GatheredParameters(
                [parameter], modifier_rank=0, enabled=self.stage == 3
            ):
                value = weight(name) if self.world.leads else None
                if value is not None:
                    parameter[: len(value)].copy_(value)

    def forward(self, *args: Any) -> Any:
        """The module's outputs for `args`, with parameters gathered as they are needed."""
        return self.deepspeed(*args)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of `loss` (a scalar, the global mean's share of this rank and
        micro-batch).

        The gradient that is applied is the plain sum over ranks and micro-batches: DeepSpeed
        averages both, which is undone here.
        """
        self.deepspeed.backward(loss * (self.world.world_size * self.accumulation))

    def end_micro_batch(self, lr: float) -> float | None:
        """Close a micro-batch; after the last of an update apply it with rate `lr`.

        Returns the global L2 norm of the gradient before clipping where an update was due, else
        None. Where the norm is not finite, nothing was applied and the gradients are dropped.
        """
        if not self.deepspeed.is_gradient_accumulation_boundary():
            self.deepspeed.step()
            return None
        optimizer: Any = self.deepspeed.optimizer
        for group in optimizer.param_groups:
            group["lr"] = lr
        if self.stage == 0:  # where DeepSpeed would apply whatever there is
            norm = float(self._norm_without_zero())
            if not math.isfinite(norm):
                self.drop_gradients()
                return norm
            self.deepspeed.step()
            return norm
        self.deepspeed.step()
        known_norm = self.deepspeed.get_global_grad_norm()
        assert known_norm is not None, "compute_grad_norm is always on"
        norm = float(known_norm)
        is_applied = self.deepspeed.was_step_applied()
        assert is_applied == math.isfinite(norm), f"a norm of {norm}, applied: {is_applied}"
        if not is_applied:
            self.drop_gradients()
        return norm

    def drop_gradients(self) -> None:
        """Forget what backward has added up since the last update: weights, moments and all that
        follows are as if it had never been tried. All ranks do so, or none.

        0.19.8 has no call for it. Its accumulation boundary follows from `micro_steps`. Stage 3 and
        the offloaded stages copy instead of adding where `micro_step_id` says first (set by
        zero_grad at stage 3); stages 1 and 2 add to what stands in two dicts, if anything does; the
        bf16 optimizer of stage 1 zeroes its fp32 buffers in zero_grad.
        """
        self.deepspeed.micro_steps -= self.deepspeed.micro_steps % self.accumulation
        self.deepspeed.zero_grad()
        if self.stage == 0:
            return
        optimizer: Any = self.deepspeed.optimizer
        optimizer.zero_grad(set_to_none=True)
        if self.stage < 3 and hasattr(optimizer, "micro_step_id"):
            optimizer.micro_step_id = INITIAL_MICRO_STEP_ID
        for name in ("averaged_gradients", "all_grad_tensors"):
            getattr(optimizer, name, {}).clear()
        if offload_state := getattr(optimizer, "_offload_accumulated_param_ids", None):
            offload_state.clear()
        if hasattr(optimizer, "reset_cpu_buffers"):
            optimizer.reset_cpu_buffers()

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter whole, on the CPU of rank 0, one at a time; other ranks get empty
        tensors.

        A collective: all ranks iterate to the end. Never holds more than one parameter twice.
        """
        for name, parameter in self.module.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.stage == 3):
                whole = parameter.detach().to("cpu", copy=True) if self.world.leads else None
            yield name, whole if whole is not None else torch.empty(0)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The whole shape of every parameter, in the order of `weights`."""
        return {
            name: tuple(getattr(parameter, "ds_shape", parameter.shape))
            for name, parameter in self.module.named_parameters()
        }

    @torch.no_grad()
    def set_frozen(self, weight: Callable[[str], torch.Tensor] | None) -> None:
        """Give every parameter that is not trained the value weight(name) of rank 0; a collective.

        weight: called on rank 0 alone. What is trained follows from the optimizer's fp32 weights.
        """
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                continue
            with deepspeed.zero.GatheredParameters(
                [parameter], modifier_rank=0, enabled=self.stage == 3
            ):
                if self.world.leads:
                    assert weight is not None
                    parameter.copy_(weight(name))
                if self.stage < 3:
                    self.world.broadcast_tensor(parameter.data)

    def _norm_without_zero(self) -> torch.Tensor:
        norms = [p.grad.float().norm() for p in self.module.parameters() if p.grad is not None]
        return torch.stack(norms).norm()


def _num_elements(make_model: Callable[[], nn.Module]) -> int:
    """Parameters of the model, before there is one."""
    with torch.device("meta"):
        return sum(p.numel() for p in make_model().parameters())


def _check_offload(parts: list[str]) -> None:
    """Raise ValueError, naming the cure, where NVMe offload cannot work, here or at all."""
    if not any(part.endswith("to nvme") for part in parts):
        return
    if shutil.which("ninja") is None or shutil.which(os.environ.get("CXX", "g++")) is None:
        raise ValueError(
            "offloading to NVMe compiles DeepSpeed's async_io once, which needs ninja and a C++ "
            "compiler. Install them (Debian: apt install g++ ninja-build), or offload to cpu."
        )
    if not _async_io_works():
        raise ValueError(
            "offloading to NVMe needs libaio, which is not there. Install it (Debian: apt install "
            "libaio-dev; Red Hat: yum install libaio-devel), or offload to cpu."
        )
    cache = Path(os.environ.get("TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions")).expanduser()
    logger.info("offload to NVMe: DeepSpeed's async_io is compiled into %s (once, minutes)", cache)
    for lock in cache.rglob("async_io/lock"):
        # PyTorch waits for it without an end and without a word.
        logger.warning(
            "offload to NVMe: %s says that it is being compiled. If this run waits and no other "
            "one compiles, a build was killed: remove that file.",
            lock,
        )


def _async_io_works() -> bool:
    accelerator: Any = get_accelerator()
    return accelerator.create_op_builder("AsyncIOBuilder").is_compatible()


def _use_timeout(seconds: float) -> None:
    """Give every process group the timeout of the world's.

    DeepSpeed makes its own groups and names no timeout, so that they get the library's default (30
    minutes on gloo, 10 on NCCL) instead of the recipe's.
    """
    for group in list(c10d._world.pg_map):
        c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def _adamw(
    model: nn.Module,
    decays: Callable[[str, nn.Parameter], bool],
    group_of: Mapping[str, str],
    config: OptimizerConfig,
) -> torch.optim.AdamW:
    """AdamW over each group twice: with weight decay and without. The type must be exactly AdamW
    for DeepSpeed."""
    parameters: dict[tuple[str, bool], list[nn.Parameter]] = {
        (group, decayed): []
        for group in sorted(set(group_of.values()))
        for decayed in (True, False)
    }
    for name, parameter in model.named_parameters():
        if name in group_of:
            parameters[group_of[name], decays(name, parameter)].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": p, "weight_decay": config.weight_decay if decayed else 0.0, "name": group}
            for (group, decayed), p in parameters.items()
            if p
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


def _size(parameter: nn.Parameter) -> int:
    """Elements of a parameter, whole, although ZeRO-3 may have left an empty stand-in."""
    return getattr(parameter, "ds_numel", parameter.numel())

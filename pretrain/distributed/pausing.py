"""Groups of parameters that pause: their weights and optimizer state stay as they are.

    pauses = Pauses({"backbone.embedding.token_table": "decoder", ...})
    pauses.hook_gradients(model)      # before DeepSpeed takes the model
    pauses.hook_steps(adamw)          # after it took the optimizer, a parameter group for each
    pauses.moves = frozenset(("latent", "encoder"))

Every group has flat partitions of its own under ZeRO, so AdamW passes a whole one over: no decay,
no moments, no count of updates, as if the parameters were not there. Their gradients become 0 as
they come, so that they have no part in the norm. They are computed and reduced all the same: hooks
and collectives are the same in every update, at every stage.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Pauses:
    """Which groups move in the updates to come; all of them at first."""

    def __init__(self, group_of: Mapping[str, str]) -> None:
        """group_of: the group of every parameter that ever learns, by its name."""
        self.group_of = dict(group_of)
        self.moves = self.groups = frozenset(group_of.values())
        self._withheld: list[tuple[Tensor, Tensor | None]] = []

    def hook_gradients(self, model: nn.Module) -> None:
        """Make gradients 0 where their group pauses; nothing where there is one group."""
        for name, parameter in model.named_parameters():
            if len(self.groups) > 1 and name in self.group_of:
                parameter.register_hook(_Paused(self, self.group_of[name]))

    def hook_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Let `optimizer` pass over groups that pause. Its own groups have theirs as `name`."""
        if len(self.groups) > 1:
            optimizer.register_step_pre_hook(self._withhold)
            optimizer.register_step_post_hook(self._give_back)

    def _withhold(self, optimizer: torch.optim.Optimizer, *unused: Any) -> None:
        paused: Sequence[Mapping[str, Any]] = [
            group for group in optimizer.param_groups if group["name"] not in self.moves
        ]
        self._withheld = [(p, p.grad) for group in paused for p in group["params"]]
        for parameter, _ in self._withheld:
            parameter.grad = None

    def _give_back(self, *unused: Any) -> None:
        for parameter, gradient in self._withheld:
            parameter.grad = gradient
        self._withheld = []


class _Paused:
    """A parameter's hook: its gradient, or 0."""

    def __init__(self, pauses: Pauses, group: str) -> None:
        self.pauses, self.group = pauses, group

    def __call__(self, gradient: Tensor) -> Tensor | None:
        return None if self.group in self.pauses.moves else torch.zeros_like(gradient)

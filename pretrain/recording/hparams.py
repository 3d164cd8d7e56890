"""The settings of a run that TensorBoard's HParams tab shows beside its curves."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from pretrain.settings.config import Config
from pretrain.settings.data_config import DataConfig
from pretrain.settings.dotted import flat, shown

# They say where a run lies and on what, not what it learns.
PLACES = (
    "name", "runs", "data.shards", "evaluation.texts", "deepspeed_config", "interface", "timeout_s",
)  # fmt: skip


def shown_settings(config: Config, swept: Iterable[str] = ()) -> dict[str, float | str]:
    """The settings to show, by dotted key: numbers as numbers, the others as text.

    swept: keys that a sweep varies; then they alone are shown. Else all that differ from the
    defaults.
    """
    leaves = flat(asdict(config))
    keys = [key for key in swept if key in leaves]
    if not keys:
        usual = flat(asdict(Config(name="usual", steps=1, data=DataConfig(shards="usual"))))
        differing = [key for key in leaves if leaves[key] != usual.get(key)]
        keys = [key for key in differing if key not in PLACES]
    return {key: _shown(shown(leaves[key])) for key in keys}


def _shown(value: Any) -> float | str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)

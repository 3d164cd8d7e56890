"""DeepSpeed's settings, completed for ranks on gloo: what costs time there and gives nothing.

Only at stage 3, only what the file does not name, and each is logged. What was measured stands in
docs/bench.md, "Tuned". The sums that are formed stay the same, bit for bit.
"""

import logging
from collections.abc import Callable
from typing import Any

from pretrain.settings.deepspeed_settings import offloads, stage

logger = logging.getLogger(__name__)

MAX_LIVE_PARAMETERS = 10**9  # DeepSpeed's stage3_max_live_parameters where the file names none


def suited(
    settings: dict[str, Any], backend: str, *, gathers_whole: bool, count: Callable[[], int]
) -> dict[str, Any]:
    """The settings that DeepSpeed gets for ranks that talk through `backend`.

    gathers_whole: whether layers are gathered in one collective each. count: gives the model's
    elements, and is asked only where they decide.
    """
    if stage(settings) != 3 or backend != "gloo":
        return settings
    zero = settings["zero_optimization"]
    added: dict[str, Any] = {}
    if "reduce_scatter" not in zero:
        logger.info("engine: gloo adds up gradients by all-reduce (reduce_scatter false)")
        added["reduce_scatter"] = False
    added |= _gathering(zero, gathers_whole)
    added |= _products(settings, count)
    settings = settings | {"zero_optimization": zero | added}
    scales_itself = {"prescale_gradients", "gradient_predivide_factor"} & settings.keys()
    if not settings["zero_optimization"]["reduce_scatter"] and not scales_itself:
        # Else the sum is multiplied by 1.0 afterwards, into a new buffer.
        logger.info("engine: gradients are scaled before they are added up (prescale_gradients)")
        settings["prescale_gradients"] = True
    return settings


def _gathering(zero: dict[str, Any], gathers_whole: bool) -> dict[str, Any]:
    """Small parameters travel with their layer.

    Those that stay gathered are sent after every update, each in a collective of its own: some 40
    in a model of four layers.
    """
    if not gathers_whole or "stage3_param_persistence_threshold" in zero:
        return {}
    logger.info(
        "engine: biases and LayerNorms are gathered with their layer, not kept "
        "(stage3_param_persistence_threshold 0)"
    )
    return {"stage3_param_persistence_threshold": 0}


def _products(settings: dict[str, Any], count: Callable[[], int]) -> dict[str, Any]:
    """Matrix products are torch's own where the model stays gathered until the backward pass.

    DeepSpeed's hold no gathered weight between the passes, which frees memory in a larger model,
    and take longer.
    """
    zero = settings["zero_optimization"]
    largest = int(zero.get("stage3_max_live_parameters", MAX_LIVE_PARAMETERS))
    is_offloaded = any(part.startswith("param ") for part in offloads(settings))
    if "memory_efficient_linear" in zero or is_offloaded or (elements := count()) > largest:
        return {}
    logger.info(
        "engine: torch's own matrix products (memory_efficient_linear false): the model's %s "
        "parameters are not more than stage3_max_live_parameters, %s",
        f"{elements:,}",
        f"{largest:,}",
    )
    return {"memory_efficient_linear": False}

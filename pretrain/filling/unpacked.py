"""Rows of one document each, as a padded batch: what filling and scoring a handful of texts needs.

packed = unpacked(transform.build(tokens, plan))      # row i of the batch is row i of the plan
hidden_BTD = hidden_states(backbone, packed)
"""

import numpy as np
import torch
from torch import Tensor

from data_pipeline.packing.pack import pack_rows
from data_pipeline.rows import PackedRows, Rows
from kernels.visibility import Visibility
from pretrain.models.backbone import Backbone, check_positions


def unpacked(rows: Rows) -> PackedRows:
    """Each row on a line of its own, (N, longest row); the rest of a line is padding."""
    one_a_line = np.ones(len(rows.lengths_N), np.int64)
    return pack_rows(rows, one_a_line, int(rows.lengths_N.max()))


def tensors_of(packed: PackedRows) -> dict[str, Tensor]:
    """On the CPU, what the backbone reads: ids, lo, hi, document (B, T) and positions (B, 2, T)."""
    positions_B2T = np.stack((packed.position, packed.block_position), axis=1)
    arrays = {name: getattr(packed, name) for name in ("ids", "lo", "hi", "document")}
    return {
        name: torch.from_numpy(a) for name, a in (arrays | {"positions": positions_B2T}).items()
    }


def hidden_states(backbone: Backbone, packed: PackedRows) -> Tensor:
    """Hidden states (B, T, D) on the device of the weights.

    Raises ValueError where a position lies beyond the position table.
    """
    inputs = tensors_of(packed)
    check_positions(inputs["positions"], backbone.num_positions)
    device = backbone.embedding.token_table.device
    ids, positions, lo, hi, document = (
        inputs[name].to(device) for name in ("ids", "positions", "lo", "hi", "document")
    )
    return backbone(ids, positions, Visibility(lo, hi, document))

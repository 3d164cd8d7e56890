"""Under bf16 parameters the statistics stay fp32: softmax, LayerNorm and loss (docs/numerics.md).

Each case is built so that sums taken in bf16 (8 bits) would be visibly wrong.
"""

import torch
from torch.nn import functional as F

from kernels.dispatch import latent_memory_attention
from kernels.visibility import single_documents
from pretrain.models.backbone import Backbone
from pretrain.models.shape import BackboneShape
from pretrain.objectives.loss import target_losses

SHAPE = BackboneShape(
    num_layers=1, hidden_size=64, num_heads=2, dropout_prob=0.0, attention_dropout_prob=0.0
)
BF16_STEP = 2.0**-8


def test_softmax_sums_more_keys_than_bf16_can_count():
    num_tokens = 2048  # adding ones in bf16 stops at 256
    q_BTHK = torch.zeros(1, num_tokens, 1, 32, dtype=torch.bfloat16)
    v_BTHK = torch.ones(1, num_tokens, 1, 32, dtype=torch.bfloat16)
    length = torch.tensor([num_tokens])
    visibility = single_documents(length, length, num_tokens)
    out_BTHK = latent_memory_attention(q_BTHK, q_BTHK, v_BTHK, visibility)
    torch.testing.assert_close(out_BTHK, v_BTHK, atol=BF16_STEP, rtol=0)


def test_layer_norm_keeps_a_spread_that_is_small_beside_the_mean():
    norm = Backbone(SHAPE, vocab_size=128, num_positions=9).bfloat16().layers[0].attention_norm
    x_ND = (100 + torch.randn(16, 64, generator=torch.Generator().manual_seed(0))).bfloat16()
    exact_ND = F.layer_norm(x_ND.double(), (64,), eps=SHAPE.norm_eps)
    torch.testing.assert_close(norm(x_ND).double(), exact_ND, atol=4 * BF16_STEP, rtol=BF16_STEP)


def test_the_loss_is_fp32_of_the_bf16_logits():
    backbone = Backbone(SHAPE, vocab_size=30592, num_positions=9).bfloat16()
    hidden_BTD = torch.randn(1, 8, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    index_N, targets_N = torch.arange(8), torch.arange(8) * 1000
    losses_N = target_losses(backbone, hidden_BTD, index_N, targets_N)
    exact_N = F.cross_entropy(backbone.logits(hidden_BTD[0]).double(), targets_N, reduction="none")
    assert losses_N.dtype == torch.float32
    torch.testing.assert_close(losses_N.double(), exact_N, atol=1e-5, rtol=1e-6)

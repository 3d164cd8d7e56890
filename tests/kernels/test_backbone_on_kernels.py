"""The backbone on the kernels gives what it gives on SDPA: GPT, BERT, GLM, layers run twice."""

import pytest
import torch

from kernels import dispatch
from pretrain.models.backbone import Backbone
from pretrain.models.shape import BackboneShape

SHAPE = BackboneShape(
    num_layers=1,
    hidden_size=64,
    num_heads=2,
    dropout_prob=0.0,
    attention_dropout_prob=0.0,
)
DOCUMENTS = {"GPT": [[(14, 0), (7, 0)]], "BERT": [[(14, 14)]], "GLM": [[(14, 9), (7, 3)]]}
NUM_TOKENS = 23


@pytest.fixture(autouse=True)
def choices_are_made_anew(triton_device):
    dispatch._choice.cache_clear()
    yield
    dispatch._choice.cache_clear()


def loss_and_gradients(visibility, device, layers_per_checkpoint=0):
    backbone = Backbone(
        SHAPE,
        vocab_size=128,
        num_positions=NUM_TOKENS,
        generator=torch.Generator().manual_seed(0),
        layers_per_checkpoint=layers_per_checkpoint,
    ).to(device)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(128, (1, NUM_TOKENS), generator=generator).to(device)
    positions = torch.randint(NUM_TOKENS, (1, 2, NUM_TOKENS), generator=generator).to(device)
    logits = backbone.logits(backbone(ids, positions, visibility))
    loss = torch.nn.functional.cross_entropy(logits[0], ids[0])
    parameters = dict(backbone.named_parameters())
    return loss.detach(), torch.autograd.grad(loss, list(parameters.values()))


@pytest.mark.parametrize("objective", list(DOCUMENTS))
def test_the_same_loss_and_gradients_as_on_sdpa(objective, packed, monkeypatch, triton_device):
    visibility = packed(DOCUMENTS[objective], NUM_TOKENS, triton_device)
    results = []
    for backend in ("sdpa", "triton"):
        monkeypatch.setenv("KERNELS_BACKEND", backend)
        dispatch._choice.cache_clear()
        results.append(loss_and_gradients(visibility, triton_device))
    (loss, gradients), (kernel_loss, kernel_gradients) = results
    assert torch.allclose(kernel_loss, loss, atol=1e-5)
    for ours, expected in zip(kernel_gradients, gradients, strict=True):
        assert torch.allclose(ours, expected, atol=1e-5)


def test_recomputed_layers_give_the_same_gradients(packed, monkeypatch, triton_device):
    monkeypatch.setenv("KERNELS_BACKEND", "triton")
    visibility = packed(DOCUMENTS["GLM"], NUM_TOKENS, triton_device)
    kept = loss_and_gradients(visibility, triton_device)
    recomputed = loss_and_gradients(visibility, triton_device, layers_per_checkpoint=1)
    assert all(torch.equal(a, b) for a, b in zip(kept[1], recomputed[1], strict=True))

"""GLM's loss terms: the published losses and trajectory, exact counts, and no target at all."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from data_pipeline.rows import KINDS
from data_pipeline.transforms.blank import BlankConfig
from kernels.visibility import Visibility, single_documents
from pretrain.handing_over.convert import from_published_glm
from pretrain.models.backbone import Backbone, decays
from pretrain.models.shape import BackboneShape
from pretrain.objectives.glm import GlmObjective
from pretrain.objectives.loss import ObjectiveModel

GOLDEN = Path(__file__).parents[1] / "golden" / "glm"
TINY = {"dropout_prob": 0.0, "attention_dropout_prob": 0.0}
SHAPE_C = BackboneShape(num_layers=2, hidden_size=32, num_heads=2, **TINY)
OBJECTIVE = GlmObjective(BlankConfig())


def batch_of(rows: dict[str, torch.Tensor]) -> SimpleNamespace:
    """A loader's batch from golden arrays: one document a row, padding at its right end."""
    num_tokens = rows["text"].shape[1]
    used = (rows["text"] != 0) | (rows["position_id"] != 0).any(1)
    lengths = (used * torch.arange(1, num_tokens + 1)).amax(1)
    visibility = single_documents(lengths, rows["attention_mask"], num_tokens)
    return SimpleNamespace(
        ids=rows["text"].int(),
        positions=rows["position_id"].int(),
        targets=rows["target"].int(),
        weights=rows["loss_mask"].float(),
        kind=rows["loss_mask"].to(torch.uint8),
        document=visibility.document,
        lo=visibility.lo,
        hi=visibility.hi,
    )


def model_c(weights: str = "model_C_init") -> ObjectiveModel:
    backbone = Backbone(SHAPE_C, vocab_size=128, num_positions=49)
    backbone.load_state_dict(from_published_glm(load_file(GOLDEN / f"{weights}.safetensors")))
    return ObjectiveModel(backbone)


@pytest.fixture
def batch_c() -> SimpleNamespace:
    return batch_of(load_file(GOLDEN / "model_C_batch.safetensors"))


@pytest.mark.golden
@pytest.mark.parametrize("prefix", ["bert", "gpt_suffix", "gpt_infill", "sent"])
def test_losses_equal_the_published_ones(prefix):
    shape = BackboneShape(num_layers=2, hidden_size=64, num_heads=4, **TINY)
    backbone = Backbone(shape, vocab_size=128, num_positions=49)
    backbone.load_state_dict(from_published_glm(load_file(GOLDEN / "model_A_weights.safetensors")))
    stored = load_file(GOLDEN / "model_A_io.safetensors")
    rows = {k.removeprefix(f"{prefix}."): v for k, v in stored.items() if k.startswith(prefix)}
    terms = ObjectiveModel(backbone)(OBJECTIVE, OBJECTIVE.inputs(batch_of(rows)))
    loss = terms["total"].sum / terms["total"].count
    assert abs(loss - rows["loss"]) < 2e-6
    loss.backward()
    gradient = backbone.embedding.block_table.grad
    expected = rows["grad.transformer.block_position_embeddings.weight"]
    assert (gradient - expected).abs().max() < 2e-6


@pytest.mark.golden
def test_twenty_steps_follow_the_published_trajectory(batch_c):
    model = model_c()
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in named if decays(n, p)], "weight_decay": 0.1},
            {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.98),
        eps=1e-6,
        fused=True,
    )
    inputs = OBJECTIVE.inputs(batch_c)
    for step in json.loads((GOLDEN / "model_meta.json").read_text())["train_C"]["steps"]:
        terms = model(OBJECTIVE, inputs)
        loss = terms["total"].sum / OBJECTIVE.counts(inputs)["total"]
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = step["lr_used"]
        optimizer.step()
        assert abs(loss.item() - step["loss"]) < 1e-5, step
        assert norm.item() == pytest.approx(step["grad_norm"], rel=1e-4)
    final = model_c("model_C_final").state_dict()
    for name, weight in model.state_dict().items():
        assert (weight - final[name]).abs().max() < 2e-6, name


def test_only_targets_get_logits(batch_c, monkeypatch):
    model, seen = model_c(), []
    logits = model.backbone.logits
    monkeypatch.setattr(
        model.backbone, "logits", lambda h, tied: seen.append(h.shape) or logits(h, tied)
    )
    model(OBJECTIVE, OBJECTIVE.inputs(batch_c))
    assert seen == [(int((batch_c.weights > 0).sum()), 32)]


def test_terms_equal_a_plain_sum_over_all_positions(batch_c):
    """Weights that are no 0 or 1, all kinds: brute force over the whole (B, T)."""
    generator = torch.Generator().manual_seed(0)
    has_target = batch_c.weights > 0
    batch_c.kind = torch.randint(1, 5, has_target.shape, generator=generator) * has_target
    batch_c.weights = torch.rand(has_target.shape, generator=generator) * has_target
    model = model_c("model_C_final")
    terms = model(OBJECTIVE, OBJECTIVE.inputs(batch_c))
    backbone = model.backbone
    visibility = Visibility(batch_c.lo, batch_c.hi, batch_c.document)
    logits = backbone.logits(backbone(batch_c.ids, batch_c.positions, visibility))
    losses = F.cross_entropy(
        logits.double().transpose(1, 2), batch_c.targets.long(), reduction="none"
    )
    assert list(terms) == ["total", *KINDS[1:]]
    for number, kind in enumerate(("total", *KINDS[1:])):
        weights = batch_c.weights * (batch_c.kind == number if number else 1)
        assert terms[kind].sum.item() == pytest.approx((losses * weights).sum().item(), rel=1e-6)
        assert terms[kind].count.item() == pytest.approx(weights.sum().item(), rel=1e-6)
    assert OBJECTIVE.counts(OBJECTIVE.inputs(batch_c))["total"] == terms["total"].count


def test_only_the_optimised_term_carries_a_graph(batch_c):
    terms = model_c()(OBJECTIVE, OBJECTIVE.inputs(batch_c))
    assert [name for name, term in terms.items() if term.sum.requires_grad] == ["total"]
    assert OBJECTIVE.optimised == ("total",)


def test_without_targets_every_parameter_still_gets_a_gradient(batch_c):
    """A rank of ZeRO-3 that skipped its backward pass would hang the others."""
    batch_c.weights.zero_()
    model = model_c()
    terms = model(OBJECTIVE, OBJECTIVE.inputs(batch_c))
    assert all(term.count == 0 and term.sum == 0 for term in terms.values())
    terms["total"].sum.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name


def test_a_batch_of_padding_alone_is_harmless(batch_c):
    for values in (batch_c.weights, batch_c.lo, batch_c.hi, batch_c.ids, batch_c.positions):
        values.zero_()
    batch_c.document.fill_(-1)
    model = model_c()
    model(OBJECTIVE, OBJECTIVE.inputs(batch_c))["total"].sum.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_sums_over_micro_batches_make_the_loss_of_the_whole(batch_c):
    model = model_c("model_C_final")
    whole = model(OBJECTIVE, OBJECTIVE.inputs(batch_c))["total"]
    parts = []
    for b in range(len(batch_c.ids)):
        row = SimpleNamespace(**{name: t[b : b + 1] for name, t in vars(batch_c).items()})
        parts.append(model(OBJECTIVE, OBJECTIVE.inputs(row))["total"])
    assert sum(part.sum for part in parts).item() == pytest.approx(whole.sum.item(), rel=1e-6)
    assert sum(part.count for part in parts) == whole.count


def test_the_loss_is_fp32_under_bf16(batch_c):
    model = model_c("model_C_final").bfloat16()
    term = model(OBJECTIVE, OBJECTIVE.inputs(batch_c))["total"]
    exact = model_c("model_C_final")(OBJECTIVE, OBJECTIVE.inputs(batch_c))["total"]
    assert term.sum.dtype == torch.float32
    assert term.sum.item() == pytest.approx(exact.sum.item(), rel=0.02)


def test_the_transform_is_built_with_the_settings_of_the_objective():
    from data_pipeline.tokenizing.special import SPECIALS, SpecialIds

    special = SpecialIds(**{name: 100 + number for number, name in enumerate(SPECIALS)})
    objective = GlmObjective(BlankConfig(mask_ratio=0.3), weight=0.5)
    transform = objective.transform(special, source_tokens=64, vocab_size=111)
    assert transform.config.mask_ratio == 0.3
    assert transform.source_tokens == 64
    assert objective.weight == 0.5

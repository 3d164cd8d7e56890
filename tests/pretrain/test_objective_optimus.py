"""Optimus against the published code: forward passes, losses, gradients, bounds, by injection."""

import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.visibility import Visibility
from pretrain.evaluate.bound import TextBounds, bound_nats, draw_nats, log_ratio
from pretrain.evaluate.latent_report import report
from pretrain.handing_over.convert_transformers import from_bert, from_gpt2
from pretrain.models.backbone import Backbone
from pretrain.models.latent import Posterior
from pretrain.models.latent_shape import LatentShape
from pretrain.models.shape import BackboneShape
from pretrain.objectives.glm import glm_inputs
from pretrain.objectives.latent import LatentObjective, sources_visibility
from pretrain.objectives.latent_inputs import latent_inputs
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.optimus import Optimus, OptimusPart
from pretrain.settings.elbo_config import BetaConfig, ElboConfig, FreeBitsConfig
from pretrain.settings.latent_config import OptimusConfig

GOLDEN = Path(__file__).parents[1] / "golden" / "vae"
PAD = 50
NO_DROPOUT: Any = {"dropout_prob": 0.0, "attention_dropout_prob": 0.0}
BERT = BackboneShape(
    num_layers=2, hidden_size=32, num_heads=4, mlp_size=64, norm_order="post", gelu="erf",
    norm_eps=1e-12, token_types=2, embedding_norm=True, block_positions=False, **NO_DROPOUT,
)  # fmt: skip
GPT2 = BackboneShape(num_layers=3, hidden_size=32, num_heads=4, block_positions=False, **NO_DROPOUT)
INJECTIONS: dict[str, Any] = {"mem": "memory", "emb": "embedding", "both": "both"}
MODES: dict[str, Any] = {"fb0": "none", "fb1": "mask"}
FORWARD, GRADIENT = 2e-5, 5e-5

pytestmark = pytest.mark.golden


@cache
def stored(name: str) -> dict[str, Tensor]:
    return {k: torch.from_numpy(v) for k, v in np.load(GOLDEN / f"optimus_{name}.npz").items()}


def objective_of(tag: str, mode: str = "fb0", **elbo: Any) -> LatentObjective:
    config = OptimusConfig(
        encoder=BERT,
        latent=LatentShape(size=8, pooling="cls", injection=INJECTIONS[tag]),
        elbo=ElboConfig(
            beta=BetaConfig(schedule="constant", ceiling=0.5),
            free_bits=FreeBitsConfig(mode=MODES[mode], nats=0.5),
            **elbo,
        ),
        weight=1.0,
    )
    return LatentObjective(Optimus(config), steps=1)


def converted() -> dict[str, Tensor]:
    """The published weights by our names; those of the injections are cut to what there is."""
    weights = stored("weights")
    encoder = from_bert(
        {
            n.removeprefix("encoder."): w
            for n, w in weights.items()
            if n.startswith("encoder.") and n != "encoder.linear.weight"
        }
    )
    decoder = {n.removeprefix("decoder."): w for n, w in weights.items() if n.startswith("decoder")}
    memory = decoder.pop("transformer.linear.weight")
    embedding = decoder.pop("transformer.linear_emb.weight")
    pooler = {n: encoder.pop(n) for n in list(encoder) if n.startswith("pooler.")}
    return {
        **{f"backbone.{n}": w for n, w in from_gpt2(decoder).items()},
        **{f"parts.optimus.encoder.{n}": w for n, w in encoder.items()},
        **{f"parts.optimus.head.pooler.dense.{n.split('.')[1]}": w for n, w in pooler.items()},
        "parts.optimus.head.posterior.weight": weights["encoder.linear.weight"],
        "parts.optimus.injector.memory.weight": memory,
        "parts.optimus.injector.embedding.weight": embedding,
    }


def model_of(objective: LatentObjective) -> ObjectiveModel:
    part = OptimusPart(objective.config, GPT2, torch.Generator(), vocab_size=61, num_positions=40)
    model = ObjectiveModel(Backbone(GPT2, vocab_size=53, num_positions=40), {"optimus": part})
    needed = model.state_dict()
    model.load_state_dict({n: w for n, w in converted().items() if n in needed})  # strict
    return model


def batch_of(objective: LatentObjective, rows: slice = slice(None)) -> SimpleNamespace:
    """A loader's batch of the published rows, one document each."""
    ids, source = stored("forward")["gpt_ids"][rows].int(), stored("forward")["bert_ids"][rows]
    inside = ids != PAD
    place = torch.arange(ids.shape[1]).expand_as(ids)
    targets = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], PAD)), 1)
    weights = (inside & (targets != PAD)).float()
    return SimpleNamespace(
        ids=ids,
        positions=torch.stack((place + objective.of.config.first_position, place * 0), 1).int(),
        targets=targets,
        weights=weights,
        kind=(5 * weights).int(),
        document=inside.int() - 1,
        lo=torch.zeros_like(ids),
        hi=((place + 1) * inside).int(),
        sources=torch.stack((source.int(), (source != 0).int() - 1)),
        keys=torch.arange(len(ids))[:, None],
    )


def inputs_of(objective: LatentObjective, rows: slice = slice(None)) -> dict[str, Tensor]:
    noise = stored("forward")["eps"][rows, None]
    return objective.inputs(batch_of(objective, rows), 0) | {"noise": noise}


def encoded(model: ObjectiveModel, inputs: dict[str, Tensor]):
    part: Any = model.parts["optimus"]
    read = part.encoder(
        inputs["source_ids"], inputs["source_positions"], sources_visibility(inputs)
    )
    return read, part.head(read, inputs["source_document"], 1)


def logits_of(model: ObjectiveModel, inputs: dict[str, Tensor], z_BNZ: Tensor) -> Tensor:
    injected = model.parts["optimus"].injector(z_BNZ)
    visibility = Visibility(inputs["lo"], inputs["hi"], inputs["document"])
    hidden = model.backbone(inputs["ids"], inputs["positions"], visibility, **injected._asdict())
    return model.backbone.logits(hidden)


def close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return (found - expected).abs().max().item() < tolerance


def test_the_encoder_reads_what_the_published_one_reads():
    objective = objective_of("both")
    inputs, golden = inputs_of(objective), stored("forward")
    read, posterior = encoded(model_of(objective), inputs)
    inside = inputs["source_document"] == 0
    assert close(read[inside], golden["enc_hidden"][inside], FORWARD)
    for name in ("mu", "logvar"):
        assert close(getattr(posterior, name)[:, 0], golden[name], FORWARD)
    assert close(posterior.sample(inputs["noise"])[:, 0], golden["z"], FORWARD)


@pytest.mark.parametrize("tag", INJECTIONS)
def test_logits_and_losses(tag):
    objective = objective_of(tag)
    model, inputs, golden = model_of(objective), inputs_of(objective), stored("forward")
    logits = logits_of(model, inputs, golden["z"][:, None])
    inside = inputs["document"] == 0
    assert close(logits[inside], golden[f"{tag}/logits"][inside], FORWARD)
    for mode in MODES:
        objective = objective_of(tag, mode)
        terms = model(objective, inputs_of(objective))
        assert terms["reconstruction_text"].count == 4
        expected = golden[f"{tag}/loss_rec"].sum()
        assert terms["reconstruction_text"].sum.item() == pytest.approx(expected.item(), rel=2e-6)
        expected = golden[f"{tag}/{mode}/loss_kl"].sum()
        assert terms["kl_free"].sum.item() == pytest.approx(expected.item(), rel=2e-6)
        loss = sum(terms[t].sum / terms[t].count for t in objective.optimised)
        assert loss.item() == pytest.approx(golden[f"{tag}/{mode}/loss"].mean().item(), rel=2e-6)


@pytest.mark.parametrize(
    ("tag", "mode"), [("mem", "fb1"), ("emb", "fb1"), ("both", "fb0"), ("both", "fb1")]
)
def test_gradients(tag, mode):
    objective = objective_of(tag, mode)
    model = model_of(objective)
    terms = model(objective, inputs_of(objective))
    sum(terms[t].sum / terms[t].count for t in objective.optimised).backward()
    named = dict(model.named_parameters())
    prefix, names = f"{tag}/{mode}/grad/", 0
    for key, expected in stored("forward").items():
        if not key.startswith(prefix):
            continue
        ours, rows = our_gradient(named, key.removeprefix(prefix))
        assert close(ours[rows], expected, GRADIENT), key
        names += 1
    assert names >= 8


def our_gradient(named: dict[str, Any], published: str) -> tuple[Tensor, slice]:
    """Our gradient of a published parameter, in its layout."""
    every = slice(None)
    direct = {
        "encoder.linear.weight": "parts.optimus.head.posterior.weight",
        "encoder.pooler.dense.weight": "parts.optimus.head.pooler.dense.weight",
        "decoder.transformer.linear.weight": "parts.optimus.injector.memory.weight",
        "decoder.transformer.linear_emb.weight": "parts.optimus.injector.embedding.weight",
    }
    if published in direct:
        return named[direct[published]].grad, every
    if published.startswith("encoder."):  # the query of layer 0: the first third of qkv
        return named["parts.optimus.encoder.layers.0.attention.qkv.weight"].grad, slice(32)
    (ours,) = from_gpt2({published.removeprefix("decoder."): torch.zeros(1, 1)})
    gradient = named[f"backbone.{ours}"].grad
    return (gradient.t() if ".c_" in published else gradient), every


@torch.no_grad()
@pytest.mark.parametrize("tag", INJECTIONS)
def test_without_z_the_decoder_is_the_plain_language_model_bit_for_bit(tag):
    """The slot masked, nothing added, the same position ids: `evaluate --latent` without any z."""
    objective = objective_of(tag)
    model, inputs = model_of(objective), inputs_of(objective)
    row = (inputs["ids"], inputs["positions"])
    visibility = Visibility(inputs["lo"], inputs["hi"], inputs["document"])
    logits_BTV = model.backbone.logits(model.backbone(*row, visibility))
    decoder = objective.decoder(model, None)
    read = model.backbone(*row, visibility, **decoder.injected._asdict())
    assert torch.equal(model.backbone.logits(read), logits_BTV)
    nats_N = F.cross_entropy(
        logits_BTV.flatten(0, 1)[inputs["target_index"]], inputs["targets"], reduction="none"
    )
    assert torch.allclose(decoder.target_nats(inputs), nats_N, rtol=1e-5)
    beside_z = objective.decoder(model, stored("forward")["z"][:, None])
    assert not torch.allclose(beside_z.target_nats(inputs), nats_N, rtol=1e-2)

    if objective.config.latent.injection == "memory":
        return
    model.parts["optimus"].injector.embedding.weight.zero_()  # W_D = 0 adds nothing either
    injected = objective.decoder(model, stored("forward")["z"][:, None]).injected
    read = model.backbone(*row, visibility, **injected._replace(memory=None)._asdict())
    assert torch.equal(model.backbone.logits(read), logits_BTV)


@torch.no_grad()
def test_the_decoder_with_positions_from_0_is_the_published_one_without_z():
    objective = objective_of("mem")
    model, inputs = model_of(objective), inputs_of(objective)
    inside = inputs["document"] == 0
    visibility = Visibility(inputs["lo"], inputs["hi"], inputs["document"])
    hidden = model.backbone(inputs["ids"], inputs["positions"] - 1, visibility)
    logits = model.backbone.logits(hidden)
    assert close(logits[inside], stored("forward")["nolatent/logits"][inside], FORWARD)


@torch.no_grad()
def test_a_slot_that_no_token_sees_changes_logits_by_rounding_alone():
    """A softmax over a key more, whose weight is 0, is summed in another order."""
    objective = objective_of("mem")
    model, inputs = model_of(objective), inputs_of(objective)
    memory = objective.decoder(model, stored("forward")["z"][:, None]).injected.memory
    row, inside = (inputs["ids"], inputs["positions"]), inputs["document"] == 0
    # Of another document's number than the tokens'.
    nobodys = Visibility(inputs["lo"], inputs["hi"], inputs["document"] + inside.int())
    seen = model.backbone(*row, nobodys, memory=memory)
    plain = model.backbone(*row, Visibility(inputs["lo"], inputs["hi"], inputs["document"]))
    logits, expected = (model.backbone.logits(hidden)[inside] for hidden in (seen, plain))
    assert close(logits, expected, 2e-6)


@torch.no_grad()
def test_importance_weighted_bound_mutual_information_active_units_and_perplexity():
    """One sentence a batch, as the published evaluation is right; 100 draws of z."""
    golden = {k.removeprefix("bs1/"): v for k, v in stored("eval").items() if "bs1/" in k}
    objective = objective_of("both")
    model, inputs = model_of(objective), inputs_of(objective)
    posterior = Posterior(*(t[:, 0] for t in encoded(model, inputs)[1]))
    kl = posterior.kl().sum(-1)
    assert kl.tolist() == pytest.approx(golden["kl"].tolist(), rel=1e-5)
    assert posterior.mu.var(0).tolist() == pytest.approx(golden["au_var"].tolist(), rel=1e-4)

    noise = golden["iw_eps"][:, :, 0].flatten(1, 2)  # (4, 100, 8)
    each = Posterior(*(t[:, None] for t in posterior))
    nats = draw_nats(model, objective, inputs, each.sample(noise), most_rows=40)
    assert nats.mean(1).tolist() == pytest.approx((-golden["rec_mean_logp"]).tolist(), abs=1e-4)
    bound = bound_nats(nats, log_ratio(each, noise))
    assert bound.tolist() == pytest.approx((-golden["log_px_iw"]).tolist(), abs=1e-4)
    texts = TextBounds(
        bound, nats.mean(1), kl, nats[:, 0], nats[:, 0], None, inputs["weights"].new_tensor(
            (stored("forward")["lengths"][:, 1] - 1).tolist()
        ), torch.full((4,), 5), *posterior, each.sample(golden["mi_eps"][:, None]),
    )  # fmt: skip
    assert (texts.iw_nats < texts.elbo_nats).all()
    perplexity, elbo, _, kl, mi, units = golden["scalars"].tolist()
    found = report(texts, None, "reference")  # the beginning of each text counted
    assert found["perplexity_per_token"] == pytest.approx(perplexity, rel=1e-5)
    assert found["nats_per_sentence_elbo"] == pytest.approx(elbo, rel=1e-5)
    assert found["kl_nats"] == pytest.approx(kl, rel=1e-5)
    assert found["mutual_information_nats"] == pytest.approx(mi, abs=2e-5)
    assert found["active_units"] == units
    # Without it, as it should be: BOS is never predicted.
    counted = stored("forward")["lengths"][:, 1].sum()
    expected = math.exp(math.log(perplexity) * counted / (counted - 4))
    assert report(texts, None)["perplexity_per_token"] == pytest.approx(expected, rel=1e-5)


def test_a_padded_batch_gives_what_each_sentence_gives_alone():
    """The published evaluation attends to padding: in a batch of four its KL is another."""
    objective = objective_of("both")
    model = model_of(objective)
    whole = model(objective, inputs_of(objective))
    alone = [model(objective, inputs_of(objective, slice(i, i + 1))) for i in range(4)]
    for name in ("reconstruction_text", "kl"):
        total = sum(one[name].sum for one in alone)
        assert whole[name].sum.item() == pytest.approx(total.item(), rel=1e-5)
    published = [stored("eval")[f"bs{size}/kl"].sum().item() for size in (1, 4)]
    assert whole["kl"].sum.item() == pytest.approx(published[0], rel=1e-5)
    assert published[1] != pytest.approx(published[0], rel=0.05)


def test_inputs_are_those_of_the_published_rows():
    objective = objective_of("both")
    batch = batch_of(objective)
    rows = glm_inputs(batch)
    lengths = stored("forward")["lengths"]
    assert len(rows["targets"]) == int((lengths[:, 1] - 1).sum())  # BOS is no target, EOS is one
    latent = latent_inputs(batch, size=8, config=objective.config.elbo, factor=1.0)
    assert latent["source_hi"][:, 0].tolist() == lengths[:, 0].tolist()

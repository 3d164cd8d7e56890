"""GLM-VAE: packed rows give what each document gives alone, and z belongs to its document."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.loader import Batch, Position, first_place, training_batches
from data_pipeline.packing.plan import PackingConfig
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig
from kernels.visibility import Visibility
from pretrain.latent.rows import TextRows
from pretrain.models.backbone import Backbone
from pretrain.models.latent_shape import LatentShape, Pooling
from pretrain.models.shape import BackboneShape
from pretrain.objectives.glm import count_words
from pretrain.objectives.glm_vae import GlmVae
from pretrain.objectives.latent import LatentObjective
from pretrain.objectives.latent_inputs import NOISE_DRAWS
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.select import parts_of
from pretrain.settings.elbo_config import BetaConfig, ElboConfig, FreeBitsConfig
from pretrain.settings.latent_config import GlmVaeConfig

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})
SHAPE = BackboneShape(
    num_layers=2, hidden_size=24, num_heads=2, dropout_prob=0.0, attention_dropout_prob=0.0
)
PACKING = PackingConfig(source_tokens=20, row_tokens=44, window_tokens=10_000)
BLANKS = BlankConfig(token_prob=0.5, document_prob=0.5)


def objective_of(**settings: Any) -> LatentObjective:
    settings = {"blanks": BLANKS, "latent": LatentShape(size=5), "weight": 1.0} | settings
    return LatentObjective(GlmVae(GlmVaeConfig(**settings)), steps=100)


def model_of(objective: LatentObjective, shape: BackboneShape = SHAPE) -> ObjectiveModel:
    backbone = Backbone(shape, vocab_size=64, num_positions=24)
    # Larger than the initialisation, so that documents differ by more than rounding.
    model = ObjectiveModel(
        backbone, parts_of([objective], shape, vocab_size=64, source_tokens=20, seed=1)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0) if parameter.dim() > 1 else parameter.add_(0.05)
    return model


def batch_of(objective: LatentObjective, rank: int = 0, world_size: int = 1) -> Batch:
    lengths = np.random.default_rng(0).integers(1, 19, 60)
    ids = np.random.default_rng(1).integers(len(SPECIALS), 64, lengths.sum())
    split = MemorySplit.from_documents(np.split(ids, np.cumsum(lengths)[:-1]))
    transform = objective.transform(SPECIAL, source_tokens=20, vocab_size=64)
    batches = training_batches(
        split, transform, PACKING, seed=3, rank=rank, world_size=world_size,
        micro_rows=4 // world_size, accumulation=1, start=first_place(split), num_workers=0,
    )  # fmt: skip
    return next(batches)


def row_alone(batch: Batch, row: int, document: int) -> Batch:
    """One document of a batch in a row of its own."""
    of_row = batch.document[row] == document
    of_source = batch.sources[1, row] == document
    block = batch.block[:, row : row + 1, of_row].clone()
    block[6] = 0
    block[7:9] -= block[7].min()
    return replace(
        batch,
        block=block,
        sources=torch.stack((batch.sources[0, row, of_source], torch.zeros(of_source.sum()).int()))[
            :, None
        ],
        keys=batch.keys[row : row + 1, document : document + 1],
    )


def documents_of(batch: Batch) -> list[tuple[int, int]]:
    return [(b, d) for b in range(4) for d in range(int(batch.document[b].max()) + 1)]


@pytest.mark.parametrize("pooling", get_args(Pooling))
@pytest.mark.parametrize("injection", ["memory", "both"])
def test_a_packed_batch_is_the_sum_of_its_documents_alone(pooling, injection):
    latent = LatentShape(size=5, pooling=pooling, injection=injection, slots=2)
    objective = objective_of(latent=latent)
    model, batch = model_of(objective).eval(), batch_of(objective)
    packed = model(objective, objective.inputs(batch))
    alone = [
        model(objective, objective.inputs(row_alone(batch, *place)))
        for place in documents_of(batch)
    ]
    assert len(alone) > 8
    for name, term in packed.items():
        expected = [sum(getattr(one[name], part) for one in alone) for part in ("sum", "count")]
        assert term.sum.item() == pytest.approx(expected[0].item(), rel=2e-5), name
        assert term.count == expected[1], name
    assert packed["kl"].sum > 0 and 0 < packed["token"].count < packed["reconstruction"].count


def test_one_document_by_hand():
    """Encoder, pooling, posterior, noise, slots and decoder, one step at a time in float64."""
    objective = objective_of(
        elbo=ElboConfig(reduction="text", free_bits=FreeBitsConfig(mode="hinge", nats=0.2))
    )
    model = model_of(objective).double()
    batch = batch_of(objective)
    row = row_alone(batch, 1, 0)
    inputs = objective.inputs(row, update=70)  # the 8th cycle of 10 updates begins: beta 0
    assert inputs["beta"] == 0.0
    inputs = objective.inputs(row)
    assert inputs["beta"] == 1.0
    backbone, part = model.backbone, model.parts["glm_vae"]

    ids = row.sources[0].long()
    num_tokens = ids.shape[1]
    all_see_all = Visibility(
        torch.zeros_like(ids), torch.full_like(ids, num_tokens), torch.zeros_like(ids)
    )
    positions = torch.stack((torch.arange(num_tokens), torch.zeros(num_tokens).long()))[None]
    hidden = backbone(ids, positions, all_see_all)[0]
    score = torch.relu(hidden @ part.head.pooler.score.weight[0] + part.head.pooler.score.bias)
    pooled = ((score / 24**0.5).softmax(0)[:, None] * hidden).sum(0)
    both = part.head.posterior.weight @ pooled + part.head.posterior.bias
    mu, logvar = both[:5], both[5:]
    z = mu + inputs["noise"][0, 0].double() * (logvar / 2).exp()
    kl = 0.5 * (mu**2 + logvar.exp() - logvar - 1)

    slots = (part.injector.memory.weight @ z).view(2, 2, 1, 2, 12)
    memory = [(layer[0][None, None], layer[1][None, None]) for layer in slots]
    visibility = Visibility(row.lo, row.hi, row.document)
    logits = backbone.logits(backbone(row.ids, row.positions, visibility, memory=memory))[0]
    losses = -logits.log_softmax(-1).gather(1, row.targets[0].long()[:, None])[:, 0]
    terms = model(objective, inputs)
    assert terms["reconstruction_loss"].sum.item() == pytest.approx(
        (losses * row.weights[0]).sum().item(), rel=1e-6
    )
    assert terms["kl"].sum.item() == pytest.approx(kl.sum().item(), rel=1e-6)
    assert terms["kl_loss"].sum.item() == pytest.approx(kl.clamp(min=0.2).sum().item(), rel=1e-6)


def test_a_document_reads_its_own_z_alone():
    """Another text in document 0 moves the losses of document 0 and of no other."""
    objective = objective_of()
    model, batch = model_of(objective).eval(), batch_of(objective)
    inputs = objective.inputs(batch)
    changed = inputs | {"source_ids": inputs["source_ids"].clone()}
    changed["source_ids"][0, 2] = 63
    assert changed["source_document"][0, 2] == 0
    target_document = inputs["document"].flatten()[inputs["target_index"]]
    of_first = (inputs["target_index"] < 44) & (target_document == 0)

    def nats(given, chosen):
        weighted = given | {"weights": inputs["weights"] * chosen}
        return model(objective, weighted)["reconstruction"].sum

    assert nats(inputs, ~of_first) == nats(changed, ~of_first)
    assert nats(inputs, of_first) != nats(changed, of_first)


def test_noise_is_a_function_of_the_key():
    objective = objective_of()
    whole = objective.inputs(batch_of(objective))
    for rank in range(2):
        part = objective.inputs(batch_of(objective, rank, 2))
        width = part["noise"].shape[1]
        assert torch.equal(part["noise"], whole["noise"][rank::2, :width])
    noise = whole["noise"][whole["exists"]]
    assert len(noise.unique()) == noise.numel()
    deterministic = objective_of(elbo=ElboConfig(noise="none"))
    assert not deterministic.inputs(batch_of(deterministic))["noise"].any()
    assert NOISE_DRAWS > 4 << 32  # no draw of the blanks


def test_counts_are_known_before_the_forward_pass():
    for reduction in ("text", "token", "length_weighted"):
        objective = objective_of(elbo=ElboConfig(reduction=reduction))
        inputs = objective.inputs(batch_of(objective), 0)
        terms = model_of(objective)(objective, inputs)
        counts = objective.counts(inputs)
        assert list(counts) == list(objective.optimised)
        assert all(terms[name].count == counts[name] for name in counts)


def padding_batch() -> Batch:
    block = torch.zeros(9, 2, 44, dtype=torch.int32)
    block[6] = -1
    return Batch(block, Position(), 0, 0)


@pytest.mark.parametrize("injection", ["memory", "embedding", "both"])
def test_a_batch_of_padding_still_gives_every_parameter_a_gradient(injection):
    objective = objective_of(latent=LatentShape(size=5, injection=injection))
    model = model_of(objective)
    terms = model(objective, objective.inputs(padding_batch(), 0))
    assert all(term.sum == 0 and term.count == 0 for term in terms.values())
    sum(terms[name].sum for name in objective.optimised).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name


def test_only_optimised_terms_carry_a_graph_and_every_parameter_learns():
    objective = objective_of(latent=LatentShape(size=5, injection="both"))
    model = model_of(objective)
    terms = model(objective, objective.inputs(batch_of(objective), 99))
    graphs = [name for name, term in terms.items() if term.sum.requires_grad]
    assert graphs == list(objective.optimised)
    sum(terms[name].sum for name in graphs).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_the_latent_is_computed_in_fp32_under_bf16():
    objective = objective_of()
    model = model_of(objective).bfloat16()
    inputs = objective.inputs(batch_of(objective))
    terms = model(objective, inputs)
    assert all(term.sum.dtype == torch.float32 for term in terms.values())
    assert objective.health is not None
    mu, logvar, z, _ = objective.health.training.texts()
    assert {mu.dtype, logvar.dtype, z.dtype} == {torch.float32}
    exact = model_of(objective)(objective, inputs)
    assert terms["kl"].sum.item() == pytest.approx(exact["kl"].sum.item(), rel=0.05)


def test_recomputed_layers_give_the_same_gradients():
    objective = objective_of()
    inputs = objective.inputs(batch_of(objective), 99)
    gradients = []
    for layers_per_checkpoint in (0, 1):
        model = model_of(objective)
        model.backbone.layers_per_checkpoint = layers_per_checkpoint
        terms = model(objective, inputs)
        (terms["reconstruction_loss"].sum + terms["kl_loss"].sum).backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-6), name


def test_beta_of_a_step_is_a_function_of_the_applied_updates():
    objective = objective_of(elbo=ElboConfig(beta=BetaConfig(cycles=2), report_every=50))
    batch = batch_of(objective)
    factors = [objective.inputs(batch, update)["beta"].item() for update in (0, 30, 49, 50)]
    assert factors == pytest.approx([0.0, 5 / 12.5, 1.0, 0.0])
    assert objective.scalars(30) == {"beta": pytest.approx(0.4)}
    model_of(objective)(objective, objective.inputs(batch, 50))
    assert objective.scalars(50).keys() >= {"beta", "active_units", "mutual_information_nats"}


def test_a_held_out_loss_is_the_negative_elbo():
    """Beta 1 and no free bits, whatever the schedule and the recipe say."""
    elbo = ElboConfig(reduction="text", free_bits=FreeBitsConfig(mode="hinge", nats=3.0))
    objective = objective_of(elbo=elbo)
    model, batch = model_of(objective), batch_of(objective)
    terms = model.eval()(objective, objective.inputs(batch))
    assert terms["kl_loss"].sum == terms["kl"].sum
    assert model.train()(objective, objective.inputs(batch))["kl_loss"].sum > terms["kl"].sum


def test_the_first_token_of_a_text_is_a_word_however_it_is_marked():
    """Ids 40 and above begin words, and eos counts; a text mostly begins with another one."""
    blanks = BlankConfig(token_prob=0.0, document_prob=1.0, whole_prob=1.0)
    is_word_V = torch.arange(64) >= 40
    is_word_V[SPECIAL.eos] = True
    documents = [[41, 20, 45, 21], [20, 21, 50], [22], [63, 62]]
    words = 2 + 2 + 1 + 2
    objective = objective_of(blanks=blanks)
    transform = objective.transform(SPECIAL, source_tokens=20, vocab_size=64)
    rows = TextRows(MemorySplit.from_documents(documents), transform, seed=0, source_tokens=20)
    assert count_words(rows.batch(np.arange(4)), is_word_V) == words + 4  # and the ends
    # Of blanks that leave some of a text: as many first tokens as blanks that stand behind CLS.
    few = objective_of(blanks=BlankConfig(token_prob=1.0, document_prob=0.0))
    transform = few.transform(SPECIAL, source_tokens=20, vocab_size=64)
    split = MemorySplit.from_documents([list(range(20, 35))] * 60)
    batch = TextRows(split, transform, seed=1, source_tokens=20).batch(np.arange(60))
    expected = int((batch.ids[:, 1] == SPECIAL.mask).sum())
    assert count_words(batch, torch.zeros(64, dtype=torch.bool)) == expected > 0

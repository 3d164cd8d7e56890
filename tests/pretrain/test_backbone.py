"""The backbone against the published GLM code's numbers, and the promises of its docstring.

Left out of the golden file: `mask4d`, an arbitrary mask that no interval per query can say, and
`cloze_fast`, which rests on cached states and equals `cloze_multi`.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn import functional as F

from kernels.visibility import Visibility, single_documents
from pretrain.handing_over.convert import from_published_glm, to_published_glm
from pretrain.models.backbone import (
    Backbone,
    check_positions,
    decays,
    lay_out_for_decoding,
    num_positions,
)
from pretrain.models.cache import KeyValueCache
from pretrain.models.shape import BackboneShape

GOLDEN = Path(__file__).parents[1] / "golden" / "glm"
TINY = {"dropout_prob": 0.0, "attention_dropout_prob": 0.0}
SHAPE_A = BackboneShape(num_layers=2, hidden_size=64, num_heads=4, **TINY)
BATCHES = ("bert", "gpt_suffix", "gpt_infill", "sent")
golden = pytest.mark.golden


def model_a() -> Backbone:
    backbone = Backbone(SHAPE_A, vocab_size=128, num_positions=49)
    backbone.load_state_dict(from_published_glm(load_file(GOLDEN / "model_A_weights.safetensors")))
    return backbone.eval()


def golden_a(prefix: str) -> dict[str, torch.Tensor]:
    stored = load_file(GOLDEN / "model_A_io.safetensors")
    return {
        key.removeprefix(prefix + "."): value
        for key, value in stored.items()
        if key.startswith(prefix + ".")
    }


def rows_of(batch: dict[str, torch.Tensor]) -> tuple[Visibility, torch.Tensor]:
    """Visibility of golden rows, one document each, and which positions are no padding.

    Padding lies at the right end: text 0 without loss and with both positions 0.
    """
    num_tokens = batch["text"].shape[-1]
    used = (batch["text"] != 0) | (batch["position_id"] != 0).any(1)
    lengths = (used * torch.arange(1, num_tokens + 1)).amax(1)
    seps = batch["attention_mask"].expand(len(lengths))
    inside = torch.arange(num_tokens) < lengths[:, None]
    return single_documents(lengths, seps, num_tokens), inside


@golden
@pytest.mark.parametrize("prefix", BATCHES)
def test_masks_equal_the_published_ones(prefix):
    batch = golden_a(prefix)
    visibility, inside = rows_of(batch)
    assert torch.equal(visibility.dense_mask()[:, 0][inside], batch["mask2d"].bool()[inside])


@golden
@pytest.mark.parametrize("prefix", [*BATCHES, "scalar_sep"])
def test_logits_equal_the_published_ones(prefix):
    batch, backbone = golden_a(prefix), model_a()
    visibility, inside = rows_of(batch)
    logits = backbone.logits(backbone(batch["text"], batch["position_id"], visibility))
    assert (logits - batch["logits"])[inside].abs().max() < 2e-5


@golden
def test_hidden_states_of_every_layer_equal_the_published_ones():
    batch, backbone = golden_a("bert"), model_a()
    visibility, inside = rows_of(batch)
    seen = []
    backbone.embedding.register_forward_hook(
        lambda _module, _inputs, output: seen.append(output[0])
    )
    for layer in backbone.layers:
        layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    backbone(batch["text"], batch["position_id"], visibility)
    for number, hidden in enumerate(seen):
        assert (hidden - batch[f"hidden.{number}"])[inside].abs().max() < 2e-5


@golden
@pytest.mark.parametrize("with_tied", [False, True])
@pytest.mark.parametrize("prefix", BATCHES)
def test_loss_and_gradients_equal_the_published_ones(prefix, with_tied):
    batch, backbone = golden_a(prefix), model_a()
    visibility, inside = rows_of(batch)
    read = backbone(batch["text"], batch["position_id"], visibility, with_tied=with_tied)
    logits = backbone.logits(*read) if with_tied else backbone.logits(read)
    losses = F.cross_entropy(logits.transpose(1, 2), batch["target"], reduction="none")
    assert (losses - batch["token_losses"])[inside].abs().max() < 2e-5
    loss = (losses * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
    assert abs(loss - batch["loss"]) < 2e-6
    loss.backward()
    gradients = to_published_glm({name: p.grad for name, p in backbone.named_parameters()})
    checked = [key for key in batch if key.startswith("grad.")]
    assert len(checked) == (11 if prefix == "bert" else 5)
    for key in checked:
        difference = (gradients[key.removeprefix("grad.")] - batch[key]).abs().max()
        assert difference < 2e-6, key
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    assert norm.item() == pytest.approx(
        json.loads((GOLDEN / "model_meta.json").read_text())[prefix]["grad_norm_all"], rel=1e-6
    )


@golden
def test_bf16_strays_no_further_than_the_published_code():
    """Its logits differ from fp32 by up to 0.137, by 0.020 on average (model_meta.json)."""
    batch, backbone = golden_a("bert"), model_a().bfloat16()
    visibility, inside = rows_of(batch)
    logits = backbone.logits(backbone(batch["text"], batch["position_id"], visibility))
    assert logits.dtype == torch.bfloat16
    difference = (logits.float() - batch["logits"])[inside].abs()
    expected = json.loads((GOLDEN / "model_meta.json").read_text())
    assert difference.mean() < 1.2 * expected["bf16_mean_abs_diff_logits"]
    assert difference.max() < 1.2 * expected["bf16_max_abs_diff_logits"]


@golden
def test_one_position_table_will_do():
    """Model B of the published code: one layer, no block positions, one table of 64 rows."""
    stored = load_file(GOLDEN / "model_B_1d.safetensors")
    shape = BackboneShape(num_layers=1, hidden_size=32, num_heads=2, block_positions=False, **TINY)
    backbone = Backbone(shape, vocab_size=128, num_positions=64)
    weights = {k.removeprefix("w."): v for k, v in stored.items() if k.startswith("w.")}
    backbone.load_state_dict(from_published_glm(weights))
    batch = stored | {"position_id": stored["position_id"][:, None]}
    visibility, inside = rows_of(batch)
    logits = backbone.logits(backbone(batch["text"], batch["position_id"], visibility))
    assert (logits - batch["logits"])[inside].abs().max() < 2e-5


@golden
def test_a_prefix_of_part_b_has_the_logits_of_the_whole():
    """What decoding without a cache rests on; the published incremental logits say the same."""
    batch, backbone = golden_a("incr"), model_a()
    for length in (int(batch["attention_mask"]), 30, 41):
        visibility = single_documents(torch.tensor([length]), batch["attention_mask"], length)
        hidden = backbone(batch["text"][:, :length], batch["position_id"][..., :length], visibility)
        logits = backbone.logits(hidden[:, -1])
        for source in ("logits_full", "logits_incremental"):
            assert (logits - batch[source][:, length - 1]).abs().max() < 2e-5


@golden
def test_cloze_scores_equal_the_published_ones():
    batch, backbone = golden_a("cloze_single"), model_a()
    # Padding is eos and lies behind part B, which is [sop] alone: causality hides it.
    width = torch.tensor([24, 24])
    hidden = backbone(batch["text"], batch["position"], single_documents(width, batch["mask"], 24))
    logits = backbone.logits(hidden[torch.arange(2), batch["mask"]])
    scores = logits.gather(1, batch["target"])
    assert (scores - batch["scores_softmax0"]).abs().max() < 2e-5
    log_probs = logits.log_softmax(-1).gather(1, batch["target"])
    assert (log_probs - batch["scores_softmax1"]).abs().max() < 2e-5
    assert abs(F.cross_entropy(scores, batch["label"]) - batch["ce_loss"]) < 2e-6


@golden
def test_answers_of_several_tokens_score_as_published():
    batch, backbone = golden_a("cloze_multi"), model_a()
    text, positions = batch["text"].flatten(0, 1), batch["position"].flatten(0, 1)
    visibility = single_documents(torch.full((4,), 24), batch["mask"].flatten(), 24)
    log_probs = backbone.logits(backbone(text, positions, visibility)).log_softmax(-1)
    chosen = log_probs.gather(-1, batch["target"].flatten(0, 1)[..., None])[..., 0]
    scored = batch["logit_mask"].flatten(0, 1)
    scores = (chosen * scored).sum(-1)
    assert (scores.view(2, 2) - batch["scores_lp0"]).abs().max() < 2e-5
    assert ((scores / scored.sum(-1)).view(2, 2) - batch["scores_lp1"]).abs().max() < 2e-5


def random_rows(
    documents: list[tuple[int, int]], width: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, Visibility]:
    """One packed row of (length, sep) documents with random contents."""
    generator = torch.Generator().manual_seed(seed)
    ids, lo, hi = (torch.zeros(1, width, dtype=torch.int64) for _ in range(3))
    document, positions = lo - 1, torch.zeros(1, 2, width, dtype=torch.int64)
    start = 0
    for number, (length, sep) in enumerate(documents):
        index = torch.arange(start, start + length)
        ids[0, index] = torch.randint(0, 128, (length,), generator=generator)
        positions[0, 0, index] = torch.arange(length)
        lo[0, index], document[0, index] = start, number
        hi[0, index] = (index + 1).clamp(min=start + sep)
        start += length
    return ids, positions, Visibility(lo, hi, document)


def test_a_packed_document_does_not_know_its_neighbours():
    backbone = model_a()
    alone = random_rows([(13, 9)], 13, seed=3)
    packed = random_rows([(13, 9), (20, 0), (11, 11)], 48, seed=3)
    assert torch.equal(alone[0][0], packed[0][0, :13])
    expected = backbone.logits(backbone(*alone))
    first = backbone.logits(backbone(*packed))[:, :13]
    assert (first - expected).abs().max() < 1e-6 * expected.abs().max()


def test_a_document_anywhere_in_a_row_has_the_same_logits():
    backbone = model_a()
    documents = [(13, 9), (20, 0), (11, 11)]
    ids, positions, visibility = random_rows(documents, 48, seed=4)
    packed = backbone.logits(backbone(ids, positions, visibility))
    start = 0
    for length, sep in documents:
        part = slice(start, start + length)
        one = single_documents(torch.tensor([length]), torch.tensor([sep]), length)
        alone = backbone.logits(backbone(ids[:, part], positions[..., part], one))
        assert (packed[:, part] - alone).abs().max() < 1e-6 * alone.abs().max()
        start += length


documents_of_a_row = st.lists(
    st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=25)
@given(documents_of_a_row, st.integers(0, 5), st.integers(0, 2**31))
def test_gradients_of_packed_documents_are_the_sum_of_each_alone(documents, num_padding, seed):
    backbone = model_a()
    width = sum(length for length, _ in documents) + num_padding
    ids, positions, visibility = random_rows(documents, width, seed)

    def gradient(ids, positions, visibility):
        hidden = backbone(ids, positions, visibility)
        loss = backbone.logits(hidden)[~visibility.padding()].square().sum()
        return torch.autograd.grad(loss, backbone.layers[0].attention.qkv.weight)[0]

    alone, start = 0, 0
    for length, sep in documents:
        part = slice(start, start + length)
        one = single_documents(torch.tensor([length]), torch.tensor([sep]), length)
        alone = alone + gradient(ids[:, part], positions[..., part], one)
        start += length
    packed = gradient(ids, positions, visibility)
    assert (packed - alone).abs().max() < 1e-5 * alone.abs().max()


def test_nothing_flows_from_padding():
    backbone = model_a()
    ids, positions, visibility = random_rows([(13, 9)], 16, seed=5)
    embedded = []
    backbone.embedding.register_forward_hook(
        lambda _module, _inputs, output: (output[0].retain_grad(), embedded.append(output[0]))[0]
    )
    backbone(ids, positions, visibility)[:, :13].square().sum().backward()
    assert embedded[0].grad[:, :13].any()
    assert not embedded[0].grad[:, 13:].any()


@pytest.mark.parametrize("gelu", ["tanh", "erf"])
def test_post_norm_is_the_layer_of_torch(gelu):
    """One post-LN layer equals nn.TransformerEncoderLayer with the same weights."""
    shape = BackboneShape(
        num_layers=1, hidden_size=32, num_heads=2, norm_order="post", gelu=gelu, **TINY
    )
    ours = Backbone(shape, vocab_size=128, num_positions=17).eval().double()
    layer = ours.layers[0]
    theirs = torch.nn.TransformerEncoderLayer(
        32,
        2,
        128,
        dropout=0.0,
        activation=lambda x: F.gelu(x, approximate="tanh" if gelu == "tanh" else "none"),
        batch_first=True,
        dtype=torch.float64,
    )
    theirs.load_state_dict(
        {
            "self_attn.in_proj_weight": layer.attention.qkv.weight,
            "self_attn.in_proj_bias": layer.attention.qkv.bias,
            "self_attn.out_proj.weight": layer.attention.output.weight,
            "self_attn.out_proj.bias": layer.attention.output.bias,
            "linear1.weight": layer.mlp.up.weight,
            "linear1.bias": layer.mlp.up.bias,
            "linear2.weight": layer.mlp.down.weight,
            "linear2.bias": layer.mlp.down.bias,
            "norm1.weight": layer.attention_norm.weight,
            "norm1.bias": layer.attention_norm.bias,
            "norm2.weight": layer.mlp_norm.weight,
            "norm2.bias": layer.mlp_norm.bias,
        }
    )
    ids, positions, visibility = random_rows([(13, 13)], 13, seed=6)
    embedded, _ = ours.embedding(ids, positions)
    assert torch.allclose(ours(ids, positions, visibility), theirs(embedded), atol=1e-12)
    assert ours.final_norm is None


def test_layer_norm_statistics_are_fp32_under_bf16():
    norm = model_a().final_norm.bfloat16()
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).bfloat16() * 3 + 100
    wide = x.float()
    expected = (wide - wide.mean(-1, keepdim=True)) / (
        wide.var(-1, unbiased=False, keepdim=True) + norm.eps
    ).sqrt() * norm.weight.float() + norm.bias.float()
    assert torch.allclose(norm(x).float(), expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize(
    ("layers", "width", "heads", "tokens", "millions"),
    [(12, 768, 12, 512, 109.3), (24, 1024, 16, 512, 334.7)],
)
def test_published_sizes(layers, width, heads, tokens, millions):
    shape = BackboneShape(num_layers=layers, hidden_size=width, num_heads=heads)
    with torch.device("meta"):
        rows = num_positions(shape, tokens)
        backbone = Backbone(shape, vocab_size=30592, num_positions=rows)
    assert {p.device.type for p in backbone.parameters()} == {"meta"}
    total = sum(p.numel() for p in backbone.parameters())
    assert round(total / 1e6, 1) == millions


def test_initialisation_has_the_published_deviations():
    shape = BackboneShape(num_layers=12, hidden_size=256, num_heads=4)
    generator = torch.Generator().manual_seed(1)
    backbone = Backbone(shape, vocab_size=1024, num_positions=129, generator=generator)
    expected = json.loads((GOLDEN / "model_meta.json").read_text())["init_std_12layer_h256"]
    drawn = to_published_glm(backbone.state_dict())
    for name, std in expected.items():
        # 3 % is more than 5 standard errors of the smallest matrix that is drawn (129 x 256).
        assert drawn[name].std().item() == pytest.approx(std, rel=0.03), name
    assert all((p == 0).all() for name, p in drawn.items() if name.endswith("bias"))
    assert all((p == 1).all() for name, p in drawn.items() if name.endswith("layernorm.weight"))


def test_weights_depend_on_the_generator_alone():
    def weights(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        backbone = Backbone(SHAPE_A, vocab_size=128, num_positions=49, generator=generator)
        return torch.cat([p.detach().flatten().float() for p in backbone.parameters()])

    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = weights(1)
    assert torch.equal(torch.get_rng_state(), state)  # torch's own generator is left alone
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(weights(1), first.bfloat16().float())
    finally:
        torch.set_default_dtype(torch.float32)


def test_matrices_and_tables_decay_biases_and_norms_do_not():
    expected = json.loads((GOLDEN / "model_meta.json").read_text())["param_groups"]
    parameters = dict(model_a().named_parameters())
    decayed = {name: p for name, p in parameters.items() if decays(name, p)}
    kept = {name: p for name, p in parameters.items() if not decays(name, p)}
    assert sorted(to_published_glm(decayed)) == sorted(expected["decay"])
    assert sorted(to_published_glm(kept)) == sorted(expected["no_decay"])


def test_a_position_beyond_the_table_is_refused():
    backbone = model_a()
    ids, positions, visibility = random_rows([(13, 9)], 13, seed=6)
    positions[0, 1, 4] = 49
    with pytest.raises(ValueError, match=r"position 49 lies beyond the position table.*below 49"):
        backbone(ids, positions, visibility)
    check_positions(torch.tensor([[48]]), 49)


def test_tables_have_one_row_more_with_block_positions():
    assert num_positions(BackboneShape(), 512) == 513
    assert num_positions(BackboneShape(block_positions=False), 512) == 512


def test_dropout_acts_in_training_only():
    shape = BackboneShape(num_layers=1, hidden_size=32, num_heads=2)
    backbone = Backbone(shape, vocab_size=128, num_positions=17)
    row = random_rows([(13, 9)], 13, seed=6)
    backbone.eval()
    assert torch.equal(backbone(*row), backbone(*row))
    backbone.train()
    assert not torch.equal(backbone(*row), backbone(*row))


def test_the_layout_for_decoding_changes_no_weight_and_no_answer():
    backbone = Backbone(SHAPE_A, vocab_size=64, num_positions=33).eval()
    weights = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    ids_BT = torch.arange(12).reshape(2, 6)
    positions_B2T = torch.arange(6).expand(2, 2, 6)
    visibility = single_documents(torch.tensor([6, 6]), torch.tensor([0, 0]), 6)
    before = backbone(ids_BT, positions_B2T, visibility)

    lay_out_for_decoding(backbone)

    assert backbone.layers[0].mlp.up.weight.stride() == (1, 4 * SHAPE_A.hidden_size)
    assert all(torch.equal(t, weights[name]) for name, t in backbone.state_dict().items())
    torch.testing.assert_close(backbone(ids_BT, positions_B2T, visibility), before)


def test_the_first_layers_alone_are_the_states_on_the_way():
    """With the last LayerNorm, as an encoder of fewer layers has it."""
    shape = BackboneShape(num_layers=3, hidden_size=32, num_heads=2, **TINY)
    deep = Backbone(shape, vocab_size=128, num_positions=17).eval()
    flat = Backbone(replace(shape, num_layers=2), vocab_size=128, num_positions=17).eval()
    flat.load_state_dict({n: t for n, t in deep.state_dict().items() if n in flat.state_dict()})
    row = random_rows([(13, 13)], 13, seed=6)
    assert torch.equal(deep(*row, layers=2), flat(*row))
    assert not torch.equal(deep(*row), flat(*row))


def test_a_cache_beside_memory_slots_gives_what_the_whole_row_gives():
    """The slots of a document enter every step beside its kept keys, once."""
    backbone = Backbone(SHAPE_A, vocab_size=64, num_positions=33).eval()
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(64, (2, 6), generator=generator)
    positions_B2T = torch.arange(6).expand(2, 2, 6)
    heads, width = SHAPE_A.num_heads, SHAPE_A.hidden_size // SHAPE_A.num_heads
    memory = [
        (torch.randn(2, 1, 3, heads, width, generator=generator), None)
        for _ in range(SHAPE_A.num_layers)
    ]
    causal = single_documents(torch.tensor([6, 6]), torch.tensor([0, 0]), 6)
    whole = backbone(ids_BT, positions_B2T, causal, memory=memory)
    cache = KeyValueCache(num_layers=SHAPE_A.num_layers, max_rows=2)
    for t in range(6):
        now = slice(t, t + 1)
        one = Visibility(causal.lo[:, now], causal.hi[:, now], causal.document[:, now])
        read = backbone(ids_BT[:, now], positions_B2T[..., now], one, memory=memory, cache=cache)
        torch.testing.assert_close(read[:, 0], whole[:, t], atol=2e-6, rtol=1e-5)
    assert not torch.allclose(whole, backbone(ids_BT, positions_B2T, causal), atol=1e-3)

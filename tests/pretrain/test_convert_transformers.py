"""Weights of BERT and GPT-2 folders: hidden states equal those of transformers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.visibility import single_documents
from pretrain.handing_over.convert_transformers import from_bert, from_gpt2, read_folder
from pretrain.models.backbone import Backbone

LENGTHS = torch.tensor([9, 14, 1])


def rows(vocab_size: int) -> Tensor:
    return torch.randint(vocab_size, (3, 14), generator=torch.Generator().manual_seed(0))


def ours_of(folder: Path, ids: Tensor, *, is_causal: bool) -> tuple[Tensor, dict[str, Tensor]]:
    imported = read_folder(folder)
    backbone = Backbone(
        imported.shape, vocab_size=imported.vocab_size, num_positions=imported.num_positions
    ).eval()
    backbone.load_state_dict(imported.weights)
    positions = torch.arange(ids.shape[1]).expand(len(ids), 1, -1)
    visibility = single_documents(LENGTHS, LENGTHS * (not is_causal), ids.shape[1])
    with torch.no_grad():
        return backbone(ids, positions, visibility), imported.pooler


def differences(ours: Tensor, theirs: Tensor) -> float:
    inside = torch.arange(ours.shape[1]) < LENGTHS[:, None]
    return float((ours - theirs)[inside].abs().max())


@pytest.mark.parametrize("inner", [64, 128])
def test_bert(tmp_path: Path, inner: int) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=inner, max_position_embeddings=20, initializer_range=0.3,
    )  # fmt: skip
    model = BertModel(config).eval()
    model.save_pretrained(tmp_path)
    ids = rows(99)
    mask = (torch.arange(14) < LENGTHS[:, None]).long()
    with torch.no_grad():
        theirs = model(ids, attention_mask=mask)
    hidden, pooler = ours_of(tmp_path, ids, is_causal=False)
    assert differences(hidden, theirs.last_hidden_state) < 2e-5
    pooled = torch.tanh(hidden[:, 0] @ pooler["weight"].t() + pooler["bias"])
    assert (pooled - theirs.pooler_output).abs().max() < 2e-5


@pytest.mark.parametrize("head", [True, False])
def test_gpt2(tmp_path: Path, head: bool) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=20, initializer_range=0.3
    )
    model = (GPT2LMHeadModel if head else GPT2Model)(config).eval()
    model.save_pretrained(tmp_path)
    ids = rows(99)
    with torch.no_grad():
        theirs = model(ids, output_hidden_states=True).hidden_states[-1]
    hidden, pooler = ours_of(tmp_path, ids, is_causal=True)
    assert differences(hidden, theirs) < 2e-5 and pooler == {}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (None, "cannot be read"),
        ({"model_type": "bert"}, "holds no model.safetensors. Pickled weights"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path: Path, written, said: str) -> None:
    if written is not None:
        (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match=said):
        read_folder(tmp_path)


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2Model

    GPT2Model(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for changed, said in (
        ({"model_type": "t5"}, "of type 't5'; bert and gpt2 can be read"),
        ({"activation_function": "relu"}, "activation_function is 'relu'"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False"),
        ({"n_layer": None}, "config.json does not say 'n_layer'"),
    ):
        new = {name: value for name, value in (config | changed).items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(new))
        with pytest.raises(ValueError, match=said):
            read_folder(tmp_path)


def test_an_output_that_is_not_the_token_table_is_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, tie_word_embeddings=False)
    GPT2LMHeadModel(shape).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lm_head\.weight is not the token table"):
        read_folder(tmp_path)


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2Model

    GPT2Model(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({n: w for n, w in load_file(file).items() if n != "wpe.weight"}, file)
    with pytest.raises(ValueError, match=r"holds no weights of its embedding\.position_table"):
        read_folder(tmp_path)


def test_no_name_is_left_over() -> None:
    with pytest.raises(ValueError, match=r"no weight of BERT is called 'encoder.layer.0.extra"):
        from_bert({"encoder.layer.0.extra.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"no weight of GPT-2 is called 'h.0.attn.c_z.weight'"):
        from_gpt2({"transformer.h.0.attn.c_z.weight": torch.zeros(1, 1)})
    with pytest.raises(ValueError, match="lack key, value"):
        from_bert({"bert.encoder.layer.0.attention.self.query.bias": torch.zeros(1)})

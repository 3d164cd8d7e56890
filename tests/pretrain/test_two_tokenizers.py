"""Optimus as published: BERT's WordPiece is read, GPT-2's byte BPE is written, imported or not.

Every number of ranks is one process group that runs all its trainings.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from data_pipeline.packing.loader import Batch, Position, training_batches
from data_pipeline.preparing.length_limits import LengthLimits
from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.storage.shards import Shards, open_shards
from kernels.visibility import single_documents
from pretrain.checkpoints.resume import identity
from pretrain.checkpoints.weights import shapes_of
from pretrain.handing_over.export import export
from pretrain.handing_over.imported import imported_weights
from pretrain.handing_over.warm_start import check_source, open_source
from pretrain.models.shape import padded_vocabulary
from pretrain.objectives.latent import LatentObjective, sources_visibility
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.optimus import OptimusPart
from pretrain.objectives.select import objectives_of, parts_of
from pretrain.settings.cli import parse_train
from pretrain.settings.config import Config
from pretrain.settings.two_tokenizers import check_streams, encoder_vocabulary, stream_in_words
from pretrain.training.setup import make_backbone

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "train_cases.py")
STEPS, HALF = 6, 4
LONGEST = 60  # tokens of a text under either tokenizer
EXACT = 2e-5
ENCODER = (
    "{num_layers: 2, hidden_size: 16, num_heads: 2, mlp_size: 24, norm_order: post, gelu: erf, "
    "norm_eps: 1e-12, token_types: 2, embedding_norm: true, block_positions: false, "
    "max_positions: 64, dropout_prob: 0, attention_dropout_prob: 0}"
)
Run = Callable[..., list[int]]


@pytest.fixture(scope="module")
def text(shards: Path) -> Path:
    """Sentences, one to thirty a line."""
    return shards.parent / "text.txt"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """Folders `bert` and `gpt2` as transformers saves them: a model and its tokenizer."""
    from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for name in ("bert", "gpt2"):
        (folder / name).mkdir()
    words = BertWordPieceTokenizer(lowercase=True)
    words.train([str(text)], vocab_size=90, show_progress=False)
    words.save_model(str(folder / "bert"))
    pieces = ByteLevelBPETokenizer(add_prefix_space=True)
    special = ["<|endoftext|>"]
    pieces.train([str(text)], vocab_size=300, special_tokens=special, show_progress=False)
    pieces.save_model(str(folder / "gpt2"))
    bert = BertConfig(
        vocab_size=words.get_vocab_size(), hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=24, max_position_embeddings=64,
        initializer_range=0.3,
    )  # fmt: skip
    BertModel(bert).save_pretrained(folder / "bert")
    gpt2 = GPT2Config(
        vocab_size=pieces.get_vocab_size(), n_embd=32, n_layer=2, n_head=2, n_positions=70,
        initializer_range=0.3,
    )  # fmt: skip
    GPT2Model(gpt2).save_pretrained(folder / "gpt2")
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, text: Path, models: Path) -> Path:
    """Shards of two streams, a tenth of them held out."""
    return prepared(
        tmp_path_factory.mktemp("two") / "shards", text, models / "gpt2", models / "bert"
    )


def prepared(output: Path, text: Path, tokenizer: Path, encoder: Path | None) -> Path:
    prepare(
        PrepareSettings(
            input=[str(text)], tokenizer=str(tokenizer), output=str(output), validation=0.1,
            encoder_tokenizer=encoder and str(encoder), workers=1,
            lengths=LengthLimits(max_tokens=LONGEST),
        )
    )  # fmt: skip
    return output


def arguments(shards: Path, *more: str) -> list[str]:
    return [
        *(f"--config={DEBUG}", f"--data.shards={shards}", "--data.packing.cut=long"),
        *("--objectives.glm.weight=0", "--objectives.optimus.weight=1"),
        *("--objectives.optimus.tokenizers=two", f"--objectives.optimus.encoder={ENCODER}"),
        "--objectives.optimus.latent={size: 6, pooling: cls, injection: both}",
        "--objectives.optimus.elbo.beta={cycles: 2, zero_ratio: 0.3, increase_ratio: 0.3}",
        *("--model.block_positions=false", "--model.max_positions=72", "--model.dropout_prob=0"),
        *more,
    ]


def imports(models: Path) -> tuple[str, str]:
    return (
        f"--objectives.optimus.encoder_from={models / 'bert'}",
        f"--objectives.optimus.decoder_from={models / 'gpt2'}",
    )


def config_of(shards: Path, *more: str) -> Config:
    return parse_train(arguments(shards, *more))[0]


def refusal(config: Config, *folders: Path) -> str:
    with pytest.raises(ValueError) as caught:
        check_streams(config, [open_shards(folder) for folder in folders])
    return str(caught.value)


def test_shards_and_recipe_must_have_as_many_streams(two: Path, shards: Path) -> None:
    check_streams(config_of(two), [open_shards(two)])
    said = refusal(config_of(two), two, shards)
    assert said == (
        f"objectives.optimus.tokenizers: two, but {shards} holds the ids of one tokenizer. Prepare "
        "it with --encoder-tokenizer, or set objectives.optimus.tokenizers: one."
    )
    one = config_of(two, "--objectives.optimus.tokenizers=one")
    assert "tokenizers: one, but" in refusal(one, two)
    check_streams(one, [open_shards(shards)])


def test_other_objectives_read_the_first_stream_alone(two: Path) -> None:
    glm = parse_train([f"--config={DEBUG}", f"--data.shards={two}"])[0]
    check_streams(glm, [open_shards(two)])
    opened = open_shards(two)
    assert encoder_vocabulary(glm.objectives, opened) is None
    said = stream_in_words(glm.objectives, opened)
    assert said == " (and a second stream, which no objective of this run reads)"
    assert "of the encoder's, of " in stream_in_words(config_of(two).objectives, opened)


@pytest.mark.parametrize(
    "flag, setting",
    [
        ("--data.packing.source_tokens=40", "data.packing.source_tokens is 40"),
        ("--objectives.optimus.encoder.max_positions=24", "optimus.encoder is 24"),
    ],
)
def test_texts_that_do_not_fit_are_named_before_the_first_step(
    two: Path, flag: str, setting: str
) -> None:
    said = refusal(config_of(two, flag), two)
    assert setting in said and "prepare with --max-tokens" in said


@pytest.mark.parametrize(
    "flag", ["--data.packing.cut=fill", "--data.packing.short_sequence_prob=1"]
)
def test_settings_that_cut_texts_are_refused(
    two: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        config_of(two, flag)
    assert "a text in two streams is never cut" in capsys.readouterr().err


def test_a_resume_compares_how_many_tokenizers_there_are(two: Path) -> None:
    models = [
        identity(config_of(two, *flags), data_fingerprint="x", vocab_size=1)["model"]
        for flags in ((), ("--objectives.optimus.tokenizers=one",))
    ]
    assert {k for k in models[0] if models[0][k] != models[1][k]} == {
        "objectives.optimus.tokenizers"
    }


def first_batch(config: Config, opened: Shards) -> tuple[LatentObjective, Batch]:
    vocabulary = encoder_vocabulary(config.objectives, opened)
    (objective,) = objectives_of(config.objectives, steps=1, encoder=vocabulary)
    assert isinstance(objective, LatentObjective)
    transform = objective.transform(opened.special, source_tokens=64, vocab_size=opened.vocab_size)
    rows = training_batches(
        opened.splits["train"], transform, config.data.packing, seed=1, rank=0, world_size=1,
        micro_rows=3, accumulation=1, start=Position(), num_workers=0,
    )  # fmt: skip
    return objective, next(rows)


def built(config: Config, objective: Any, opened: Shards) -> ObjectiveModel:
    rows = padded_vocabulary(opened.vocab_size)
    parts = parts_of([objective], config.model, vocab_size=rows, source_tokens=64, seed=1)
    return ObjectiveModel(make_backbone(config, rows), parts).eval()


def documents(hidden_BTD: Tensor, document_BT: Tensor) -> list[Tensor]:
    """The hidden states of each document."""
    return [
        hidden[document == number]
        for hidden, document in zip(hidden_BTD, document_BT)
        for number in range(int(document.max()) + 1)
    ]


def test_both_halves_have_the_hidden_states_of_transformers(two: Path, models: Path) -> None:
    from transformers import BertModel, GPT2Model

    config, opened = config_of(two, *imports(models)), open_shards(two)
    objective, batch = first_batch(config, opened)
    model = built(config, objective, opened)
    weights = imported_weights(config, shapes_of(model), opened)
    for name, drawn in model.named_parameters():
        if name in weights:  # a table's rows beyond the model's stay as they were drawn
            drawn.data[: len(weights[name])] = weights[name]
    inputs, part = objective.inputs(batch), model.parts["optimus"]
    assert isinstance(part, OptimusPart)
    bert = BertModel.from_pretrained(models / "bert").eval()
    gpt2 = GPT2Model.from_pretrained(models / "gpt2").eval()
    with torch.no_grad():
        read_BTD = part.encoder(
            inputs["source_ids"], inputs["source_positions"], sources_visibility(inputs)
        )
        posterior = objective.encode(model, inputs)
        ids, document = inputs["source_ids"], inputs["source_document"]
        for ours, row in zip(
            documents(read_BTD, document), documents(ids[..., None], document), strict=True
        ):
            theirs = bert(row[:, 0][None].long())
            assert (ours - theirs.last_hidden_state[0]).abs().max() < EXACT
        pooled = bert(
            ids[document == 0][: int((document[0] == 0).sum())][None].long()
        ).pooler_output
        mu = (pooled @ part.head.posterior.weight.t()).chunk(2, -1)[0]
        assert (mu[0] - posterior.mu[0, 0]).abs().max() < EXACT
        # CLS and eos of the decoder are rows of its own, the words between are GPT-2's.
        words = batch.ids[0][batch.document[0] == 0][1:-1].long()[None]
        lengths = torch.tensor([words.shape[1]])
        places = torch.arange(words.shape[1])[None, None]
        ours = model.backbone(words, places, single_documents(lengths, lengths * 0, len(words[0])))
        theirs = gpt2(words).last_hidden_state
    assert (ours - theirs).abs().max() < EXACT
    assert opened.special.cls >= gpt2.config.vocab_size


def test_weights_of_another_vocabulary_are_refused(
    two: Path, models: Path, tmp_path: Path, text: Path, shards: Path
) -> None:
    opened = open_shards(two)
    config = config_of(two, *imports(models))
    needed = shapes_of(built(config, first_batch(config, opened)[0], opened))
    other = prepared(tmp_path / "other", text, models / "gpt2", shards / "tokenizer")
    with pytest.raises(ValueError, match=r"encoder_from .* the model has \d+ ids, and the token"):
        imported_weights(config, needed, open_shards(other))
    # As many ids, but two words have changed places; and the same ids for other capitals.
    bert = tmp_path / "bert"
    bert.mkdir()
    for file in (models / "bert").iterdir():
        (bert / file.name).write_bytes(file.read_bytes())
    words = (bert / "vocab.txt").read_text().split("\n")
    words[20], words[21] = words[21], words[20]
    (bert / "vocab.txt").write_text("\n".join(words))
    config = config_of(two, f"--objectives.optimus.encoder_from={bert}")
    with pytest.raises(ValueError, match=r"its tokenizer is not that of the shards: id 20 is"):
        imported_weights(config, needed, opened)


CASES: dict[int, dict[str, tuple[int, int, tuple[str, ...]]]] = {
    1: {"reference": (0, 8, ())},
    2: {
        "stage1": (1, 2, ()),
        "stage3_accumulating": (3, 1, ()),
        "broken": (3, 4, (f"--stop_at_step={HALF}",)),
        "broken, resumed": (3, 4, ("--resume=auto",)),
        "finetuned": (3, 4, ("--init-from=FOLDER/broken", "--stop_at_step=1")),
    },
}


@pytest.fixture(scope="module")
def trainings(
    tmp_path_factory: pytest.TempPathFactory, two: Path, models: Path, run_ranks: Run
) -> Path:
    """The folder of all runs; all but the last begin with BERT and GPT-2."""
    folder = tmp_path_factory.mktemp("trainings")
    for ranks, cases in CASES.items():
        listed = []
        for name, (stage, micro_rows, flags) in cases.items():
            zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
            (folder / f"{name}.json").write_text(json.dumps({"zero_optimization": zero}))
            begins = [flag.replace("FOLDER", str(folder)) for flag in flags]
            if "finetuned" not in name:
                begins += imports(models)
            listed.append(
                arguments(
                    two, f"--name={name.partition(',')[0]}", f"--runs={folder}",
                    f"--steps={STEPS}", f"--batch.micro_rows={micro_rows}",
                    f"--deepspeed_config={folder / name}.json", "--evaluation.every_steps=0",
                    "--schedule.warmup_ratio=0", *begins,
                )
            )  # fmt: skip
        (folder / f"{ranks}.json").write_text(json.dumps(listed))
        run_ranks(ranks, [WORKER, str(folder / f"{ranks}.json")], folder / f"log{ranks}")
    return folder


def curve(folder: Path, name: str, tag: str) -> list[float]:
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").open()]
    return [row[tag] for row in rows if tag in row]


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["stage1", "stage3_accumulating", "broken"])
def test_ranks_stages_and_a_resume_have_one_curve(name: str, trainings: Path) -> None:
    tags = ("loss/optimus_reconstruction_loss_nats", "loss/optimus_kl_nats", "latent/optimus_beta")
    for tag in (*tags, "optimizer/gradient_norm"):
        ours, theirs = (curve(trainings, run, tag) for run in (name, "reference"))
        assert len(ours) == STEPS and ours == pytest.approx(theirs, rel=2e-5)


@pytest.mark.ranks
def test_a_run_begins_with_anothers_weights_under_the_same_tokenizers(
    trainings: Path, tmp_path: Path
) -> None:
    tag = "loss/optimus_reconstruction_nats"
    (first,), reference = curve(trainings, "finetuned", tag), curve(trainings, "reference", tag)
    assert first < reference[0] - 0.1  # the same rows, after six updates more
    source = open_source(str(trainings / "broken"), None, tmp_path)
    shapes, words = dict(source.weights.shapes), source.tokenizer_fingerprint
    encoder = source.encoder_fingerprint
    assert encoder is not None and encoder != words
    check_source(source, shapes, words, encoder)
    check_source(source, shapes, None, None)
    with pytest.raises(ValueError, match="its encoder was trained with another tokenizer"):
        check_source(source, shapes, words, None)
    plain = {n: s for n, s in shapes.items() if not n.startswith("parts.")}
    check_source(source, plain, words, None)  # the decoder alone
    export(trainings / "broken", tmp_path / "exported")
    handed_over = open_source(str(tmp_path / "exported"), None, tmp_path)
    assert handed_over[2:] == (words, encoder)

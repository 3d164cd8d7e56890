"""`python -m pretrain evaluate --latent`: a report of a run folder, and one line for a mistake."""

import json
import math

import pytest

from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.preparing.train_tokenizer import TokenizerSettings, train_tokenizer
from pretrain.__main__ import main
from pretrain.evaluate.command import EvaluateSettings, evaluate_latent

FEW = ["--max_texts", "5", "--samples", "3"]


@pytest.mark.parametrize("name", ["optimus", "adavae", "lstm_vae"])
def test_a_run_is_evaluated_on_the_held_out_texts_of_its_shards(name, run_of, capsys, tmp_path):
    output = tmp_path / "report.json"
    main(["evaluate", "--latent", str(run_of(name)), *FEW, "--output", str(output)])
    table = capsys.readouterr().out
    found = json.loads(output.read_text())
    assert (found["objective"], found["step"], found["samples"]) == (name, 7, 3)
    assert f"{found['perplexity_per_token']:,.4f}" in table
    assert found["latent_size"] == 6
    assert found["perplexity_per_token"] == pytest.approx(math.exp(found["nats_per_token_iw"]))
    parts = found["reconstruction_nats"] + found["kl_nats"]
    assert found["nats_per_sentence_elbo"] == pytest.approx(parts)


def test_glm_vae_is_measured_on_whole_texts_and_by_kind_of_blank(run_of, capsys):
    main(
        ["evaluate", "--latent", str(run_of("glm_vae")), "--max_texts=25", "--samples=2", "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert set(found["blanks"]["by_kind"]) == {"token", "document", "whole"}
    assert "by_kind" not in found
    # Of a whole text all tokens and its end are written; of the blanked ones fewer.
    assert found["num_tokens"] > found["blanks"]["num_tokens"]
    assert found["kl_nats"] == pytest.approx(found["blanks"]["kl_nats"], rel=1e-6)


def test_a_text_file_counts_as_its_sentences(run_of, tmp_path):
    texts = ["the river sees the morning.", "a teacher carries its letters."]
    path = tmp_path / "texts.txt"
    path.write_text(f"{texts[0]}\n\n{texts[1]}\n", encoding="utf-8")
    settings = EvaluateSettings(latent=str(run_of("optimus")), data=str(path), samples=2)
    found = evaluate_latent(settings)
    assert found["num_texts"] == 2
    assert found["num_words"] == 10 + 2
    assert found["num_bytes"] == sum(map(len, texts)) + 2
    published = evaluate_latent(EvaluateSettings(**vars(settings) | {"denominator": "reference"}))
    assert published["num_tokens"] == found["num_tokens"] + 2
    assert published["nats_per_sentence_iw"] == found["nats_per_sentence_iw"]


@pytest.fixture(scope="module")
def other_shards(tmp_path_factory, shards):
    """The same text as ids of another tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    text = shards.parent / "text.txt"
    model = folder / "other.model"
    train_tokenizer(TokenizerSettings(input=[str(text)], output=str(model), vocab_size=300))
    prepare(
        PrepareSettings(
            input=[str(text)], tokenizer=str(model), output=str(folder / "shards"), validation=0.2
        )
    )
    return folder / "shards"


def said(capsys, argv):
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pretrain:")]
    assert len(errors) == 1
    return errors[0]


def test_mistakes_are_one_line(run_of, other_shards, tmp_path, capsys):
    optimus = ["evaluate", "--latent", str(run_of("optimus")), *FEW]
    long, empty = tmp_path / "long.txt", tmp_path / "empty.txt"
    long.write_text("one\n" + "the river " * 80 + "\n")
    empty.write_text("\n \n")
    for argv, message in (
        (["evaluate", "--latent", str(run_of("glm"))], "has no latent space: it has learned glm"),
        (["evaluate", "--latent", str(tmp_path / "nowhere")], "config.yaml is missing"),
        ([*optimus, "--data", str(other_shards)], "prepared with another tokenizer"),
        ([*optimus, "--data", str(long)], "long.txt, line 2 has "),
        ([*optimus, "--data", str(empty)], "empty.txt holds no text"),
        ([*optimus, "--data", str(tmp_path / "none.txt")], "none.txt does not exist"),
        ([*optimus, "--objective", "adavae"], "has learned optimus"),
        ([*optimus, "--checkpoint", "8"], "does not hold step-00000008"),
        ([*optimus, "--samples", "0"], "samples must be at least 1, got 0"),
        (
            ["evaluate", "--latent", str(run_of("glm_vae")), "--denominator", "reference"],
            "no published code counts its tokens",
        ),
    ):
        assert message in said(capsys, argv)

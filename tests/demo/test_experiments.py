"""The experiments: every run is one that training takes, and their table says what was measured."""

import subprocess
from pathlib import Path

import pytest

from demo.experiments import runs
from demo.experiments.plans import BASE, EXPERIMENTS, RECIPE, Variant
from demo.experiments.table import table
from pretrain.settings.cli import parse_train
from pretrain.settings.config import Config

VARIANTS = [(name, v) for name, e in EXPERIMENTS.items() for v in e.variants]


def config_of(variant: Variant, repository: Path) -> Config:
    argv = ["--config", str(repository / RECIPE), "--name", variant.name]
    for setting, value in (BASE | variant.flags).items():
        argv += [f"--{setting}", value]
    return parse_train(argv)[0]


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=lambda v: getattr(v, "name", v))
def test_every_run_is_one_that_training_takes(name: str, variant: Variant, repository) -> None:
    assert config_of(variant, repository).objectives.chosen


def test_a_run_begins_with_one_before_it() -> None:
    for experiment in EXPERIMENTS.values():
        names = [v.name for v in experiment.variants]
        assert len(names) == len(set(names))
        for number, variant in enumerate(experiment.variants):
            assert variant.begins_with is None or variant.begins_with in names[:number]


def test_glm_and_vae_together_read_as_much_as_either_alone(repository: Path) -> None:
    rows = {}
    for variant in EXPERIMENTS["glm"].variants:
        config = config_of(variant, repository)
        rows[variant.name] = config.batch.global_rows * len(config.objectives.chosen) * config.steps
    assert len(set(rows.values())) == 1


def test_the_table_leaves_out_what_no_run_has() -> None:
    shown = table({"glm_alone": {"glm_nats": 4.5}, "both": {"glm_nats": 4.6, "active_units": 20}})
    assert shown.splitlines() == [
        "| run | AU | GLM |",
        "|---|---|---|",
        "| glm_alone |  | 4.500 |",
        "| both | 20 | 4.600 |",
    ]


def test_normalisers_say_what_a_language_model_was_measured_on() -> None:
    latent = {"num_texts": 500, "num_tokens": 9000.0}
    said = runs.normalisers({"vae": latent, "lm": {"causal_nats": 4.9}})
    assert said == (
        "Normalisers: 500 held-out sentences of 9000 tokens with their ends, importance-weighted "
        "with 32 draws; of language models and GLM's blanks all held-out sentences."
    )
    assert runs.normalisers({"vae": latent}).endswith("with 32 draws.")


def test_a_finished_run_is_skipped_and_a_failed_one_names_its_log(tmp_path, monkeypatch) -> None:
    run, variant = tmp_path / "both", Variant("both", {})
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints/latest").write_text("step-00000200\n")
    monkeypatch.setattr(subprocess, "run", None)
    runs.train(run, BASE, variant)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 2))
    with pytest.raises(ValueError, match=r"exit code 2.*both\.log"):
        runs.train(run, BASE | {"steps": "300"}, variant)

"""`make demo-vae`: sentences cut as promised, goals judged, a page that says what was found."""

import json
from pathlib import Path

import pytest

from demo import run, vae
from demo.run import recipe_steps
from demo.sentences import sentences_of, write_sentences
from demo.vae import GOALS, missed_goals
from demo.vae_report import page, summary

PROMISED = {
    "active_units", "mutual_information_nats", "mi_ceiling_nats", "shuffled_z_extra_nats",
    "nats_per_sentence_iw", "nats_per_token_iw", "interpolation", "analogy",
}  # fmt: skip
FOUND = {
    "active_units": 30,
    "mutual_information_nats": 4.5,
    "mi_ceiling_nats": 7.6,
    "shuffled_z_extra_nats": 25.0,
    "nats_per_sentence_iw": 110.0,
    "nats_per_token_iw": 4.4,
    "nats_per_sentence_elbo": 115.0,
    "reconstruction_nats": 100.0,
    "kl_nats": 15.0,
    "perplexity_per_token": 81.0,
    "num_texts": 2000,
    "num_tokens": 50000.0,
    "latent_size": 32,
}
STEPS = [{"speed/step_seconds": 60.0, "data/padding_ratio": 0.01}]


class Words:
    """A tokenizer whose pieces are words."""

    def encode(self, texts: list[str]) -> list[list[str]]:
        return [text.split() for text in texts]


def report(**other) -> dict:
    analogy = {"a": "He goes.", "b": "He went.", "c": "We go.", "written": "We went."}
    return summary(FOUND | other, ["We go.", "They go."], analogy, STEPS, "sotu")


def test_a_text_is_cut_where_sentences_end() -> None:
    text = "One two three.  Four\nfive? Six"
    assert list(sentences_of(text)) == ["One two three.", "Four", "five?", "Six"]


def test_sentences_of_other_lengths_are_left_out_and_counted(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("One. One two three. One two.")
    (texts / "b.txt").write_text("One two three four.")
    path = tmp_path / "sentences.txt"
    counts = write_sentences(texts, Words(), path, range(2, 4))  # pyright: ignore
    assert counts == (4, 2)
    assert path.read_text().splitlines() == ["One two three.", "One two."]


def test_the_report_has_the_promised_keys() -> None:
    made = report()
    assert made.keys() >= PROMISED
    json.dumps(made)


@pytest.mark.parametrize("name", GOALS)
def test_a_goal_is_missed_below_it_and_where_it_is_no_number(name: str) -> None:
    assert missed_goals(report()) == []
    assert missed_goals(report(**{name: GOALS[name]})) == []
    assert missed_goals(report(**{name: GOALS[name] - 0.5}))[0].startswith(name)
    assert len(missed_goals(report(**{name: float("nan")}))) == 1


def test_the_page_shows_goals_and_texts() -> None:
    shown = page(report(), "runs/demo_vae", GOALS, is_judged=True)
    assert "of at most 7.60  goal: 2 or more" in shown
    other = report(latent_size=8, num_texts=3200, num_tokens=1_320_032.0)
    first, *_ = page(other, "runs/demo_vae", GOALS, is_judged=True).splitlines()
    expected = "Held-out sentences: 3200, 1320032 tokens with their ends. z is 8 numbers."
    assert first == expected
    assert "written:  We went." in shown
    assert "shorter" not in shown
    assert "shorter" in page(report(), "runs/demo_vae", GOALS, is_judged=False)


@pytest.fixture
def house(tmp_path: Path, monkeypatch) -> Path:
    """A repository in which the demo is done."""
    (tmp_path / "launch/recipes").mkdir(parents=True)
    (tmp_path / vae.RECIPE).write_text("name: demo_vae\nsteps: 20\n")
    folder = tmp_path / "runs/demo_vae"
    for name in ("corpus", "shards", "checkpoints"):
        (folder / name).mkdir(parents=True)
    for name in ("tokenizer.model", "sentences.txt", "shards/manifest.json"):
        (folder / name).touch()
    (folder / "corpus.json").write_text('{"corpus": "sotu"}')
    (folder / "checkpoints/latest").write_text("step-00000020\n")
    for module in (vae, run):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_finished_run_is_shown_again_and_its_goals_are_judged_again(house: Path) -> None:
    (house / "report.json").write_text(json.dumps(report(active_units=3)))
    shown = vae.run_vae_demo("sotu")
    assert shown.missed == ["active_units 3, at least 16 wanted"]
    assert "z_b - z_a + z_c" in shown.page


def test_a_shorter_run_has_no_goals(house: Path) -> None:
    (house / "report.json").write_text(json.dumps(report(active_units=3)))
    assert vae.run_vae_demo("sotu", steps=10).missed == []


def test_the_recipe_is_the_one_that_is_judged(repository: Path) -> None:
    assert recipe_steps(vae.RECIPE) > 500

"""A run that reads several corpora: shares, held-out losses, resume, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.packing.blend import BlendedPosition, Mix
from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.preparing.train_tokenizer import TokenizerSettings, train_tokenizer
from pretrain.evaluate.held_out import mean_nats
from pretrain.planning.plan import GPUS, in_words, plan_run
from pretrain.settings.cli import parse_train
from pretrain.settings.data_config import CorpusConfig, DataConfig
from pretrain.training.corpora import Corpora, open_corpora

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "train_cases.py")
STEPS = 8
Curves = dict[str, list[dict[str, float]]]


@pytest.fixture(scope="module")
def other_shards(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Path:
    """60 documents that share no sentence with `shards`, a third of them for validation."""
    folder = tmp_path_factory.mktemp("other")
    text = folder / "text.txt"
    lines = [f"the city carries {'two stones and no one ' * (n % 7 + 1)}." for n in range(60)]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = str(shards.parent / "tokenizer.model")
    output = folder / "web"
    prepare(
        PrepareSettings(input=[str(text)], tokenizer=tokenizer, output=str(output), validation=0.3)
    )
    return output


def _sources(shards: Path, other: Path, weights: tuple[float, float] = (3, 1)) -> Any:
    return (
        CorpusConfig(shards=str(shards), weight=weights[0], name="books"),
        CorpusConfig(shards=str(other), weight=weights[1]),
    )


@pytest.fixture(scope="module")
def opened(shards: Path, other_shards: Path) -> Corpora:
    return open_corpora(_sources(shards, other_shards))


def _arguments(name: str, folder: Path, shards: Path, other: Path, *more: str) -> list[str]:
    corpora = [asdict(source) for source in _sources(shards, other)]
    flags = {
        "config": DEBUG,
        "name": name,
        "runs": str(folder),
        "data.shards": "null",
        "data.corpora": json.dumps(corpora),
        "data.num_workers": 1,
        "steps": STEPS,
        "evaluation.every_steps": 0,
        "checkpoints.every_steps": 0,
    }
    return [*(f"--{key}={value}" for key, value in flags.items()), *more]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixed")


@pytest.fixture(scope="module")
def curves(
    folder: Path, shards: Path, other_shards: Path, run_ranks: Callable[..., list[int]]
) -> Curves:
    """`whole` ran to its end, `broken` was resumed after step 3; two ranks."""
    runs = [("whole",), ("broken", "--stop_at_step=3"), ("broken", "--resume=auto")]
    cases = folder / "cases.json"
    arguments = [_arguments(n, folder, shards, other_shards, *more) for n, *more in runs]
    cases.write_text(json.dumps(arguments))
    run_ranks(2, [WORKER, str(cases)], folder / "log")
    return {
        name: [json.loads(r) for r in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "broken")
    }


def _steps(rows: list[dict[str, float]]) -> list[tuple[float, ...]]:
    tags = ("step", "loss/total_nats", "optimizer/gradient_norm", "data/web_tokens_ratio")
    return [tuple(row[tag] for tag in tags) for row in rows if "loss/total_nats" in row]


@pytest.mark.ranks
def test_a_resume_goes_on_in_every_corpus(curves: Curves) -> None:
    assert len(_steps(curves["whole"])) == STEPS
    assert _steps(curves["broken"]) == _steps(curves["whole"])


@pytest.mark.ranks
def test_shares_of_tokens_are_recorded_and_near_the_weights(curves: Curves) -> None:
    last = [row for row in curves["whole"] if "loss/total_nats" in row][-1]
    assert last["data/web_tokens_ratio"] == pytest.approx(0.25, abs=0.05)
    assert last["data/books_tokens_ratio"] == pytest.approx(1 - last["data/web_tokens_ratio"])


@pytest.mark.ranks
def test_every_corpus_has_its_held_out_loss_and_the_mean_is_that_of_the_mix(
    curves: Curves,
) -> None:
    last = curves["whole"][-1]
    books, web, both = (last[f"validation/{name}glm_total_nats"] for name in ("books_", "web_", ""))
    assert books != web
    assert both == pytest.approx(0.75 * books + 0.25 * web)


@pytest.mark.ranks
def test_the_log_says_what_is_mixed(curves: Curves, folder: Path) -> None:
    assert curves
    log = (folder / "log.0").read_text()
    assert "data: books, 75.00% of the rows: " in log and "data: web, 25.00% of the rows: " in log
    web = [row["data/web_tokens_ratio"] for row in curves["whole"] if "loss/total_nats" in row][-1]
    assert f"step 8 | text so far | books {1 - web:.2%}, web {web:.2%} of the tokens" in log


def test_one_corpus_is_read_as_it_always_was(shards: Path) -> None:
    one = open_corpora(DataConfig(shards=str(shards)).sources)
    assert one.train is one.corpora[0].train and not one.is_mixed
    assert one.fingerprint == one.shards.splits["train"].fingerprint


def test_several_are_a_mix_and_their_fingerprint_names_weights_and_order(
    opened: Corpora, shards: Path, other_shards: Path
) -> None:
    assert isinstance(opened.train, Mix) and opened.train.weights == (3, 1)
    one, other = (corpus.train.fingerprint for corpus in opened.corpora)
    assert opened.fingerprint == f"3 x {one} + 1 x {other}"
    same = open_corpora(_sources(shards, other_shards, (0.75, 0.25)))
    assert same.fingerprint == opened.fingerprint
    assert open_corpora(_sources(other_shards, shards)).fingerprint != opened.fingerprint


def test_shares_are_of_the_tokens_so_far(opened: Corpora) -> None:
    place = BlendedPosition.first(2)
    assert opened.shares(place) == {}
    place = BlendedPosition(rows=(3, 1), source_tokens=(70, 30), places=place.places)
    assert opened.shares(place) == {"books": 0.7, "web": 0.3}


def test_corpora_of_two_tokenizers_are_refused(shards: Path, tmp_path: Path) -> None:
    text, model = tmp_path / "text.txt", tmp_path / "other.model"
    text.write_text("the river sees two stones.\n" * 50, encoding="utf-8")
    train_tokenizer(TokenizerSettings(input=[str(text)], output=str(model), vocab_size=283))
    settings = {"input": [str(text)], "tokenizer": str(model)}
    prepare(PrepareSettings(**settings, output=str(tmp_path / "web")))
    with pytest.raises(ValueError, match=r"web was prepared with another tokenizer than .*shards"):
        open_corpora(_sources(shards, tmp_path / "web"))
    argv = _arguments("planned", Path("runs"), shards, tmp_path / "web")
    with pytest.raises(ValueError, match=r"web was prepared with another tokenizer than .*shards"):
        plan_run(parse_train(argv)[0], num_gpus=1, gpu=GPUS["h200"])


def test_corpora_without_a_validation_split_are_named(
    opened: Corpora, shards: Path, other_shards: Path, tmp_path: Path
) -> None:
    assert opened.held_out_gap() is None
    text = [str(other_shards.parent / "text.txt")]
    tokenizer = str(shards.parent / "tokenizer.model")
    output = str(tmp_path / "bare")
    prepare(PrepareSettings(input=text, tokenizer=tokenizer, output=output))
    bare = CorpusConfig(shards=output, weight=1)
    both = open_corpora((CorpusConfig(shards=str(other_shards), weight=1), bare))
    said = "no validation split in bare: held-out losses are of web alone"
    assert both.held_out_gap() == said
    assert open_corpora((bare,)).held_out_gap() is None


def test_the_mean_is_over_those_that_have_the_term() -> None:
    nats = {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 5.0}}
    assert mean_nats(nats, {"a": 3, "b": 1}) == {"x": 2.0, "y": 2.0}


def test_a_plan_tells_the_passes_over_each_corpus(shards: Path, other_shards: Path) -> None:
    argv = _arguments("planned", Path("runs"), shards, other_shards)
    plan = plan_run(parse_train(argv)[0], num_gpus=1, gpu=GPUS["h200"])
    # 64 rows: 48 of books and 16 of web, some 120 tokens each.
    assert set(plan.epochs) == {"books", "web"}
    tokens = {
        c.name: c.train.num_tokens for c in open_corpora(_sources(shards, other_shards)).corpora
    }
    ratio = plan.epochs["books"] * tokens["books"] / (plan.epochs["web"] * tokens["web"])
    assert ratio == pytest.approx(3, rel=0.15)


def test_a_plan_names_the_corpus_that_is_missing(shards: Path, tmp_path: Path) -> None:
    argv = _arguments("planned", Path("runs"), shards, tmp_path / "absent")
    plan = plan_run(parse_train(argv)[0], num_gpus=1, gpu=GPUS["h200"])
    assert (plan.vocab_size, plan.vocabulary_origin) == (384, "of the shards")
    assert f"no shards in {tmp_path / 'absent'}" in plan.rows_origin
    assert "passes over books" in (said := in_words(plan)) and "over the corpus" not in said


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (DataConfig, "data.corpora several: neither is given"),
        (lambda: CorpusConfig(shards="a", weight=0), "weight of a must be finite and above 0"),
        (lambda: CorpusConfig(shards="a b", weight=1), "'a b' is no name for a curve"),
        (
            lambda: DataConfig(shards="x", corpora=(CorpusConfig(shards="a", weight=1),)),
            "both are given. To read the corpora say shards: null",
        ),
        (
            lambda: DataConfig(
                corpora=tuple(CorpusConfig(shards=f"{n}/a", weight=1) for n in range(2))
            ),
            "names must differ, got a, a",
        ),
        (
            lambda: DataConfig(
                corpora=(
                    CorpusConfig(shards="a", weight=1),
                    CorpusConfig(shards="./a/", weight=2, name="b"),
                )
            ),
            "data.corpora: a is named twice. Name each folder once",
        ),
    ],
)
def test_a_mix_that_is_none_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()

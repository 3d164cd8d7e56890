"""pretrain/settings/cli.py: recipes in, one line out for a mistake."""

import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.settings.cli import Start, config_from_yaml, config_to_yaml, parse_train
from pretrain.settings.config import BatchConfig

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "launch" / "recipes" / "debug.yaml")


def _refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        parse_train(argv)
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_flag_wins_over_the_recipe() -> None:
    config, start = parse_train(["--config", DEBUG, "--optimizer.lr", "1e-4", "--resume", "auto"])
    assert (config.optimizer.lr, config.model.num_layers) == (1e-4, 2)
    assert start == Start(resume="auto")


def test_weights_to_begin_with_are_named_by_a_flag() -> None:
    _, start = parse_train(["--config", DEBUG, "--init-from", "runs/other"])
    assert start == Start(init_from="runs/other")


def test_a_recipe_inherits_from_the_one_it_names(tmp_path: Path) -> None:
    folder = tmp_path / "my recipes"
    folder.mkdir()
    (folder / "base.yaml").write_text(Path(DEBUG).read_text())
    (folder / "wide.yaml").write_text("config: base.yaml\nmodel: {hidden_size: 64}\n")
    config, _ = parse_train(["--config", str(folder / "wide.yaml")])
    assert (config.model.hidden_size, config.model.num_layers) == (64, 2)


def test_launchers_local_rank_is_dropped() -> None:
    config, _ = parse_train(["--local_rank=1", "--config", DEBUG])
    assert config.name == "debug"


@pytest.mark.parametrize("recipe", sorted((ROOT / "launch" / "recipes").glob("*.yaml")))
def test_every_shipped_recipe_is_read(recipe: Path) -> None:
    config, _ = parse_train(["--config", str(recipe)])
    assert config.name == recipe.stem


def test_a_config_survives_its_own_yaml(tmp_path: Path) -> None:
    config, _ = parse_train(["--config", DEBUG, "--evaluation.texts", "['a [MASK] b']"])
    path = tmp_path / "config.yaml"
    path.write_text(config_to_yaml(config), encoding="utf-8")
    assert config_from_yaml(path) == config


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--optimizer.lrr", "1"], "unknown setting 'optimizer.lrr'. Did you mean 'optimizer.lr'?"),
        (["--optimizer.lr=-1"], "optimizer.lr must be above 0, got -1.0."),
        (["--steps", "many"], "steps must be int, got many."),
        (["--precision", "fp8"], "precision must be one of 'auto', 'fp32', 'bf16', got fp8."),
        (["--name", "a/b"], "name must be a plain folder name"),
        (["--stop_at_step", "21"], "stop_at_step must lie in 1..steps = 20, got 21."),
        (["--model.num_heads", "5"], "model.num_heads must divide model.hidden_size 32, got 5."),
    ],
)
def test_a_mistake_is_one_line(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in _refused(["--config", DEBUG, *flags], capsys)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("optimizer: {lr: fast}", "optimizer.lr must be float, got fast."),
        ("optimizer: {lrr: 1}", "unknown setting 'lrr'. Did you mean 'optimizer.lr'?"),
        ("a: [b", "not a YAML recipe"),
    ],
)
def test_a_mistake_in_a_recipe_names_its_file(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "broken.yaml"
    recipe.write_text(text)
    line = _refused(["--config", str(recipe)], capsys)
    assert str(recipe) in line
    assert said in line


def test_a_missing_recipe_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.yaml: no such file" in _refused(["--config", "nowhere.yaml"], capsys)


def test_accumulation_follows_from_rows_and_ranks() -> None:
    assert BatchConfig(global_rows=48, micro_rows=4).accumulation(world_size=3) == 4


@pytest.mark.parametrize(("rows", "nearest"), [(10, "8 or 16"), (3, "8")])
def test_a_batch_that_ranks_do_not_divide_names_the_nearest(rows: int, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"The nearest sizes are {nearest}"):
        BatchConfig(global_rows=rows, micro_rows=4).accumulation(world_size=2)


def test_help_loads_neither_torch_nor_deepspeed() -> None:
    code = (
        "import sys, runpy\n"
        "sys.argv = ['pretrain', 'train', '--help']\n"
        "try: runpy.run_module('pretrain', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as left: assert left.code == 0, left.code\n"
        "heavy = {'torch', 'deepspeed', 'transformers', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Peak learning rate" in done.stdout


def test_missing_shards_exit_2_with_the_command_that_makes_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pretrain", "train", "--config", DEBUG, "--data.shards", "none"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "python -m data_pipeline prepare" in done.stderr
    assert "--output none" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("[{shards: a, weigth: 0.7}]", "entry 1: unknown setting 'weigth'. Did you mean 'weight'?"),
        ("[{shards: a, weight: 1}, {shards: b}]", "entry 2: weight is missing"),
        ("[{shards: a, weight: much}]", "entry 1: weight must be a number, got much."),
        ("[a, b]", "entry 1: must say shards and weight, as {shards: books, weight: 0.7}, got a."),
        ("{shards: a}", "data.corpora must be a list of entries as {shards: books, weight: 0.7}"),
    ],
)
def test_a_mistake_in_a_corpus_names_its_entry(
    entries: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--config", DEBUG, "--data.shards=null", "--data.corpora", entries]
    assert said in _refused(flags, capsys)
    recipe = tmp_path / "mix.yaml"
    recipe.write_text(f"config: {DEBUG}\ndata: {{shards: null, corpora: {entries}}}\n")
    if entries.startswith("["):  # else the mapping is one of dotted keys
        line = _refused(["--config", str(recipe)], capsys)
        assert line.startswith(f"pretrain: {recipe}: data.corpora, ") and said in line


def test_a_start_without_a_recipe_is_told_to_name_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "name is not given. Name a recipe: --config RECIPE" in _refused([], capsys)

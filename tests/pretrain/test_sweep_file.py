"""sweep_file.py and sweep_task.py: which runs a sweep is, and what is wrong with one."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.settings.cli import parse_train
from pretrain.settings.sweep_file import read_sweep
from pretrain.settings.sweep_task import task_of_command_line
from pretrain.sweeps.sweep import checked, table

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "launch" / "recipes" / "debug.yaml")


@pytest.fixture(autouse=True)
def outside_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def _file(folder: Path, text: str) -> str:
    path = folder / "tried.yaml"
    path.write_text(f"recipe: {RECIPE}\n{text}\n")
    return str(path)


GRID = "grid: {optimizer.lr: [1e-3, 2e-3], seed: [1, 2]}"


def test_a_grid_is_every_combination_and_the_last_key_changes_fastest(tmp_path: Path) -> None:
    sweep = read_sweep(_file(tmp_path, GRID))
    assert sweep.name == "tried"
    assert [task.name for task in sweep.tasks] == [
        "0-lr=1e-3,seed=1",
        "1-lr=1e-3,seed=2",
        "2-lr=2e-3,seed=1",
        "3-lr=2e-3,seed=2",
    ]


def test_nested_keys_are_dotted_ones(tmp_path: Path) -> None:
    nested = read_sweep(_file(tmp_path, "grid: {optimizer: {lr: [1e-3, 2e-3]}, seed: [1, 2]}"))
    assert [t.values for t in nested.tasks] == [
        t.values for t in read_sweep(_file(tmp_path, GRID)).tasks
    ]


def test_a_label_is_the_shortest_end_that_is_not_ambiguous(tmp_path: Path) -> None:
    text = "tasks: [{model.dropout_prob: 0.1}, {objectives.glm.blanks.document_prob: 0.2}, {}]"
    ambiguous = "grid: {objectives.glm.weight: [1], objectives.optimus.weight: [0.5]}"
    labels = [task.label for task in read_sweep(_file(tmp_path, text)).tasks]
    assert labels == ["dropout_prob=0.1", "document_prob=0.2", "as-recipe"]
    (task,) = read_sweep(_file(tmp_path, ambiguous)).tasks
    assert task.label == "glm.weight=1,optimus.weight=0.5"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=200), min_size=1, max_size=3, unique=True))
def test_a_label_is_a_folders_name_whatever_the_values(values: list[str]) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        file = _file(Path(folder), yaml.safe_dump({"grid": {"data.shards": values}}))
        names = [task.name for task in read_sweep(file).tasks]
    assert len(set(names)) == len(values)
    assert all("/" not in n and not n.startswith(".") and len(n.encode()) < 255 for n in names)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gird: {seed: [1]}", "unknown key 'gird'. A sweep file has name, recipe, settings, and"),
        ("", "give either grid or tasks, got neither"),
        ("grid: {seed: [1]}\ntasks: [{seed: 2}]", "give either grid or tasks, got both"),
        ("grid: {}", "the grid is empty"),
        ("grid: {seed: []}", "grid.seed must be a list of at least one value"),
        ("grid: {seed: 1}", "grid.seed must be a list of at least one value, got 1"),
        ("tasks: []", "tasks must be a list of at least one task"),
        ("tasks: [3]", "task 0 must be settings of a recipe (key: value), got 3"),
        ("tasks: [{seed: 1}, {seed: 2}, {seed: 1}]", 'tasks 0 and 2 are the same: {"seed": 1}'),
        ("grid: {seed: [1, 2, 2]}", "tasks 1 and 2 are the same"),
        ("grid: {seed: [1]}\nname: a/b", "name must be a plain folder name, got 'a/b'"),
        ("grid: {name: [a, b]}", "name follows from the sweep"),
        ("grid:\n  seed: [1]\n  seed: [2]", "'seed' stands twice in the mapping of line 3"),
        ("grid: [", "not a sweep file in YAML"),
    ],
)
def test_a_mistake_names_the_file(text: str, said: str, tmp_path: Path) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(ValueError) as mistake:
        read_sweep(file)
    assert str(mistake.value).startswith(f"{file}: ") and said in str(mistake.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grid: {optimizer.lrr: [1]}", "task 0: unknown setting 'lrr'. Did you mean 'optimizer.lr"),
        ("grid: {optimizer.lr: [1, fast]}", "task 1: optimizer.lr must be float, got fast."),
        ("grid: {model.num_heads: [2, 5]}", "task 1: model.num_heads must divide"),
    ],
)  # fmt: skip
def test_a_key_that_no_recipe_has_names_file_and_task(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(SystemExit) as left:
        checked(read_sweep(file), None)
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pretrain: {file}, ") and said in line


def test_tasks_that_only_look_different_are_the_same(tmp_path: Path) -> None:
    sweep = read_sweep(_file(tmp_path, "grid: {optimizer.lr: [0.001, 1e-3]}"))
    with pytest.raises(ValueError, match="tasks 0 and 1 train the same"):
        checked(sweep, None)


def test_a_task_of_an_array_keeps_its_folder_after_a_requeue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path, f"settings: {{steps: 7}}\n{GRID}")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "1234")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    config, start = parse_train(["--sweep", file, "--batch.micro_rows=2"])
    assert (config.runs, config.name) == ("runs/tried", "1234_2-lr=2e-3,seed=1")
    assert (config.optimizer.lr, config.seed, config.steps) == (2e-3, 1, 7)
    assert (config.batch.micro_rows, config.batch.global_rows) == (2, 8)
    assert start.task and start.task.number == 2
    flags = ["--task=3", "--array=77", "--runs", str(tmp_path)]
    config, _ = parse_train([f"--sweep={file}", *flags])
    assert (config.runs, config.name) == (str(tmp_path / "tried"), "77_3-lr=2e-3,seed=2")
    config, _ = parse_train([f"--sweep={file}", "--task=3", "--array=none"])
    assert config.name == "3-lr=2e-3,seed=2"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "which task? Give --task N, or submit an array: --array=0-3"),
        (["--task", "4"], "has tasks 0 to 3, there is no task 4"),
        (["--task", "1", "--seed", "3"], "--seed follows from task 1"),
        (["--task", "1", "--config=x.yaml"], "--config follows from task 1"),
        (["--task"], "--task needs a value"),
    ],
)
def test_a_command_line_that_means_no_task(flags: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        task_of_command_line(["--sweep", _file(tmp_path, GRID), *flags])


def test_a_task_without_its_sweep_is_refused() -> None:
    with pytest.raises(ValueError, match="--task belongs to --sweep FILE"):
        task_of_command_line(["--task", "3"])


def test_a_task_that_was_begun_with_other_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tried" / "1-lr=1e-3,seed=9").mkdir(parents=True)
    file = _file(tmp_path, GRID)
    flags = ["--sweep", file, "--runs", str(tmp_path), "--task"]
    with pytest.raises(ValueError, match="seed=9 was begun as the same task"):
        parse_train([*flags, "1"])
    parse_train([*flags, "2"])


@pytest.mark.parametrize("file", sorted((ROOT / "launch" / "sweeps").glob("*.yaml")))
def test_every_shipped_sweep_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    sweep = read_sweep(str(file.relative_to(ROOT)))
    said = table(sweep, checked(sweep, None), None)
    assert f"--array=0-{len(sweep.tasks) - 1} launch/slurm/sweep.sbatch {sweep.file}" in said

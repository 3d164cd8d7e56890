"""sbatch templates: nothing of a site in them, refused before submission while not filled in."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TEMPLATES = sorted((Path(__file__).resolve().parents[2] / "launch/slurm").glob("*.sbatch"))
WITH_RANKS = [t for t in TEMPLATES if t.stem in ("pretrain", "chain", "sweep")]


@pytest.fixture
def sbatch(tmp_path: Path) -> Path:
    """A folder with a pretend sbatch, which writes down its arguments."""
    program = tmp_path / "bin/sbatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > "{tmp_path}/submitted"\n')
    program.chmod(0o755)
    return program.parent


def submit(sbatch: Path, *arguments: str, **environment: str) -> tuple[int, str, list[str]]:
    """Exit code, what was said, and the arguments of sbatch."""
    done = subprocess.run(
        [str(TEMPLATES[0].with_name("submit.sh")), *arguments],
        env={"PATH": f"{sbatch}:{os.environ['PATH']}", "PYTHON": sys.executable, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    submitted = sbatch.parent / "submitted"
    return (
        done.returncode,
        done.stderr,
        submitted.read_text().split("\n") if submitted.exists() else [],
    )


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.stem)
def test_a_template_is_refused_as_it_is_shipped(sbatch: Path, template: Path) -> None:
    code, said, submitted = submit(sbatch, str(template), "--config", "r.yaml")
    assert (code, submitted) == (2, [])
    required = re.findall(
        r"^##SBATCH --([\w-]+)=\S+ +# required: (.*)$", template.read_text(), re.M
    )
    assert len(required) >= 2
    for name, why in required:
        assert re.search(rf"line \d+ +--{name} +{re.escape(why)}", said)
    assert said.count("line ") == len(required)


def test_options_of_sbatch_stand_for_lines(sbatch: Path) -> None:
    options = ["-p", "gpu", "-N2", "--ntasks=16"]
    template = str(TEMPLATES[0].with_name("pretrain.sbatch"))
    code, said, submitted = submit(
        sbatch, *options, template, "--seed", "two words", SBATCH_TIMELIMIT="10"
    )
    assert (code, said) == (0, "")
    assert submitted == [*options, template, "--seed", "two words", ""]


def test_no_option_stands_for_another_line(sbatch: Path) -> None:
    """--ntasks-per-node has no short form, and must not be taken for given with any long one."""
    options = ["--partition=gpu", "--nodes=2", "--time=10"]
    code, said, submitted = submit(sbatch, *options, str(TEMPLATES[0].with_name("pretrain.sbatch")))
    assert (code, submitted) == (2, [])
    assert re.findall(r"line \d+ +(--\S+)", said) == ["--ntasks-per-node"]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.stem)
def test_a_template_that_is_filled_in_is_submitted(sbatch: Path, template: Path, tmp_path: Path):
    filled = tmp_path / "mine.sbatch"
    text = template.read_text().replace("##SBATCH", "#SBATCH")
    filled.write_text(text)
    code, said, _ = submit(sbatch, str(filled))
    assert (code, "--partition" in said, "--account" in said) == (2, True, True)  # still <name>
    filled.write_text(re.sub(r"=<\w+>", "=mine", text))
    assert submit(sbatch, str(filled))[0] == 0


def test_a_recipe_with_a_mistake_is_not_submitted(sbatch: Path, repository: Path) -> None:
    options = ["-pgpu", "-N2", "-n2", "--time=10"]
    template = str(TEMPLATES[0].with_name("pretrain.sbatch"))
    arguments = ["--config", str(repository / "launch/recipes/debug.yaml"), "--seed"]
    code, said, submitted = submit(sbatch, *options, template, *arguments, "x")
    assert (code, submitted) == (2, [])
    assert said == "pretrain: seed must be int, got x.\n"
    code, said, submitted = submit(sbatch, *options, template, *arguments, "%a")
    assert (code, said, submitted[-2]) == (0, "", "%a")


@pytest.mark.parametrize("form", ["-D{}", "--chdir={}", "-D {}", "-H --chd {}", "a line"])
def test_a_recipe_counts_from_the_folder_of_the_job(
    sbatch: Path, repository: Path, tmp_path: Path, form: str
) -> None:
    folder, template = tmp_path / "job", TEMPLATES[0].with_name("pretrain.sbatch")
    folder.mkdir()
    (folder / "mine.yaml").write_text("config: NONE\n")
    options = ["-pgpu", "-N2", "-n2", "--time=10"]
    if form == "a line":
        head, rest = template.read_text().split("\n", 1)
        template = tmp_path / "mine.sbatch"
        template.write_text(f"{head}\n#SBATCH -D {folder}  # where the runs lie\n{rest}")
    else:
        options += form.format(folder).split()
    code, said, submitted = submit(sbatch, *options, str(template), "--config", "mine.yaml")
    assert (code, submitted) == (2, [])
    assert "no such file" not in said  # it was read: what is wrong stands in it
    (folder / "mine.yaml").write_text("name: m\nsteps: 3\ndata: {shards: s}\n")
    code, said, submitted = submit(sbatch, *options, str(template), "--config", "mine.yaml")
    assert (code, said, submitted[: len(options)]) == (0, "", options)


def test_a_line_that_is_added_stands_for_a_required_one(sbatch: Path, tmp_path: Path) -> None:
    text = TEMPLATES[0].with_name("pretrain.sbatch").read_text()
    lines = "#SBATCH -p gpu -N2\n#SBATCH --ntasks=16\n#SBATCH --time 10\n"
    mine = tmp_path / "mine.sbatch"
    mine.write_text(text.replace("\n", f"\n{lines}", 1))
    assert submit(sbatch, str(mine))[:2] == (0, "")
    mine.write_text(text + lines)  # behind the first command sbatch reads none
    assert submit(sbatch, str(mine))[0] == 2


def test_a_sweep_with_a_mistake_is_not_submitted(sbatch: Path, repository: Path, tmp_path: Path):
    options = ["-pgpu", "-N1", "-n2", "--time=10", "--array=0-1"]
    template = str(TEMPLATES[0].with_name("sweep.sbatch"))
    sweep, recipe = tmp_path / "s.yaml", repository / "launch/recipes/debug.yaml"
    sweep.write_text(f"recipe: {recipe}\ngrid:\n  optimizer.lr: [0.001, x]\n")
    code, said, submitted = submit(sbatch, *options, template, str(sweep))
    assert (code, submitted) == (2, [])
    assert "task 1: optimizer.lr must be float, got x." in said
    sweep.write_text(f"recipe: {recipe}\ngrid:\n  optimizer.lr: [0.001, 0.002]\n")
    assert submit(sbatch, *options, template, str(sweep))[:2] == (0, "")


def test_without_a_template_submit_says_how_it_is_called(sbatch: Path) -> None:
    code, said, submitted = submit(sbatch, "--partition=gpu")
    assert (code, submitted) == (2, [])
    assert said.startswith("usage: ")


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.stem)
def test_no_line_of_a_site_is_on(template: Path) -> None:
    text = template.read_text()
    on = set(re.findall(r"^#SBATCH .*?--([\w-]+)", text, re.M))
    assert on <= {"job-name", "output", "open-mode", "signal", "array"}
    for name in ("partition", "account", "constraint", "time"):
        assert f"##SBATCH --{name}=" in text
    assert "module" in text and "export" in text
    subprocess.run(["bash", "-n", str(template)], check=True)


@pytest.mark.parametrize("template", WITH_RANKS, ids=lambda t: t.stem)
def test_who_trains_is_signalled_in_time_and_requeued(template: Path) -> None:
    text = template.read_text()
    assert "--open-mode=append --requeue\n" in text
    assert re.search(r"^#SBATCH --signal=B:USR1@120 ", text, re.M)


def test_outside_of_the_repository_a_job_says_so(tmp_path: Path) -> None:
    for template in TEMPLATES:
        done = subprocess.run(
            ["bash", str(template)],
            env={"PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": str(tmp_path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "is not the repository" in done.stderr

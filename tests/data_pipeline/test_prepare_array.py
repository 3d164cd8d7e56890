"""Tasks of a job array: slices, prepare-slice and merge give the bytes of one prepare."""

import json
import shutil
from pathlib import Path

import pytest

from data_pipeline.__main__ import main
from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.preparing.slices import in_ranges


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def finished(output: Path) -> dict[str, int]:
    """The finished slices, and which file (inode) each of them is."""
    records = OutputFolder(output).slices.glob("*.json")
    return {p.stem: p.with_suffix(".part").stat().st_ino for p in records}


@pytest.fixture
def run(tmp_path, model_file, mixed_folder, capsys):
    """Runs a command on mixed_folder and the output "x"; gives exit code, stdout and stderr."""

    def run_command(command, *options, output="x"):
        given = ["--input", mixed_folder, "--tokenizer", model_file, "--output", tmp_path / output]
        given += ["--slice-bytes", 6000, "--validation", 0.2, "--workers", 1]
        try:
            code = main([command, *(str(a) for a in (*given, *options))])
        except SystemExit as left:
            code = left.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_command


@pytest.mark.parametrize("num_tasks", [1, 5])
def test_tasks_in_any_order_and_a_merge_give_the_bytes_of_prepare(run, tmp_path, num_tasks):
    assert run("prepare", output="whole")[0] == 0
    for task in reversed(range(num_tasks)):
        assert run("prepare-slice", "--task", task, "--of", num_tasks)[0] == 0
    code, printed, _ = run("merge")
    assert code == 0 and "documents" in printed
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["whole", "x"]


def test_a_merge_names_the_slices_that_are_missing(run, tmp_path):
    for task in (0, 1, 3):
        run("prepare-slice", "--task", task, "--of", 6)
    code, printed, said = run("merge")
    assert (code, printed) == (2, "")
    assert said == (
        "data_pipeline: 6 of 12 slices are not finished: number 2,4-5,8,10-11. "
        "Prepare them first.\n"
    )
    assert len(finished(tmp_path / "x")) == 6


def test_a_task_that_runs_again_does_what_is_missing(run, tmp_path):
    assert "4 of 12 slices are finished, 0 of them before" in run_of(run, 0)
    kept = finished(tmp_path / "x")
    lost = sorted(kept)[0]
    (OutputFolder(tmp_path / "x").slices / f"{lost}.json").unlink()
    assert "4 of 12 slices are finished, 3 of them before" in run_of(run, 0)
    again = finished(tmp_path / "x")
    assert {n for n in kept if kept[n] != again[n]} <= {lost} and len(again) == 4
    # Other tasks find what is finished, however many they are.
    assert "12 of 12 slices are finished, 4 of them before" in run_of(run, 0, num_tasks=1)


def run_of(run, task, num_tasks=3) -> str:
    return run("prepare-slice", "--task", task, "--of", num_tasks)[1]


def test_slices_tells_which_tasks_have_something_left(run, tmp_path):
    assert run("slices", "--tasks")[1] == "0-11\n"
    assert run("slices", "--of", 1000, "--tasks")[1] == "0-11\n"
    assert not (tmp_path / ".x.partial").exists()
    for task in (0, 2):
        run_of(run, task, num_tasks=5)
    assert run("slices", "--of", 5, "--tasks")[1] == "1,3-4\n"
    code, printed, _ = run("slices", "--of", 5)
    assert code == 0 and "12 slices" in printed and "5 finished, 7 missing" in printed
    told = json.loads(run("slices", "--of", 5, "--json")[1])
    assert (told["slices"], told["missing"], told["tasks_left"]) == (12, 7, "1,3-4")
    run_of(run, 0, num_tasks=1)
    assert run("slices", "--tasks")[1] == "\n"
    assert "all finished. Merge them." in run("slices")[1]


def test_behind_the_merge_there_is_nothing_to_do(run, tmp_path):
    run_of(run, 0, num_tasks=1)
    assert run("merge")[0] == 0
    made = contents(tmp_path / "x")
    for command in (["prepare-slice", "--task", 2, "--of", 3], ["merge"], ["prepare"]):
        code, _, said = run(*command)
        assert code == 0 and "Nothing to do." in said
    assert json.loads(run("slices", "--json")[1])["merged"] is True
    assert contents(tmp_path / "x") == made
    code, _, said = run("prepare-slice", "--task", 0, "--of", 3, "--dedup", "exact")
    assert code == 2 and "made by another request (changed: dedup)" in said


def test_prepare_goes_on_behind_tasks(run, tmp_path, caplog):
    run_of(run, 1)
    with caplog.at_level("INFO"):
        assert run("prepare")[0] == 0
    assert "4 of 12 slices were finished before." in caplog.text


def test_a_task_beyond_the_slices_has_nothing_to_do(run):
    assert run_of(run, 39, num_tasks=40) == ("task 39 of 40: nothing to do, there are 12 slices.\n")


@pytest.mark.parametrize("task", [-1, 3, 4])
def test_a_task_that_is_none_of_them_is_refused(run, task):
    code, _, said = run("prepare-slice", "--task", task, "--of", 3)
    assert code == 2
    assert said == (
        f"data_pipeline: --task must lie in 0..2 (--of 3), got {task}. "
        "Number the tasks of an array from 0.\n"
    )


def test_a_wrong_file_ends_its_task_alone_and_stays_named(run, tmp_path, mixed_folder):
    folder = tmp_path / "in"
    shutil.copytree(mixed_folder, folder)
    (folder / "c.txt").write_bytes(b"the river \xff\n")
    failed = {}
    for task in range(5):
        code, _, said = run("prepare-slice", "--task", task, "--of", 5, "--input", folder)
        if code:
            failed[task] = said
    assert len(failed) == 1
    (said,) = failed.values()
    assert "c.txt, line 1, byte 10: not valid utf-8" in said and said.count("\n") == 1
    assert "slices are finished and stay in" in said


def test_numbers_are_told_as_ranges():
    assert in_ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert in_ranges([]) == ""
    assert in_ranges([3, 5, 7, 9], most=2) == "3,5,..."

"""Text to shards by an array of tasks: the bytes of one process, whatever the number of slices."""

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm
OPTIONS = ["--partition=usual", "--time=10", "--ntasks=1", "--cpus-per-task=1"]


def submit(queue, clone: Path, folder: Path, *arguments: str, **environment: str) -> list[str]:
    """What prepare.sh says, a line a job; the logs of the jobs are in `folder`."""
    script = str(clone / "launch/slurm/prepare.sh")
    return queue.run(script, *OPTIONS, "--", *arguments, cwd=folder, **environment).splitlines()


def job_of(line: str) -> str:
    return re.findall(r"^job (\d+): ", line)[0]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_an_array_prepares_what_is_missing_as_one_process_would(
    queue, clone: Path, small_shards: Path, tmp_path: Path
) -> None:
    text, model = (str(small_shards.with_name(name)) for name in ("text.txt", "a.model"))
    request = ["--input", text, "--tokenizer", model, "--validation", "0.1"]
    request += ["--output", "shards", "--slice-bytes", "12000"]
    python = str(clone / ".venv/bin/python")
    queue.run(
        python, "-m", "data_pipeline", "prepare-slice", *request, "--task", "1", "--of", "4",
        cwd=tmp_path, PYTHONPATH=str(clone),
    )  # fmt: skip
    array, merge = submit(queue, clone, tmp_path, *request)
    assert array.endswith("tasks 0,2-3 of 4, for 3 slices that are missing")
    assert queue.wait(job_of(merge)) == ("COMPLETED", "0"), queue.logs(tmp_path)
    assert files_of(tmp_path / "shards") == files_of(small_shards)
    done = queue.tried(
        str(clone / "launch/slurm/prepare.sh"), *OPTIONS, "--", *request, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "Nothing to do" in done.stderr


@pytest.mark.slow
def test_a_failed_slice_keeps_the_merge_from_running(
    queue, clone: Path, small_shards: Path, tmp_path: Path
) -> None:
    """About 30 s."""
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"text": "ba ko ri."}) + "\n")
    (tmp_path / "1.jsonl").write_text('{"text": "ba ko ri."}\nno row\n')
    model = str(small_shards.with_name("a.model"))
    request = ["--input", ".", "--tokenizer", model, "--output", "../out/shards"]
    request += ["--slice-bytes", "40"]
    array, merge = submit(queue, clone, tmp_path, *request)
    assert queue.wait(job_of(merge))[0] == "CANCELLED"
    states = [queue.wait(f"{job_of(array)}_{task}") for task in range(3)]
    assert states == [("COMPLETED", "0"), ("FAILED", "2"), ("COMPLETED", "0")]
    (tmp_path / "1.jsonl").write_text('{"text": "ba ko ri."}\n')
    array, merge = submit(queue, clone, tmp_path, *request)
    assert array.endswith("tasks 1 of 3, for 1 slices that are missing")
    assert queue.wait(job_of(merge)) == ("COMPLETED", "0"), queue.logs(tmp_path)
    assert (tmp_path.parent / "out/shards/manifest.json").is_file()


@pytest.mark.slow
def test_more_slices_than_an_array_has_tasks_are_dealt_out(
    queue, clone: Path, small_shards: Path, tmp_path: Path
) -> None:
    """About 90 s: 1,100 slices among 21 tasks, which is what this SLURM takes (MaxArraySize)."""
    lines = [f"ba ko {number} ri tu sel mor. An di.\n" for number in range(1100)]
    (tmp_path / "in").mkdir()
    for number, line in enumerate(lines):
        (tmp_path / f"in/{number:04d}.txt").write_text(line)
    model = str(small_shards.with_name("a.model"))
    request = ["--input", "in", "--tokenizer", model, "--output", "shards", "--slice-bytes", "40"]
    array, merge = submit(queue, clone, tmp_path, *request, AT_ONCE="4")
    assert array.endswith("tasks 0-20 of 21, for 1100 slices that are missing")
    assert queue.wait(job_of(merge)) == ("COMPLETED", "0"), queue.logs(tmp_path)
    python = str(clone / ".venv/bin/python")
    queue.run(
        python, "-m", "data_pipeline", "prepare", *request, "--output", "alone",
        cwd=tmp_path, PYTHONPATH=str(clone),
    )  # fmt: skip
    assert files_of(tmp_path / "shards") == files_of(tmp_path / "alone")

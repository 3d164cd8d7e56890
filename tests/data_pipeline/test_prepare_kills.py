"""Killed at any moment and started again, prepare keeps what is finished and ends the same."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from data_pipeline.__main__ import main
from data_pipeline.preparing.output_folder import OutputFolder

ALL = ["--workers", "1", "--dedup", "exact", "--mix", "2", "--shard-tokens", "900"]
# What a process does before its kill: the function, and at which call of it.
MOMENTS = {
    "a part is being written": ("data_pipeline.preparing.parts.PartWriter.add", 4),
    "a part has no record yet": ("data_pipeline.preparing.parts._checksum", 3),
    "the merge begins": ("data_pipeline.preparing.sharding.SplitWriters.__init__", 1),
    "repeats are sorted": ("data_pipeline.preparing.duplicates._repeats", 1),
    "shards are being written": ("data_pipeline.storage.shard_writer._OpenShard.finish", 3),
    "shards get their names": ("data_pipeline.storage.shard_writer.ShardWriter._numbered", 2),
    "the manifest is missing": ("data_pipeline.preparing.merge.write_manifest", 1),
    "the folder is not in place yet": ("data_pipeline.preparing.output_folder._sync_folders", 1),
    "the folder is in place": ("data_pipeline.preparing.output_folder.OutputFolder._leave", 1),
}
KILLED_AT = """
import os, pkgutil, signal
owner, _, name = {where!r}.rpartition(".")
owner, calls = pkgutil.resolve_name(owner), []
plain = getattr(owner, name)
def dies(*arguments):
    calls.append(1)
    if len(calls) == {number}: os.kill(os.getpid(), signal.SIGKILL)
    return plain(*arguments)
setattr(owner, name, dies)
"""


@pytest.fixture
def arguments(model_file, mixed_folder):
    """The command that prepares a folder."""

    def build(output, *options, of=mixed_folder, slice_bytes=6000) -> list[str]:
        given = ["prepare", "--input", of, "--tokenizer", model_file, "--output", output]
        return [str(a) for a in [*given, "--slice-bytes", slice_bytes, *options]]

    return build


@pytest.fixture
def start(arguments):
    """Starts such a command in a process group of its own."""
    begun = []

    def start_prepare(*given, before="", **changes):
        script = f"{before}\nimport sys\nfrom data_pipeline.__main__ import main\nsys.exit(main())"
        process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments(*given, **changes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield start_prepare
    for process in begun:
        kill_all(process)


def kill_all(process) -> None:
    """kill -9 for a process and all that it started."""
    try:
        tree = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
    except (psutil.NoSuchProcess, ProcessLookupError):
        tree = []
    process.communicate()
    psutil.wait_procs(tree, timeout=20)


def done(process) -> str:
    """What a process that ended well has logged."""
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return errors


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def finished(output: Path) -> dict[str, int]:
    """The finished slices of an interrupted run, and which file (inode) each of them is.

    A kill while they are being removed leaves records without their parts.
    """
    parts = [p.with_suffix(".part") for p in OutputFolder(output).slices.glob("*.json")]
    return {part.stem: part.stat().st_ino for part in parts if part.exists()}


def wait_until(happened, process) -> None:
    """Look until something has happened, or the process is gone."""
    while not happened() and process.poll() is None:
        time.sleep(0.002)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, model_file, mixed_folder) -> dict[str, bytes]:
    """What an unbroken run of ALL options makes of mixed_folder."""
    output = tmp_path_factory.mktemp("unbroken") / "shards"
    given = ["--input", mixed_folder, "--tokenizer", model_file, "--output", output, *ALL]
    assert main(["prepare", *map(str, given)]) == 0
    return contents(output)


@pytest.mark.parametrize(("where", "number"), MOMENTS.values(), ids=MOMENTS)
def test_a_kill_at_any_step_costs_no_finished_slice(
    start, arguments, whole, tmp_path, caplog, capsys, where, number
):
    killed = start(tmp_path / "x", *ALL, before=KILLED_AT.format(where=where, number=number))
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "x").exists() or where.endswith("_leave")
    kept = finished(tmp_path / "x")
    seen = f"{len(kept)} of 12 slices were finished before." if kept else ""
    with caplog.at_level("INFO"):
        assert main(arguments(tmp_path / "x", *ALL)) == 0
    assert seen in caplog.text or "finished already, by the same" in capsys.readouterr().err
    assert contents(tmp_path / "x") == whole
    assert os.listdir(tmp_path) == ["x"]


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory, mixed_folder):
    """The lines of mixed_folder forty times: some seconds of work."""
    folder = tmp_path_factory.mktemp("large")
    text = (mixed_folder / "a.txt").read_text()
    (folder / "a.txt").write_text(
        "".join(f"{n} {line}\n" for n in range(40) for line in text.splitlines())
    )
    return folder


def test_workers_end_with_the_process_that_started_them(start, tmp_path, large_folder):
    process = start(tmp_path / "x", "--workers", 2, of=large_folder, slice_bytes=30_000)
    wait_until(lambda: finished(tmp_path / "x"), process)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    process.kill()
    gone, alive = psutil.wait_procs(workers, timeout=20)
    assert len(gone) == 2 and not alive
    process.communicate()
    assert 0 < len(finished(tmp_path / "x")) < 70


def test_a_worker_that_dies_ends_the_run_with_one_line(start, tmp_path, large_folder):
    process = start(tmp_path / "x", "--workers", 2, of=large_folder, slice_bytes=30_000)
    wait_until(lambda: finished(tmp_path / "x"), process)
    workers = psutil.Process(process.pid).children(recursive=True)
    workers[1].kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "a worker process ended by SIGKILL (out of memory?) while it was" in errors
    assert "slices are finished and stay in" in errors and errors.count("\n") == 1
    assert not any(w.is_running() for w in workers)


def test_ctrl_c_is_one_line_and_keeps_what_is_finished(start, tmp_path, large_folder):
    process = start(tmp_path / "x", "--workers", 2, of=large_folder, slice_bytes=30_000)
    wait_until(lambda: finished(tmp_path / "x"), process)
    workers = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == (
        "data_pipeline: interrupted, finished slices are kept: "
        "the same command goes on behind them.\n"
    )
    assert finished(tmp_path / "x") and not any(w.is_running() for w in workers)


def test_a_killed_tree_goes_on_behind_what_it_finished(start, arguments, tmp_path, large_folder):
    process = start(tmp_path / "x", "--workers", 2, of=large_folder, slice_bytes=30_000)
    wait_until(lambda: len(finished(tmp_path / "x")) > 5, process)
    kill_all(process)
    kept = finished(tmp_path / "x")
    assert len(kept) > 5
    again = start(tmp_path / "x", "--workers", 3, of=large_folder, slice_bytes=30_000)
    wait_until(lambda: len(finished(tmp_path / "x")) > len(kept), again)
    assert kept.items() <= finished(tmp_path / "x").items()  # the same files, not written again
    assert f"{len(kept)} of " in done(again)
    assert main(arguments(tmp_path / "whole", "--workers", 1, of=large_folder)) == 0
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")


def test_of_two_at_once_one_is_refused_or_both_are_right(start, arguments, tmp_path):
    both = [start(tmp_path / "x", "--workers", 1) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 2])
    refused = [e for p, e in zip(both, errors, strict=True) if p.returncode]
    assert all("another process " in e and e.count("\n") == 1 for e in refused)
    assert main(arguments(tmp_path / "whole", "--workers", 1)) == 0
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_kills_at_random_moments_never_change_a_byte(start, tmp_path, large_folder):
    """30 kills of the whole process tree, in the merge too; takes two to five minutes."""
    rng = random.Random(1)
    options = ["--dedup", "exact", "--mix", "4", "--shard-tokens", "30000"]
    done(start(tmp_path / "whole", *options, of=large_folder))
    kills = merges = number = 0
    while kills < 30:
        number += 1
        output, code, kept = tmp_path / f"x{number}", None, {}
        while code != 0:
            # They are removed behind the last step alone, when the folder is in its place.
            assert output.exists() or kept.items() <= finished(output).items()
            kept = finished(output)
            process = start(output, "--workers", rng.randint(1, 3), *options, of=large_folder)
            try:
                code = process.wait(timeout=rng.uniform(0.2, 6.0))
                assert code == 0, process.communicate()
            except subprocess.TimeoutExpired:
                kills += 1
                merges += (OutputFolder(output).partial / "shards").exists()
                kill_all(process)
        assert contents(output) == contents(tmp_path / "whole")
    assert merges

"""pretrain/recording/status.py: what a person is told about a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from pretrain.recording.status import Status, describe, main, read, write

RUNNING = Status(
    state="running",
    step=120,
    steps=1320,
    loss_nats=3.25,
    tokens_per_second=41234.0,
    step_seconds=3.0,
    checkpoint_step=100,
    written_at=1000.0,
)


def test_a_running_run_says_when_it_ends() -> None:
    assert describe(Path("runs/a"), RUNNING, now=1007.0).splitlines() == [
        "runs/a: running",
        "  step        120 of 1320 (9 %)",
        "  loss        3.2500 nats a target",
        "  speed       41.2k tokens/s",
        "  checkpoint  step 100",
        "  written     7s ago",
        "  ends in     about 1h00m, at the speed of the last step",
    ]


def test_a_run_that_fell_silent_is_not_called_running() -> None:
    first = describe(Path("runs/a"), RUNNING, now=1000.0 + 3 * 3600).splitlines()[0]
    assert first == "runs/a: lost: killed or cut off 3h00m ago, start it again with --resume auto"


def test_a_status_survives_its_file(tmp_path: Path) -> None:
    write(tmp_path, RUNNING)
    assert vars(read(tmp_path)) | {"written_at": 1000.0} == vars(RUNNING)


@pytest.mark.parametrize(("text", "said"), [(None, "is missing"), ("{", "is not a run's status")])
def test_a_folder_without_status_is_named(text: str | None, said: str, tmp_path: Path) -> None:
    if text:
        (tmp_path / "status.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        read(tmp_path)


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("preempted", "SIGUSR1", "the same command and --resume auto"),
        ("stopped", "stop_at_step", "the same command, a later --stop_at_step or none"),
    ],
)
def test_a_run_that_saved_itself_says_how_to_go_on(state: str, reason: str, said: str) -> None:
    lines = describe(Path("runs/a"), replace(RUNNING, state=state, reason=reason), now=1007.0)
    assert lines.startswith(f"runs/a: {state} ({reason})\n") and said in lines


def test_help_is_no_mistake() -> None:
    assert "finished   all steps are done" in main(["--help"])

"""pretrain/recording/run_log.py: every rank has its own file, and full files roll on."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrain.recording import run_log


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The root logger as it was."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.setLevel(logging.INFO)
    yield
    for handler in [h for h in root.handlers if h not in before]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def test_a_line_names_its_rank(tmp_path: Path) -> None:
    run_log.log_to_file(tmp_path / "logs", 0)
    logging.getLogger("any").info("saved")
    (line,) = (tmp_path / "logs" / "rank-0.log").read_text().splitlines()
    assert line.endswith("rank 0 INFO saved")


def test_full_files_roll_on_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "FILE_BYTES", 500)
    run_log.log_to_file(tmp_path, 3)
    for number in range(100):
        logging.getLogger("any").info("line %d", number)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["rank-3.log", *(f"rank-3.log.{n}" for n in range(1, 6))]
    assert all(p.stat().st_size <= 500 for p in tmp_path.iterdir())
    assert "line 99" in (tmp_path / "rank-3.log").read_text()

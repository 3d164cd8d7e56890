"""pretrain/comparing/compare.py and comparing/: runs side by side, whatever their folders lack."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from pretrain.comparing.compare import main
from pretrain.comparing.runs import differing, find_runs, read_run
from pretrain.recording import status
from pretrain.recording.status import Status


def _run(runs: Path, name: str, losses: list[float], **settings: Any) -> Path:
    """A finished run of `losses`, held out 0.5 above at every second step."""
    folder = runs / name
    folder.mkdir(parents=True)
    config = {"name": name, "runs": str(runs), "optimizer": {"lr": 0.1}, "seed": 1}
    (folder / "config.yaml").write_text(yaml.safe_dump(config | settings))
    lines = []
    for step, loss in enumerate(losses, start=1):
        lines.append({"step": step, "loss/total_nats": loss, "speed/tokens_per_second": 100 * step})
        if step % 2 == 0:
            lines.append({"step": step, "validation/total_nats": loss + 0.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = Status(
        state="finished", step=len(losses), steps=len(losses), device="cpu", ranks=2,
        device_seconds=1800.0, tokens=1000.0,
    )  # fmt: skip
    status.write(folder, done)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs of which the learning rate and the seed differ."""
    _run(tmp_path, "2-b", [3.0, 1.0, 2.0, 4.0], optimizer={"lr": 0.2})
    _run(tmp_path, "10-c", [3.0, 2.0], optimizer={"lr": 0.3}, seed=2)
    _run(tmp_path, "1-a", [3.0, 2.0, 1.0, 0.0])
    return tmp_path


def _rows(*argv: str) -> list[dict[str, Any]]:
    return json.loads(main([*argv, "--json"]))


def test_a_row_tells_what_differs_and_what_became_of_it(runs: Path) -> None:
    first, second, third = _rows(str(runs))
    assert [Path(r["run"]).name for r in (first, second, third)] == ["1-a", "2-b", "10-c"]
    assert third["settings"] == {"optimizer.lr": 0.3, "seed": 2}
    assert second["loss_nats"] == 2.5
    assert (second["held_out_nats"], second["best_held_out_nats"]) == (4.5, 1.5)
    assert (second["best_step"], second["tokens_per_second"]) == (2, 250)
    assert (second["device"], second["device_hours"], second["state"]) == ("cpu", 0.5, "finished")
    assert second["gaps"] == []


def test_the_text_says_on_what_the_hours_were_spent(runs: Path) -> None:
    lines = main([str(runs)]).splitlines()
    words = [" ".join(line.split()) for line in lines]
    assert words[0] == "run lr seed step loss held out best at step tok/s hours state"
    assert words[2] == "2-b 0.2 1 4/4 2.5000 4.5000 1.5000 2 250 0.500 finished"
    assert lines[-1] == "hours: 1.500 of cpu, ranks x wall time over all starts"


def test_csv_has_a_column_for_each_setting_that_differs(runs: Path) -> None:
    found = list(csv.DictReader(io.StringIO(main([str(runs / "*"), "--csv"]))))
    assert [(row["optimizer.lr"], row["seed"]) for row in found] == [
        ("0.1", "1"), ("0.2", "1"), ("0.3", "2"),
    ]  # fmt: skip
    assert "runs" not in found[0] and "name" not in found[0]


def test_half_written_lines_are_counted_and_the_others_stand(runs: Path) -> None:
    with open(runs / "1-a" / "metrics.jsonl", "ab") as lines:
        lines.write(b'no json\n[1]\n{"step": 5, "loss/total_')
    first = _rows(str(runs / "1-a"))[0]
    assert first["loss_nats"] == 1.5
    assert first["gaps"] == [
        "metrics.jsonl: lines left out, not a step's record: 2",
        "metrics.jsonl: lines left out, still being written, or cut off: 1",
    ]
    assert "1-a: metrics.jsonl: lines left out, not a step's record: 2" in main([str(runs)])


@pytest.mark.parametrize(
    ("file", "state", "gap"),
    [
        ("metrics.jsonl", "finished", "metrics.jsonl is missing: no step has been recorded"),
        ("config.yaml", "finished", "config.yaml is missing: set-up did not end"),
        ("status.json", "unknown", "status.json is missing"),
    ],
)
def test_a_missing_file_is_named_and_the_rest_is_told(
    file: str, state: str, gap: str, runs: Path
) -> None:
    (runs / "2-b" / file).unlink()
    first, second, _ = _rows(str(runs))
    assert second["state"] == state and first["gaps"] == []
    assert any(gap in found for found in second["gaps"])


@pytest.mark.parametrize("file", ["metrics.jsonl", "config.yaml", "status.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[1, 2", b"null\n"])
def test_a_spoiled_file_never_ends_the_comparison(file: str, content: bytes, runs: Path) -> None:
    (runs / "2-b" / file).write_bytes(content)
    assert len(_rows(str(runs))) == 3
    assert "2-b" in main([str(runs)])


def test_states_come_with_their_reasons(runs: Path) -> None:
    failed = Status(state="failed", step=1, steps=4, reason="ValueError: the disk\nis full")
    status.write(runs / "1-a", failed)
    status.write(runs / "2-b", Status(state="running", step=1, steps=4))
    os.replace(runs / "2-b" / "status.json", runs / "2-b" / "old")
    old = json.loads((runs / "2-b" / "old").read_text())
    (runs / "2-b" / "status.json").write_text(json.dumps(old | {"written_at": 1000.0}))
    status.write(runs / "10-c", Status(state="running", step=1, steps=4))
    said = main([str(runs)]).splitlines()
    assert said[1].endswith("failed (ValueError: the disk is full)")
    assert said[2].endswith("lost") and said[3].endswith("running")


def test_a_further_metric_is_a_column(runs: Path) -> None:
    with open(runs / "1-a" / "metrics.jsonl", "a") as lines:
        lines.write('{"step": 4, "validation/optimus_mi_nats": 1.25}\n')
    tag = "validation/optimus_mi_nats"
    assert [row[tag] for row in _rows(str(runs), "--show", tag)] == [1.25, None, None]
    with pytest.raises(ValueError, match="--show nothing: no run has recorded it"):
        main([str(runs), "--show", "nothing"])


def test_nothing_to_compare_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run there"):
        find_runs([str(tmp_path)])


def test_runs_with_the_same_settings_differ_in_none(runs: Path) -> None:
    again = _run(runs / "more", "again", [1.0, 2.0])
    assert differing([read_run(runs / "1-a"), read_run(again)]) == []


def test_a_picture_is_drawn_of_runs_with_and_without_curves(runs: Path) -> None:
    (runs / "2-b" / "metrics.jsonl").unlink()
    main([str(runs), "--picture", str(runs / "a.png")])
    main([str(runs / "1-a"), str(runs / "2-b"), "--picture", str(runs / "b.png")])
    assert all((runs / name).read_bytes().startswith(b"\x89PNG") for name in ("a.png", "b.png"))

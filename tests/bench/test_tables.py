"""The arithmetic behind the tables of `make bench`; no test here looks at a clock."""

import json

import pytest

from bench import groups
from bench.table import KEYS, Row, as_json, as_text, rate_row
from bench.timing import Times, take_turns

OURS = Times(wall_s=(2.0, 1.0, 9.0), cpu_s=(1.0, 1.0, 1.0))
PEER = Times(wall_s=(4.0, 3.0, 20.0), cpu_s=(2.0, 4.0, 3.0))


def test_a_ratio_is_our_rate_over_the_peers_by_medians() -> None:
    row = rate_row("step", "peer", (OURS, PEER), (100.0, 120.0), "tokens/s", goal=1.5)
    assert (row.ours, row.peer_value) == (50.0, 30.0)
    assert row.ratio == pytest.approx(50 / 30)
    assert row.ratio_of_least == pytest.approx(100 / 40)
    assert row.ratio_of_cpu == pytest.approx(100 / 40)


def test_parts_of_a_step_are_added_round_by_round() -> None:
    whole = OURS + PEER
    assert whole.wall_s == (6.0, 4.0, 29.0)
    assert (whole.median_s, whole.least_s, whole.median_cpu_s) == (6.0, 4.0, 4.0)


def test_contestants_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    times = take_turns(
        {"ours": lambda: order.append("ours"), "peer": lambda: order.append("peer")}, rounds=2
    )
    assert order == ["ours", "peer"] * 3
    assert [len(t.wall_s) for t in times.values()] == [2, 2]


def test_json_has_the_agreed_keys_and_plain_values() -> None:
    row = Row(bench="b", ours=3.0, peer="transformers GPT-2", peer_value=2.0, unit="tokens/s")
    (entry,) = json.loads(json.dumps(as_json([row], "2026-07-01", {"torch": "2.13.0"})))
    assert tuple(entry) == KEYS
    assert entry["ratio"] == 1.5


def test_the_table_says_which_goal_is_missed() -> None:
    common = {"bench": "b", "peer": "p", "peer_value": 2.0, "unit": "tokens/s"}
    rows = [Row(ours=3.0, goal=1.5, **common), Row(ours=2.9, goal=1.5, **common)]
    lines = as_text(rows).splitlines()
    assert "1.5 met" in lines[2]
    assert "1.5 NOT" in lines[3]
    assert len({len(line) for line in lines}) == 1


def test_a_report_leaves_rows_where_it_is_told(tmp_path) -> None:
    row = Row(bench="b", ours=3.0, peer="p", peer_value=2.0, unit="tokens/s")
    assert "| b " in groups.report("step_S", [row], tmp_path / "results")
    (entry,) = json.loads((tmp_path / "results" / "step_S.json").read_text())
    assert entry["versions"]["torch"]


def test_red_tests_stop_the_bench(tmp_path, monkeypatch) -> None:
    red = tmp_path / "test_red.py"
    red.write_text("def test_wrong():\n    assert 1 == 2\n")
    monkeypatch.setattr(groups, "PARITY_TESTS", (str(red),))
    assert "test_wrong" in groups.red_tests()

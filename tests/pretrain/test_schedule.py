"""pretrain/settings/schedule.py against the published tables and by hand."""

import json
from pathlib import Path

import pytest

from pretrain.settings.optimizer_config import ScheduleConfig
from pretrain.settings.schedule import learning_rate

META = Path(__file__).parents[1] / "golden" / "glm" / "model_meta.json"
PUBLISHED = json.loads(META.read_text())["lr_schedules"]


def _published_rate(name: str, update: int) -> float:
    table = PUBLISHED[name]
    schedule = ScheduleConfig(
        shape=table["style"],
        warmup_ratio=table["warmup"],
        decay_steps=table["lr_decay_iters"],
        end_ratio=table["ratio"],
    )
    return learning_rate(update, peak=table["start_lr"], steps=10**6, schedule=schedule)


@pytest.mark.golden
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_rates_are_the_published_ones_up_to_the_end_of_the_decay(name: str) -> None:
    decay_steps = PUBLISHED[name]["lr_decay_iters"]
    for update, rate in PUBLISHED[name]["lr_at"]:
        if update <= decay_steps:
            assert _published_rate(name, update) == pytest.approx(rate, rel=1e-9, abs=1e-15)


@pytest.mark.golden
def test_linear_decay_stays_at_its_end_where_the_published_one_turns_negative() -> None:
    (update, published), *_ = [r for r in PUBLISHED["10B_longer_linear"]["lr_at"] if r[0] > 50000]
    assert published < 0
    assert _published_rate("10B_longer_linear", update) == pytest.approx(3e-6)


@pytest.mark.parametrize(
    ("update", "rate"),
    [(0, 0.0), (5, 0.5), (10, 1.0), (80, 1.0), (90, 0.55), (100, 0.1), (101, 0.1)],
)
def test_wsd_rises_stays_and_falls(update: int, rate: float) -> None:
    schedule = ScheduleConfig(shape="wsd", warmup_ratio=0.1, end_ratio=0.1, wsd_decay_ratio=0.2)
    assert learning_rate(update, peak=1.0, steps=100, schedule=schedule) == pytest.approx(rate)


def test_constant_keeps_the_peak_after_the_warm_up() -> None:
    schedule = ScheduleConfig(shape="constant", warmup_ratio=0.1)
    rates = [learning_rate(u, peak=2.0, steps=100, schedule=schedule) for u in (5, 10, 99, 500)]
    assert rates == [1.0, 2.0, 2.0, 2.0]


def test_without_warm_up_the_first_update_has_the_peak() -> None:
    schedule = ScheduleConfig(shape="cosine", warmup_ratio=0.0)
    assert learning_rate(0, peak=3.0, steps=10, schedule=schedule) == 3.0

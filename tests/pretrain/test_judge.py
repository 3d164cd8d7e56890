"""pretrain/training/judge.py: which updates are applied, in numbers one can check by hand."""

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.settings.data_config import DataConfig
from pretrain.settings.mistakes import AgreedError
from pretrain.settings.optimizer_config import SpikesConfig
from pretrain.training.judge import Judge, merged

FOUR = SpikesConfig(loss_deviations=3.0, history=4, stop_after=3)


def _judge(losses: list[float], spikes: SpikesConfig = FOUR) -> Judge:
    judge = Judge(spikes)
    assert [judge.of_loss(loss) for loss in losses] == [None] * len(losses)
    return judge


def test_the_limit_is_median_and_deviations_of_the_history() -> None:
    # median 2.5; distances 1.5 0.5 0.5 1.5, their median 1.0; 2.5 + 3 x 1.0
    judge = _judge([1.0, 2.0, 3.0, 4.0])
    assert judge.limit_nats() == 5.5
    assert judge.of_loss(5.5) is None


def test_a_loss_above_the_limit_is_a_spike_and_one_far_below_is_none() -> None:
    assert _judge([1.0, 2.0, 3.0, 4.0]).of_loss(5.51) == "loss_spike"
    assert _judge([1.0, 2.0, 3.0, 4.0]).of_loss(-100.0) is None


def test_nothing_is_a_spike_before_the_history_is_full() -> None:
    assert _judge([1.0, 1.0, 1.0]).of_loss(1e9) is None


def test_losses_that_do_not_differ_leave_room_for_rounding() -> None:
    # 3 x 0.001 of the median
    judge = _judge([2.0] * 4)
    assert judge.limit_nats() == pytest.approx(2.006)


def test_no_deviations_let_every_finite_loss_pass() -> None:
    judge = _judge([1.0] * 4, SpikesConfig(loss_deviations=0, history=4))
    assert judge.of_loss(1e30) is None
    assert judge.of_loss(math.inf) == "non_finite_loss"


@pytest.mark.parametrize("nats", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_and_not_remembered(nats: float) -> None:
    judge = _judge([1.0, 2.0, 3.0, 4.0])
    assert judge.of_loss(nats) == "non_finite_loss"
    assert judge.limit_nats() == 5.5


def test_a_skip_moves_no_update_and_is_counted_under_its_name() -> None:
    judge = Judge(FOUR)
    judge.count(skipped=None, rows=8, clipped=True)
    for reason in ("named", "loss_spike", "gradient", "named"):
        judge.count(skipped=reason, rows=8)
    judge.count(skipped=None, rows=8)
    assert judge.updates == 2
    assert judge.skipped == {"named": 2, "non_finite_loss": 0, "loss_spike": 1, "gradient": 1}
    assert (judge.skipped_rows, judge.clipped_gradients) == (32, 1)


def test_too_many_in_a_row_end_the_run_and_name_a_way_out() -> None:
    judge = Judge(FOUR)
    for step, reason in enumerate(("gradient", "named", "non_finite_loss"), 5):
        judge.count(skipped=reason, rows=8)
        judge.stop_if_hopeless(step)  # one named step neither counts nor breaks the row
    judge.count(skipped="non_finite_loss", rows=8)
    with pytest.raises(AgreedError, match=r"step 8: 3 updates in a row .* 2 non_finite_loss, 1 gr"):
        judge.stop_if_hopeless(8)


def test_an_applied_update_ends_the_row() -> None:
    judge = Judge(FOUR)
    for reason in ("gradient", "gradient", None, "gradient", "gradient"):
        judge.count(skipped=reason, rows=8)
    judge.stop_if_hopeless(5)


def test_named_steps_are_found_and_stretches_are_merged() -> None:
    judge = Judge(FOUR, skip_steps=[(8, 9), (2, 4), (3, 6), (7, 7)])
    assert judge.skip_steps == [(2, 9)]
    assert [s for s in range(12) if judge.is_named(s)] == list(range(2, 10))


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)).map(lambda p: (p[0], sum(p)))))
def test_merged_stretches_hold_the_same_steps(stretches: list[tuple[int, int]]) -> None:
    def steps(pairs: list[tuple[int, int]]) -> set[int]:
        return {step for first, last in pairs for step in range(first, last + 1)}

    whole = merged(stretches)
    assert steps(whole) == steps(stretches)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(whole))


@given(
    st.lists(st.floats(-1e3, 1e3) | st.sampled_from([math.nan, math.inf]), max_size=30),
    st.integers(0, 30),
)
def test_a_judge_goes_on_as_if_it_had_never_stopped(losses: list[float], at: int) -> None:
    unbroken = Judge(FOUR)
    expected = [unbroken.of_loss(loss) for loss in losses]
    first, second = Judge(FOUR), Judge(FOUR)
    found = [first.of_loss(loss) for loss in losses[:at]]
    second.restore(json.loads(json.dumps(first.state(at))), at)
    assert found + [second.of_loss(loss) for loss in losses[at:]] == expected
    assert second.state(9) == unbroken.state(9)


def test_steps_to_come_may_be_named_on_a_resume_and_done_ones_may_not() -> None:
    state = Judge(FOUR, skip_steps=[(3, 5)]).state(step=10)
    Judge(FOUR, skip_steps=[(3, 5), (11, 12)]).restore(state, 10)
    with pytest.raises(ValueError, match="names 3-5, 9-10 of the first 10 steps, which are done "):
        Judge(FOUR, skip_steps=[(3, 5), (9, 12)]).restore(state, 10)
    with pytest.raises(ValueError, match="names none of the first 10"):
        Judge(FOUR).restore(state, 10)


@pytest.mark.parametrize("state", [{}, {"updates": "x"}, {"skip_steps": [[1]]}])
def test_a_state_of_another_make_is_one_line(state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not say which updates were applied"):
        Judge(FOUR).restore(state, 4)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SpikesConfig(loss_deviations=-1), "loss_deviations must be finite, 0 or more"),
        (lambda: SpikesConfig(loss_deviations=math.nan), "loss_deviations must be finite"),
        (lambda: SpikesConfig(history=1), "history must be at least 2, got 1"),
        (lambda: SpikesConfig(stop_after=0), "stop_after must be at least 1, got 0"),
        (lambda: DataConfig(shards="a", skip_steps=((0, 3),)), r"from 1, got \[0, 3\]"),
        (lambda: DataConfig(shards="a", skip_steps=((5, 4),)), r"got \[5, 4\]"),
    ],
)
def test_values_out_of_range_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()

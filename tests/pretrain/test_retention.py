"""pretrain/retention.py: the last, every n-th and the best checkpoints stay."""

import pytest

from pretrain.retention import Retention, kept

# step -> held-out loss; best are 30, then 20, then 40 (equal to 50, which is later)
RUN = {10: 4.0, 20: 2.5, 30: 2.0, 40: 3.0, 50: 3.0, 60: None}


@pytest.mark.parametrize(
    ("rules", "stay"),
    [
        (Retention(keep_last=1), {60}),
        (Retention(keep_last=2), {50, 60}),
        (Retention(keep_last=9), {10, 20, 30, 40, 50, 60}),
        (Retention(keep_last=1, keep_every=20), {20, 40, 60}),
        (Retention(keep_last=1, keep_every=25), {50, 60}),
        (Retention(keep_last=1, keep_best=1), {30, 60}),
        (Retention(keep_last=1, keep_best=3), {20, 30, 50, 60}),
        (Retention(keep_last=1, keep_best=9), {10, 20, 30, 40, 50, 60}),
        (Retention(keep_last=1, keep_every=40, keep_best=1), {30, 40, 60}),
    ],
)
def test_any_rule_keeps_a_checkpoint(rules: Retention, stay: set[int]) -> None:
    assert kept(RUN, rules) == stay


def test_without_a_held_out_loss_only_the_newest_stay() -> None:
    assert kept({10: None, 20: None}, Retention(keep_last=1, keep_best=2)) == {20}


def test_the_rules_say_what_they_are() -> None:
    assert str(Retention(keep_last=2, keep_best=1)) == "keep_last 2, keep_best 1"

"""pretrain/checkpoints/retention.py: the last, every n-th and the best checkpoints stay."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pretrain.checkpoints.retention import Retention, kept
from pretrain.evaluate.held_out import minimised
from pretrain.objectives.loss import Objective
from pretrain.settings.cli import parse_train

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


def test_what_is_not_finite_is_never_the_best() -> None:
    nan, inf = float("nan"), float("inf")
    losses = {10: 2.0, 20: nan, 30: 1.0, 40: 3.0, 50: nan, 55: -inf, 60: 2.5}
    assert kept(losses, Retention(keep_last=1, keep_best=1)) == {30, 60}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--checkpoints.keep_best=1", "--evaluation.every_steps=3"), "must be a multiple of"),
        (("--checkpoints.keep_best=1", "--evaluation.every_steps=0"), "which must not be 0"),
        (("--checkpoints.keep_every=-1",), "keep_every must be 0 or more, got -1"),
        (("--checkpoints.keep_last=0",), "keep_last must be at least 1, got 0"),
    ],
)
def test_rules_that_cannot_be_are_refused(
    flags: tuple[str, ...], said: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(repository / "launch" / "recipes" / "debug.yaml")
    with pytest.raises(SystemExit):
        parse_train(["--config", recipe, *flags])
    assert said in capsys.readouterr().err


def test_the_rules_say_what_they_are() -> None:
    assert str(Retention(keep_last=2, keep_best=1)) == "keep_last 2, keep_best 1"


def test_a_loss_without_one_of_its_terms_is_not_known() -> None:
    terms = [SimpleNamespace(name="glm", weight=2.0, optimised=("total", "kl"))]
    both = {"glm/total": 1.0, "glm/kl": 0.5}
    assert minimised(cast(list[Objective], terms), both) == 3.0
    assert minimised(cast(list[Objective], terms), {"glm/total": 1.0}) is None

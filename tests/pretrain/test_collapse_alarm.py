"""The collapse alarm counts evaluations in a row and does what the recipe says."""

from dataclasses import replace
from typing import Any, cast

import pytest

from pretrain.objectives.alarm import CollapseAlarm
from pretrain.settings.elbo_config import (
    AggressiveConfig,
    AlarmConfig,
    ElboConfig,
    FreeBitsConfig,
)
from pretrain.settings.latent_config import AdaVaeConfig, GlmVaeConfig, LstmVaeConfig
from pretrain.settings.objectives_config import ObjectivesConfig


def scalars(units: float, nats: float = 1.0) -> dict[str, float]:
    return {
        "active_units": units,
        "mutual_information_nats": nats,
        "mutual_information_ceiling_nats": 4.0,
    }


def test_so_many_evaluations_in_a_row_raise_it():
    alarm = CollapseAlarm(AlarmConfig(active_units=3, evaluations=2))
    said = [alarm.note(scalars(units)) for units in (2, 3, 2, 2, 2)]
    assert [one is None for one in said] == [True, True, True, False, False]
    assert said[3] == (
        "the latent space collapses: 2 active units, fewer than 3, 2 evaluations in a row"
    )
    assert not alarm.stops


def test_mutual_information_is_measured_by_its_ceiling():
    alarm = CollapseAlarm(AlarmConfig(mi_ratio=0.1, evaluations=1, action="stop"))
    assert alarm.note(scalars(0, 0.41)) is None
    said = alarm.note(scalars(0, 0.39))
    assert said is not None and "mutual information 0.390 of at most 4.000 nats" in said
    assert alarm.stops


def test_free_bits_are_raised_and_stay_so_after_a_resume():
    config = AlarmConfig(active_units=1, evaluations=2, action="raise_free_bits", raise_nats=0.25)
    alarm, free_bits = CollapseAlarm(config), FreeBitsConfig(mode="hinge", nats=0.5)
    for _ in range(5):
        alarm.note(scalars(0))
    assert alarm.raised(free_bits) == FreeBitsConfig(mode="hinge", nats=1.0)
    resumed = CollapseAlarm(config)
    resumed.restore(alarm.state())
    assert resumed.raised(free_bits).nats == 1.0
    said = resumed.note(scalars(0))
    assert said is not None and "free_bits.nats are raised by 0.75 in all" in said
    resumed.restore({})
    for wrong in ({"in_a_row": []}, {"raised_nats": "much"}, []):
        with pytest.raises(ValueError, match="state of a collapse alarm"):
            resumed.restore(cast(dict[str, Any], wrong))
    assert resumed.raised_nats == 0.75


def test_what_no_evaluation_will_decide_is_named():
    watched = ElboConfig(alarm=AlarmConfig(mi_ratio=0.1))
    turns = replace(watched, aggressive=AggressiveConfig(max_encoder_updates=9))
    objectives = ObjectivesConfig(
        glm_vae=GlmVaeConfig(weight=1.0, elbo=watched),
        adavae=AdaVaeConfig(weight=0.0, elbo=watched),  # not learned
        lstm_vae=LstmVaeConfig(weight=1.0, elbo=turns),
    )
    said = objectives.undecided(is_evaluated=False)
    assert said is not None
    assert said.startswith(
        "objectives.glm_vae.elbo.alarm is never raised and objectives.lstm_vae.elbo.alarm is never "
        "raised and objectives.lstm_vae.elbo.aggressive never ends: it takes evaluations"
    )
    assert objectives.undecided(is_evaluated=True) is None
    assert ObjectivesConfig().undecided(is_evaluated=False) is None


def test_thresholds_of_0_watch_nothing():
    alarm = CollapseAlarm(AlarmConfig(evaluations=1))
    assert alarm.note(scalars(0, 0.0)) is None and alarm.note({}) is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: AlarmConfig(mi_ratio=2), r"alarm.mi_ratio must lie in \[0, 1\], got 2"),
        (lambda: AlarmConfig(evaluations=0), "alarm.evaluations must be at least 1, got 0"),
        (
            lambda: ElboConfig(alarm=AlarmConfig(action="raise_free_bits")),
            "raise_free_bits needs free bits to raise",
        ),
    ],
)
def test_values_out_of_range_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()

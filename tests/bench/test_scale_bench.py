"""bench/scale.py: what a step sends and holds is what the plan says, within 10 %."""

import pytest

from bench.scale import measure


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_bytes_and_memory_are_those_of_the_plan(ranks: int) -> None:
    """Half a minute, a minute and five minutes on two quiet cores."""
    found = measure(ranks)
    assert found["sent_bytes"] == pytest.approx(found["planned_sent_bytes"], rel=0.1, abs=2000)
    assert found["memory_bytes"] == pytest.approx(found["planned_memory_bytes"], rel=0.1)

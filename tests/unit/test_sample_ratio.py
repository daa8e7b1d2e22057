"""The chance of a false alarm is that of all names and tests together."""

from types import SimpleNamespace

import numpy as np
import pytest

from service.analysis.outcomes import Outcomes
from service.analysis.sample_ratio import FALSE_ALARM_CHANCE, Counts
from service.bandits.boundary import radius

V = 400.0


def counts_of(names: int, off: float) -> Counts:
    """So many names, the first of which is drawn `off` times too often; all have one variance."""
    counts = Counts([f"n{number}" for number in range(names)])
    counts.sums[:, :names] = np.array([[1_000.0], [1_000.0], [V]])
    counts.sums[0, 0] += off
    return counts


def bound(alpha: float) -> float:
    return float(radius(np.array([V]), 1.0, alpha)[0])


@pytest.mark.parametrize("names", [1, 2, 100])
def test_the_names_of_a_test_share_its_chance_of_a_false_alarm(names: int) -> None:
    """What is too far off for one name alone is not for one of a hundred."""
    limit = bound(0.01 / names)
    assert counts_of(names, 0.999 * limit).mismatch("arm", 0.01) is None
    found = counts_of(names, 1.001 * limit).mismatch("arm", 0.01)
    assert found is not None
    assert (found.name, found.expected) == ("n0", 1_000)
    assert names == 1 or limit > 1.02 * bound(0.01)


def test_arms_and_policies_share_the_chance_of_a_false_alarm() -> None:
    limit = bound(FALSE_ALARM_CHANCE / 2 / 3)
    assert limit > 1.02 * bound(FALSE_ALARM_CHANCE / 3)
    for factor, alarm in ((0.999, False), (1.001, True)):
        drawn = {"arm": counts_of(3, factor * limit), "policy": Counts()}
        found = Outcomes.mismatch(SimpleNamespace(drawn=drawn))  # type: ignore[arg-type]
        assert (found is not None) == alarm

"""What three false reports do in a narrow and in a wide range of rewards (docs/experiment.md)."""

from random import Random
from typing import Any

import numpy as np
import pytest

from service.decide.scoring import decide
from service.decide.tries import Tries
from service.state.decider import Decider
from tests.unit.folding import Log, shop

pytestmark = pytest.mark.statistics

MEANS = {"a": 1.2, "b": 1.6, "c": 2.0, "d": 2.6}
FALSE, FROM, VISITS, STREAMS = (50, 51, 52), 100, 600, 6
POLICIES: dict[str, dict[str, Any]] = {
    "auto": {"kind": "auto"},
    "linucb": {"kind": "linucb", "disjoint": True},
    "lints": {"kind": "lints", "disjoint": True, "draws": 64},
}


def gain(policy: dict[str, Any], largest: float, false: bool, seed: int) -> float:
    """What visits 100 to 600 earn, 0 by chance and 1 by the best arm. Honest rewards are 1 to 3;
    visits 50 to 52 report the largest reward of the range."""
    log, tries, rng = Log(), Tries(), Random(seed)
    arms: dict[str, Any] = {name: {} for name in MEANS}
    rules = {"range": [0, largest]}
    log.define({**shop(p=policy), "features": {}, "arms": arms, "reward": rules})
    learner, earned = log.state.learners["p"], list[float]()
    for visit in range(VISITS):
        candidates = log.state.candidates
        facts = tries.facts(Decider.serving(learner), candidates, ())
        _, slate = decide(
            Decider.serving(learner), np.empty(0), candidates, 1, rng.getrandbits(63), facts
        )
        arm = candidates.ids[slate.arms[0]]
        tries.show(learner, [arm])
        reward = min(3.0, max(1.0, MEANS[arm] + rng.gauss(0, 0.4)))
        log.settle("p", {arm: largest if false and visit in FALSE else reward}, context={})
        earned += [MEANS[arm]] * (visit >= FROM)
    chance = float(np.mean(list(MEANS.values())))
    return (float(np.mean(earned)) - chance) / (max(MEANS.values()) - chance)


@pytest.mark.parametrize("kind", POLICIES)
def test_three_false_reports_bring_policies_to_chance_in_a_wide_range_alone(kind: str) -> None:
    def gains(largest: float, false: bool) -> list[float]:
        return [gain(POLICIES[kind], largest, false, seed) for seed in range(STREAMS)]

    assert min(gains(1_000, false=False)) > 0.95
    assert min(gains(3, false=True)) > 0.95
    wide = gains(1_000, false=True)
    print(kind, np.round(wide, 2))  # noqa: T201
    assert np.mean(wide) < 0.3
    assert min(wide) < 0

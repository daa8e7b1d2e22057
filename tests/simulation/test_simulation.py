"""Whatever befalls the service: what it acknowledged is in the log, and counts once."""

import sys
from contextlib import ExitStack
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from service.state.events import encode_event
from tests.simulation.bugs import BUGS
from tests.simulation.rules import RULES, run
from tests.simulation.world import Rule, World
from tests.support.properties import examples

SEEDS, STEPS = 200, 110
FEW_SEEDS, FEW_STEPS = 8, 60
BUG_SEEDS, BUG_STEPS = 40, 80
"""At most so many for each planted bug; the first that shows it is enough."""
LONG_S = 1_200.0
"""Leeway of worlds with outages after which marks are gone."""

steps = st.sampled_from([one for one, weight in RULES.items() for _ in range(weight)])
chances = st.randoms(use_true_random=False)


class Service(RuleBasedStateMachine):
    """Worlds that hypothesis chooses, and makes small where a promise is broken."""

    world: World | None = None

    @initialize(seed=st.integers(0, 999))
    def begin(self, seed: int) -> None:
        self._open, self._sound = ExitStack(), True
        self.world = self._open.enter_context(World(seed).open())

    @precondition(lambda self: self.world is not None)
    @rule(step=steps, rng=chances)
    def happen(self, step: Rule, rng: Random) -> None:
        assert self.world is not None
        self._sound = False
        self.world.step(step, rng)
        self._sound = True

    def teardown(self) -> None:
        if self.world is not None:
            with self._open:
                if self._sound:
                    self.world.finish()


Service.TestCase.settings = settings(
    max_examples=examples(30),
    stateful_step_count=30,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestService = pytest.mark.timeout(600)(Service.TestCase)  # making it small takes minutes


@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, FEW_SEEDS), marks=pytest.mark.slow)]
)
def test_worlds_by_seed_keep_every_promise(seeds: range) -> None:
    for seed in seeds:
        run(seed, FEW_STEPS)


def test_one_seed_is_one_world() -> None:
    """Decisions, rewards, times and all."""
    first, second = (run(seed=1, steps=FEW_STEPS).audit.records for _ in range(2))
    assert [encode_event(event) for event, _ in first] == [encode_event(e) for e, _ in second]
    assert len(first) > 10


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    for seed in range(BUG_SEEDS):
        with BUGS[bug]():
            try:
                run(seed, BUG_STEPS)
            except AssertionError:
                return
    pytest.fail(f"{BUG_SEEDS} worlds show nothing of it")


@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, FEW_SEEDS), marks=pytest.mark.slow)]
)
def test_an_outage_may_be_longer_than_marks_are_kept(seeds: range) -> None:
    """What was due all the while is settled once after it."""
    for seed in seeds:
        run(seed, STEPS, leeway_s=LONG_S)


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
def test_many_worlds_keep_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    events = visits = 0
    for seed in range(SEEDS):
        world = run(seed, STEPS)
        events += len(world.audit.records)
        visits += len(world.ledger.visits)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{SEEDS * STEPS} steps over {SEEDS} seeds: {visits} decisions, {events} events, "
            "no violation\n"
        )


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("bug", BUGS)
def test_how_many_worlds_find_a_planted_bug(bug: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = 0
    for seed in range(BUG_SEEDS):
        with BUGS[bug]():
            try:
                run(seed, STEPS)
            except AssertionError:
                found += 1
    with capsys.disabled():
        sys.stdout.write(f"\n{bug}: found in {found} of {BUG_SEEDS} seeds of {STEPS} steps\n")
    assert found

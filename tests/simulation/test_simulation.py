"""Whatever befalls the service: what it acknowledged is in the log, and counts once."""

import sys

import pytest

from service.state.events import encode_event
from tests.simulation.bugs import BUGS
from tests.simulation.rules import run

SEEDS, STEPS = 200, 110
FEW_SEEDS, MORE_SEEDS, FEW_STEPS = 16, 48, 60
BUG_SEEDS, BUG_STEPS = 40, 80
"""At most so many for each planted bug; the first that shows it is enough."""
LONG_S = 1_200.0
"""Leeway of worlds with outages after which marks are gone."""


@pytest.mark.parametrize(
    "seeds", [range(FEW_SEEDS), pytest.param(range(FEW_SEEDS, MORE_SEEDS), marks=pytest.mark.slow)]
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

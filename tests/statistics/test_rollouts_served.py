"""Twenty rollouts over HTTP, from their start to their end, in virtual time: a service, visitors
who select and click, and nothing but what a client sees.

A visitor comes twice a second, and the baseline is clicked by one in two. `-s` prints a line for
each rollout.
"""

import pytest

from service.log.stores.memory import MemoryStore
from service.offline.audit import Audit
from tests.http.test_rollouts import Visitors, start, status, two_policies
from tests.support.clock import VirtualClock
from tests.support.service import serving

pytestmark = pytest.mark.statistics

RATES = {"better": 0.6, "equal": 0.5, "halved": 0.25, "broken": 0.0}
MARGINS = {"better": 0.4, "equal": 0.4, "halved": 0.1, "broken": 0.1}
ENDS = {"better": "finished", "equal": "finished", "halved": "rolled_back", "broken": "rolled_back"}
ASKED, EACH_S = 100, 0.5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", RATES)
def test_a_rollout_ends_as_its_challenger_deserves(name: str, seed: int) -> None:
    store, clock = MemoryStore(), VirtualClock()
    with serving(store, clock=clock, expiry_seconds=1.0) as wire:
        assert wire.put("/experiments/shop?replace=true", two_policies()).status_code == 200
        start(wire, margin=MARGINS[name], stage_hours=0.05)
        visitors, began = Visitors(wire, old=0.5, new=RATES[name]), clock.time()
        visitors.rng.seed(seed)
        while (now := status(wire))["state"] == "running":
            visitors.visit(ASKED, EACH_S)
            assert visitors.number < 12_000
        last, hours = now["last"], (clock.time() - began) / 3_600
        print(  # noqa: T201
            f"{name} {seed}: {now['state']} after {last['own']} own settlements, {hours:.1f} h, "
            f"{last['metric']} {last['value']:.3f} against {last['bound']:g}"
        )
        assert now["state"] == ENDS[name]
        audit = wire.run(Audit(store, "shop").run())
        assert audit.clean, audit

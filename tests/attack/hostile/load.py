"""The load of the tenant that is not attacked: how fast it can go, and how fast it is answered."""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator_client.load import LoadClient, asked_load, measure
from simulator_client.load_arguments import load_options
from simulator_client.load_plan import Plan
from simulator_client.load_progress import Silent
from simulator_client.load_tally import KINDS, Tally
from tests.attack.hostile.tenants import VICTIM

SHARE: Final = 0.2
"""Of saturation."""
CONNECTIONS: Final = 64
TIMEOUT_S: Final = 30.0


@dataclass
class VictimLoad:
    """Open-loop load of one experiment. rewarded: acknowledged, in all."""

    plan: Plan
    rewarded: int = 0
    rate: float = 0.0

    @classmethod
    async def of(cls, url: str, key: str, seed: int) -> "VictimLoad":
        parser = argparse.ArgumentParser()
        load_options(parser, url)
        options = parser.parse_args(
            ["--experiment", VICTIM, "--key", key, "--timeout", str(TIMEOUT_S), "--seed", str(seed)]
        )
        client = LoadClient([url], key=key)
        try:
            return cls((await asked_load(client, options)).plan)
        finally:
            await client.aclose()

    async def saturate(self, seconds: float) -> float:
        """Answers of /select a second where every connection asks at once; the rate of the load
        follows from it."""
        plan = replace(self.plan, warmup_s=1.0, seconds=seconds, connections=CONNECTIONS, rate=None)
        tally = await self._measure(plan)
        found = tally.answered["select"] / seconds
        self.rate = SHARE * found
        return found

    async def window(self, seconds: float) -> Tally:
        """At the share of saturation."""
        return await self._measure(
            replace(self.plan, warmup_s=0.5, seconds=seconds, rate=self.rate)
        )

    async def _measure(self, plan: Plan) -> Tally:
        tally = await measure(plan, Silent())
        self.rewarded += sum(tally.seconds["reward"])
        return tally


def added(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.add(tally.as_json())
    return total


def percentiles_ms(tally: Tally) -> dict[str, Any]:
    """Of selects and rewards together, and how many there were."""
    counts: dict[int, int] = {}
    for kind in KINDS:
        for us, count in tally.latencies[kind].items():
            counts[us] = counts.get(us, 0) + count
    total, seen, found = sum(counts.values()), 0, dict[str, Any](count=sum(counts.values()))
    for us in sorted(counts):
        seen += counts[us]
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            if name not in found and seen >= share * total:
                found[name] = us / 1e3
    found["max"] = max(tally.latencies[kind].worst_us for kind in KINDS) / 1e3
    return found

"""The load of the tenant that is not attacked: its saturation, and its latencies."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

from simulator_client.client import Client
from simulator_client.load import KINDS, REWARD, SELECT, Plan, histogram, run
from simulator_client.load_requests import origin_of, requests_for
from simulator_client.load_summary import latency_ms
from tests.attack.hostile.tenants import VICTIM

SHARE: Final = 0.2
"""Of saturation."""
CLOSED_CONNECTIONS: Final = 64
OPEN_CONNECTIONS: Final = 256
TIMEOUT_S: Final = 30.0


class Window(NamedTuple):
    """The counts of a load. latencies: an encoded histogram of selects and rewards together."""

    selects: int
    rewards: int
    errors: Counter[tuple[str, str]]
    latencies: bytes


def _sent(plan: Plan) -> Window:
    tally, latencies = run(plan), histogram()
    for kind in KINDS:
        latencies.add(tally.latencies[kind])
    selects, rewards = tally.answered[SELECT], tally.total(REWARD)
    return Window(selects, rewards, tally.errors, latencies.encode())


@dataclass
class VictimLoad:
    """Open-loop load of one experiment, sent by a separate process: the attacker must not delay it.

    rewarded: rewards that the service acknowledged.
    """

    plan: Plan
    rewarded: int = 0
    rate: float = 0.0
    process: ProcessPoolExecutor = field(
        default_factory=lambda: ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    )

    @classmethod
    async def of(cls, url: str, key: str, seed: int) -> "VictimLoad":
        client = Client([url], key=key)
        try:
            _, requests = await requests_for(client, VICTIM, seed=seed)
        finally:
            await client.aclose()
        origins = [origin_of(url)]
        return cls(Plan(origins=origins, requests=requests, timeout_s=TIMEOUT_S, seed=seed))

    async def saturate(self, seconds: float) -> float:
        """Measure the selects per second of a closed loop, and set the rate of the load by it."""
        plan = replace(self.plan, warmup_s=1.0, seconds=seconds, connections=CLOSED_CONNECTIONS)
        found = (await self._measure(plan)).selects / seconds
        self.rate = SHARE * found
        return found

    async def window(self, seconds: float) -> Window:
        """Send at the share of saturation."""
        plan = replace(self.plan, warmup_s=0.5, seconds=seconds, rate=self.rate)
        return await self._measure(replace(plan, connections=OPEN_CONNECTIONS))

    async def _measure(self, plan: Plan) -> Window:
        window = await asyncio.get_running_loop().run_in_executor(self.process, _sent, plan)
        self.rewarded += window.rewards
        return window


def percentiles_ms(windows: Iterable[Window]) -> dict[str, Any]:
    """Return count, mean and percentiles of the latencies of several windows."""
    latencies = histogram()
    for window in windows:
        latencies.decode_and_add(window.latencies)
    return latency_ms(latencies)

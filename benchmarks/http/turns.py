"""What benchmarks of one question over HTTP have in common: a turn of load and what it cost."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from benchmarks.http.servers import CLIENT_CORE, SERVER_CORE, cpu_seconds
from benchmarks.tables import Json
from simulator_client.load import measure
from simulator_client.load_plan import Plan
from simulator_client.load_progress import Silent
from simulator_client.load_summary import latency_ms
from simulator_client.load_tally import Latencies, Tally


class Turn(NamedTuple):
    """tally: of each plan. cpu_s: what each watched process used, warm-up included."""

    tallies: list[Tally]
    cpu_s: dict[str, float]


def turn(plans: Iterable[Plan], watched: Mapping[str, int] | None = None) -> Turn:
    """Carry plans out at the same time, each by a client process of its own. watched: process ids
    by name."""
    watched = watched or {}

    async def all_of_them() -> list[Tally]:
        return await asyncio.gather(*(measure(plan, Silent()) for plan in plans))

    before = {name: cpu_seconds(pid) for name, pid in watched.items()}
    tallies = asyncio.run(all_of_them())
    return Turn(
        tallies, {name: cpu_seconds(pid) - before[name] for name, pid in watched.items()}
    )  # fmt: skip


def added(tallies: Iterable[Tally]) -> Tally:
    """What several turns counted."""
    whole = Tally()
    for each in tallies:
        whole.add(each.as_json())
    return whole


def figures(tally: Tally) -> Json:
    """Of selects: how many in a second, latencies in milliseconds from when each was due, and what
    went wrong.

    late_p99_ms   how late the client itself was, which the latencies contain
    client_core   share of a core that the client used
    unlogged      decisions that were answered before their row was durable
    """
    seconds = sum(tally.counted_s)
    return {
        "per_second": round(tally.answered["select"] / seconds, 1),
        **latency_ms(tally.latencies["select"]),
        "errors": sum(tally.errors.values()),
        "unlogged": tally.unlogged,
        "late_p99_ms": latency_ms(tally.late)["p99"],
        "client_core": round(sum(tally.cores) / len(tally.cores), 3),
    }


def at_least(latencies: Latencies, ms: float) -> int:
    """How many took so long, or longer."""
    return sum(count for us, count in latencies.items() if us >= 1e3 * ms)


def cell(value: float | None, form: str = "{:,.2f}") -> str:
    """Of a table; - where there is nothing."""
    return "-" if value is None else form.format(value)


def expect_two_cores() -> None:
    """Raises SystemExit where there are fewer."""
    if not {SERVER_CORE, CLIENT_CORE} <= os.sched_getaffinity(0):
        raise SystemExit("this needs two cores: one for the server, one for the client")

"""Rounds in which every case has its turn, and what is kept of them."""

import asyncio
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any, Final

from benchmarks.http.cases import ECHO, Case, plan
from benchmarks.http.servers import Server
from simulator_client.load import measure
from simulator_client.load_progress import Silent
from simulator_client.load_summary import latency_ms
from simulator_client.load_tally import Tally

SHARE_OF_SATURATION: Final = 0.7
CLIENT_BUSY: Final = 0.9  # of its core: then the server may be faster than what was measured
PACKAGES: Final = ("uvicorn", "uvloop", "httptools", "fastapi", "pydantic", "numpy", "redis",
                   "mabwiser", "vowpalwabbit")  # fmt: skip
Json = dict[str, Any]
Say = Callable[[str], None]


def saturated(
    cases: list[Case], servers: dict[str, Server], rounds: int, seconds: float, say: Say
) -> dict[str, Json]:
    """Answers a second of each case in each round, as fast as 64 connections go; and what a select
    takes of the server's processor, which does not count what others had of it meanwhile.

    server_core    share of its core that the server had: much below 1, and others had the rest
    client_core    share of its core that the client used
    """
    found: dict[str, Json] = {
        case.name: {"per_second": [], "server_us": [], "server_core": [], "client_core": []}
        for case in cases
    }
    for turn in range(rounds):
        for case in cases:
            server = servers[case.server]
            warmup_s = 2 * seconds if case.rewards == "alone" else seconds / 4
            asked = plan(case, server.url, seconds=seconds, warmup_s=warmup_s, rate=None, seed=turn)
            before = server.cpu_seconds()
            tally = _measured(asked)
            used_s = server.cpu_seconds() - before
            kind = "reward" if case.rewards == "alone" else "select"
            rate = tally.answered[kind] / tally.counted_s[0]
            kept = found[case.name]
            kept["per_second"].append(round(rate, 1))
            kept["client_core"].append(round(tally.cores[0], 3))
            kept["server_core"].append(round(used_s / (warmup_s + tally.counted_s[0]), 3))
            if case.rewards != "alone":  # its warm-up is of selects
                kept["server_us"].append(round(1e6 * used_s / sum(tally.seconds["select"]), 2))
            _count_faults(kept, tally)
            had = f"with {kept['server_core'][-1]:.0%} of its core"
            say(f"round {turn + 1}/{rounds}  {case.name:36} {rate:10,.0f}/s {had}")
    return found


def due(
    cases: list[Case],
    servers: dict[str, Server],
    found: dict[str, Json],
    rounds: int,
    seconds: float,
    say: Say,
) -> None:
    """Latency of selects that fall due at 70 percent of each case's median rate, into `found`."""
    for turn in range(rounds):
        for case in cases:
            if case.rewards == "alone":
                continue
            kept, server = found[case.name], servers[case.server]
            rate = SHARE_OF_SATURATION * median(kept["per_second"])
            asked = plan(
                case, server.url, seconds=seconds, warmup_s=seconds / 4, rate=rate,
                seed=1_000 + turn,
            )  # fmt: skip
            tally = _measured(asked)
            told = latency_ms(tally.latencies["select"])
            kept.setdefault("p50_ms", []).append(told["p50"])
            kept.setdefault("p99_ms", []).append(told["p99"])
            kept.setdefault("late_p99_ms", []).append(latency_ms(tally.late)["p99"])
            _count_faults(kept, tally)
            say(f"at {rate:8,.0f}/s  {case.name:32} p99 {told['p99']:8.2f} ms")


def _measured(asked: Any) -> Tally:
    return asyncio.run(measure(asked, Silent()))


def _count_faults(kept: Json, tally: Tally) -> None:
    kept["errors"] = kept.get("errors", 0) + sum(tally.errors.values())
    kept["unlogged"] = kept.get("unlogged", 0) + tally.unlogged


def judged(cases: list[Case], found: dict[str, Json]) -> dict[str, Json]:
    """Medians, and ratios: a ratio is the median of those of the rounds, whose cases were measured
    one after another."""
    peers = [case.name for case in cases if case.peer]
    for case in cases:
        kept = found[case.name]
        kept["title"] = case.title
        kept["median_per_second"] = median(kept["per_second"])
        kept["client_bound"] = median(kept["client_core"]) >= CLIENT_BUSY
        if kept["server_us"]:
            kept["median_server_us"] = median(kept["server_us"])
            if ECHO in found:
                pairs = zip(found[ECHO]["server_us"], kept["server_us"], strict=True)
                shares = [least / own for least, own in pairs]
                kept["of_echo_by_processor"] = round(median(shares), 4)
        if ECHO in found:
            kept["of_echo"] = _ratio(kept, found[ECHO]["per_second"])
        if case.ours and case.rewards == "mixed" and peers:
            best = [
                max(each) for each in zip(*(found[p]["per_second"] for p in peers), strict=True)
            ]
            kept["times_best_peer"] = _ratio(kept, best)
        for name in ("p50_ms", "p99_ms"):
            if name in kept:
                kept[f"median_{name}"] = median(kept[name])
    return found


def _ratio(kept: Json, others: list[float]) -> float:
    pairs = zip(kept["per_second"], others, strict=True)
    return round(median(own / other for own, other in pairs), 4)


def machine() -> Json:
    """What it was measured on."""
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # the extra `bench` is for the peers alone
            versions[name] = version(name)
    return {"processor": processor(), "python": platform.python_version(), **versions}


def processor() -> str:
    """The name of the processor, where Linux tells it."""
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            lines = [line for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0].partition(":")[2].strip() if lines else platform.machine()

"""Rounds in which every case has its turn, and what is kept of them."""

import asyncio
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.http.cases import ECHO, Case, plan
from benchmarks.http.servers import SERVER_CORE, Server
from benchmarks.machine import disk, stolen_s, told_ms
from benchmarks.tables import Json, say
from simulator_client.load import measure
from simulator_client.load_progress import Silent
from simulator_client.load_summary import latency_ms
from simulator_client.load_tally import Tally

SHARE_OF_SATURATION: Final = 0.5
CLIENT_BUSY: Final = 0.9  # of its core: then the server may be faster than what was measured


def saturated(
    cases: list[Case], servers: dict[str, Server], rounds: int, seconds: float
) -> dict[str, Json]:
    """Answers a second of each case in each round, as fast as 64 connections go; and what a select
    takes of the server's processor, which does not count what others had of it meanwhile.

    server_core    share of its core that the server had: much below 1, and others had the rest
    stolen         share of it that the hypervisor gave to other machines meanwhile
    client_core    share of its core that the client used
    """
    names = ("per_second", "server_us", "server_core", "stolen", "client_core")
    found: dict[str, Json] = {case.name: {name: [] for name in names} for case in cases}
    for turn in range(rounds):
        for case in cases:
            server = servers[case.server]
            warmup_s = 2 * seconds if case.rewards == "alone" else seconds / 4
            asked = plan(case, server.url, seconds=seconds, warmup_s=warmup_s, rate=None, seed=turn)
            before, stolen = server.cpu_seconds(), stolen_s(SERVER_CORE)
            tally = _measured(asked)
            used_s, stolen = server.cpu_seconds() - before, stolen_s(SERVER_CORE) - stolen
            kind = "reward" if case.rewards == "alone" else "select"
            rate = tally.answered[kind] / tally.counted_s[0]
            kept = found[case.name]
            kept["per_second"].append(round(rate, 1))
            kept["client_core"].append(round(tally.cores[0], 3))
            took_s = warmup_s + tally.counted_s[0]
            kept["server_core"].append(round(used_s / took_s, 3))
            kept["stolen"].append(round(stolen / took_s, 3))
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
    folder: Path,
) -> list[Json]:
    """Latency of selects that fall due at half of each case's median rate, into `found`; and
    what the disk took by itself before each round, which no durable answer can be faster than.

    folder: on the disk of the log
    """
    by_itself = []
    for turn in range(rounds):
        by_itself.append(told_ms(disk(folder, seconds)))
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
    return by_itself


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
    return round(float(median(own / other for own, other in pairs)), 4)

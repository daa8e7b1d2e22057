"""The service over HTTP: python -m benchmarks.http [--rounds N] [--seconds S] [--cases A,B].

Server on core 0, client on core 1, 64 connections. Each round measures every case once, and a
figure is the median over the rounds. Then selects fall due at half of a case's own median rate,
and latencies count from the due times.
"""

import fnmatch
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.http.cases import CASES, ECHO, Case, plan
from benchmarks.http.servers import SERVER_CORE, Server, pin_client, started
from benchmarks.machine import disk, machine, stolen_s
from benchmarks.tables import Cells, Json, conclude, parser_of, publish_option, say
from simulator_client.load import REWARD, SELECT, Tally
from simulator_client.load_summary import latency_ms

SHARE_OF_SATURATION: Final = 0.5
CLIENT_BUSY: Final = 0.9  # share of its core at which the client limits the result
COLUMNS: Final = {
    "a second": ("median_per_second", "{:,.0f}"),
    "of bare": ("of_echo", "{:.3f}"),
    "times the best peer": ("times_best_peer", "{:.2f}"),
    "processor, µs": ("median_server_us", "{:,.0f}"),
    "of bare, by processor": ("of_echo_by_processor", "{:.3f}"),
    "p50, ms": ("median_p50_ms", "{:.1f}"),
    "p99, ms": ("median_p99_ms", "{:.1f}"),
    "ahead of the log": ("unlogged", "{:,}"),
}


def saturated(
    cases: list[Case], servers: dict[str, Server], rounds: int, seconds: float
) -> dict[str, Json]:
    """Measure each case in each round, as fast as 64 connections go.

    per_second   selects answered, or rewards of a case of rewards alone
    server_us    processor time of a select, with its share of the rewards
    server_core  share of its core that the server used: others had the rest
    stolen       share of that core that the hypervisor gave to other machines
    client_core  share of its core that the client used
    """
    names = ("per_second", "server_us", "server_core", "stolen", "client_core")
    found: dict[str, Json] = {case.name: {name: [] for name in names} for case in cases}
    for turn in range(rounds):
        for case in cases:
            server, kept = servers[case.server], found[case.name]
            alone = case.rewards == "alone"
            warmup_s = 2 * seconds if alone else seconds / 4
            stolen = stolen_s(SERVER_CORE)
            asked = plan(case, server.url, seconds=seconds, warmup_s=warmup_s, seed=turn)
            tally, used_s = server.under(asked)
            took_s = warmup_s + tally.counted_s
            rate = tally.answered[REWARD if alone else SELECT] / tally.counted_s
            kept["per_second"].append(round(rate, 1))
            kept["client_core"].append(round(tally.core, 3))
            kept["server_core"].append(round(used_s / took_s, 3))
            kept["stolen"].append(round((stolen_s(SERVER_CORE) - stolen) / took_s, 3))
            if not alone:  # whose warm-up consists of selects
                kept["server_us"].append(round(1e6 * used_s / tally.total(SELECT), 2))
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
    """Add to `found` the latencies of selects due at half of each case's median rate.

    Return the latencies of the disk alone before each round: no durable answer can be faster.
    folder: on the disk of the log.
    """
    alone = []
    for turn in range(rounds):
        alone.append(latency_ms(disk(folder, seconds)))
        for case in (case for case in cases if case.rewards != "alone"):
            kept, server = found[case.name], servers[case.server]
            rate = SHARE_OF_SATURATION * median(kept["per_second"])
            asked = {"warmup_s": seconds / 4, "rate": rate, "seed": 1_000 + turn}
            tally, _ = server.under(plan(case, server.url, seconds=seconds, **asked))
            told = latency_ms(tally.latencies[SELECT])
            kept.setdefault("p50_ms", []).append(told["p50"])
            kept.setdefault("p99_ms", []).append(told["p99"])
            kept.setdefault("late_p99_ms", []).append(latency_ms(tally.late)["p99"])
            _count_faults(kept, tally)
            say(f"at {rate:8,.0f}/s  {case.name:32} p99 {told['p99']:8.2f} ms")
    return alone


def _count_faults(kept: Json, tally: Tally) -> None:
    kept["errors"] = kept.get("errors", 0) + tally.errors.total()
    kept["unlogged"] = kept.get("unlogged", 0) + tally.unlogged


def judge(cases: list[Case], found: dict[str, Json]) -> None:
    """Add medians and ratios. A ratio is the median of the rounds' ratios."""
    peers = [found[case.name]["per_second"] for case in cases if case.peer]
    echo = found.get(ECHO)
    for case in cases:
        kept = found[case.name]
        kept["title"] = case.title
        kept["client_bound"] = median(kept["client_core"]) >= CLIENT_BUSY
        for name in ("per_second", "server_us", "p50_ms", "p99_ms"):
            if kept.get(name):
                kept[f"median_{name}"] = median(kept[name])
        if echo:
            kept["of_echo"] = _ratio(kept["per_second"], echo["per_second"])
            if kept["server_us"]:
                kept["of_echo_by_processor"] = _ratio(echo["server_us"], kept["server_us"])
        if case.ours and case.rewards == "mixed" and peers:
            best = [max(rates) for rates in zip(*peers, strict=True)]
            kept["times_best_peer"] = _ratio(kept["per_second"], best)


def _ratio(figures: list[float], others: list[float]) -> float:
    ratios = [own / other for own, other in zip(figures, others, strict=True)]
    return round(float(median(ratios)), 4)


def tables(results: Json) -> dict[str, Cells]:
    """Return the table of the cases, and that of the machine."""
    by_case = results["cases"]
    body = [
        [kept["title"], *(_cell(kept, *column) for column in COLUMNS.values())]
        for kept in (by_case[name] for name in CASES if name in by_case)
    ]
    versions = dict(results["machine"])
    processor, python = versions.pop("processor"), versions.pop("python")
    stolen = median(share for kept in by_case.values() for share in kept["stolen"])
    p50, p99 = (median(part[name] for part in results["disk"]) for name in ("p50", "p99"))
    about = [
        ["", ""],
        ["processor", processor],
        ["versions", ", ".join([f"Python {python}", *(f"{n} {v}" for n, v in versions.items())])],
        ["rounds", f"{results['rounds']} of {results['seconds']:g} s a case"],
        ["server's core given to other machines (median)", f"{stolen:.0%}"],
        ["disk alone, 80 KiB made durable", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"],
    ]
    return {"http": [["", *COLUMNS], *body], "machine": about}


def _cell(kept: Json, figure: str, form: str) -> str:
    if figure not in kept or (figure == "unlogged" and not kept[figure]):
        return ""
    bound = figure == "median_per_second" and kept["client_bound"]
    return ("at least " if bound else "") + form.format(kept[figure])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and keep the results."""
    parser = parser_of("http", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a case (default: 2)")
    parser.add_argument("--cases", default="*", help="names or patterns by comma: 'echo,sqlite-*'")
    publish_option(parser)
    asked = parser.parse_args(arguments)
    names = {name for part in asked.cases.split(",") for name in fnmatch.filter(CASES, part)}
    cases = [case for name, case in CASES.items() if name in names]
    if not cases:
        raise SystemExit(f"no such case; there are: {', '.join(CASES)}")
    if asked.publish and len(cases) < len(CASES):
        raise SystemExit("--publish needs every case; leave out --cases")
    pin_client()
    with tempfile.TemporaryDirectory() as name, started(cases, folder := Path(name)) as servers:
        found = saturated(cases, servers, asked.rounds, asked.seconds)
        alone = due(cases, servers, found, -(-asked.rounds // 2), asked.seconds, folder)
    judge(cases, found)
    results = {
        "machine": machine(),
        "rounds": asked.rounds,
        "seconds": asked.seconds,
        "disk": alone,
        "cases": found,
    }
    conclude("http", results, tables(results), publish=asked.publish)


if __name__ == "__main__":
    main()

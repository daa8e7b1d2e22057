"""The figures of a load test: the machine-readable summary, the table, and remarks."""

from typing import Any, Final

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from simulator_client.load import ERROR, KINDS, Plan, Tally

SCHEMA: Final = 1
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}
BUSY: Final = 0.9  # share of a core at which the client limits the result
LATE_MS: Final = 1.0
REACHED: Final = 0.98  # of the rate: less is more than chance


def latency_ms(latencies: HdrHistogram) -> dict[str, Any]:
    """Return count, mean, percentiles and maximum in milliseconds; None without a latency."""
    count = latencies.get_total_count()
    if not count:
        return {"count": 0, **dict.fromkeys(["mean", *PERCENTILES, "max"])}
    most = latencies.get_max_value()
    us = {
        "mean": latencies.get_mean_value(),
        **{n: min(latencies.get_value_at_percentile(p), most) for n, p in PERCENTILES.items()},
        "max": most,
    }
    return {"count": count} | {name: round(value / 1e3, 3) for name, value in us.items()}


def summary(
    plan: Plan, tally: Tally, *, urls: list[str], experiment: str, policy: str | None, arms: bool
) -> dict[str, Any]:
    """Return the machine-readable summary; null for figures that are not known.

    rate_reached  selects answered per second, within the counted seconds
    latency_ms    of the answers to requests due in those seconds; a timeout counts with its wait
    throughput    answers by kind, and errors, in each second, from the start of the warm-up
    client        core: share of a core that it used; late: from the due time of a select until
                  the client looked at it, which is no fault of the service
    hdr           the latencies as HDR histograms (microseconds), which can be added up
    """
    errors: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
    for (kind, reason), count in sorted(tally.errors.items()):
        errors[kind][reason] = count
    late = latency_ms(tally.late)
    seconds = 1 + max((max(each, default=-1) for each in tally.seconds.values()), default=-1)
    found = {
        "schema": SCHEMA,
        "urls": urls,
        "experiment": experiment,
        "policy": policy,
        "arms_listed": arms,
        "fresh_contexts": plan.requests.numbered,
        "rewards_per_select": plan.rewards_per_select,
        "rewards_alone": plan.rewards_alone,
        "rate_asked": plan.rate,
        "connections": plan.connections,
        "warmup_s": plan.warmup_s,
        "counted_s": round(tally.counted_s, 3),
        "timeout_s": plan.timeout_s,
        "seed": plan.seed,
        "rate_reached": round(tally.answered["select"] / tally.counted_s, 1),
        "rewards_a_second": round(tally.answered["reward"] / tally.counted_s, 1),
        "latency_ms": {kind: latency_ms(tally.latencies[kind]) for kind in KINDS},
        "errors": errors,
        "errors_in_all": tally.errors.total(),
        "unlogged": tally.unlogged,
        "client": {
            "core": round(tally.core, 3),
            "late_p99_ms": late["p99"],
            "late_max_ms": late["max"],
        },
        "throughput": {
            kind: [counts[second] for second in range(seconds)]
            for kind, counts in tally.seconds.items()
        },
        "hdr": {kind: each.encode().decode() for kind, each in tally.latencies.items()},
    }
    return found | {"remarks": remarks(found)}


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what a reader of the figures has to know."""
    said = []
    client, asked = found["client"], found["rate_asked"]
    if client["core"] >= BUSY:
        said.append(
            f"The client was the bottleneck: it used {client['core']:.0%} of a core. The service "
            "may be faster than this; start several clients, or use deploy/k6/load.js."
        )
    elif (client["late_p99_ms"] or 0.0) > LATE_MS:
        said.append(
            f"The client itself was late, by {client['late_p99_ms']:g} ms at p99, though it used "
            f"{client['core']:.0%} of a core: another program had the core. The latencies contain "
            "this delay."
        )
    if asked is not None and found["rate_reached"] < REACHED * asked:
        said.append(
            f"The rate was not reached: {found['rate_reached']:,.0f} of {asked:,.0f} selects per "
            "second had their answer in time. Latencies count from the due time."
        )
    if found["unlogged"]:
        said.append(
            f"{found['unlogged']:,} decisions were answered before they were in the log: it was "
            "gone, or slower than FORAGE_SELECT_LOG_SECONDS."
        )
    if not _answered(found):
        said.append("The service answered nothing.")
    elif found["rewards_alone"] and not found["latency_ms"]["reward"]["count"]:
        said.append("There was no decision to reward: use a longer --warm-up.")
    return said


def missed(found: dict[str, Any], p99_ms: float | None, errors: int | None) -> list[str]:
    """Return the missed limits in words. A test without an answer misses as well."""
    said = []
    if p99_ms is not None:
        for kind, figures in found["latency_ms"].items():
            if figures["count"] and figures["p99"] > p99_ms:
                said.append(f"p99 of {kind}s is {figures['p99']:g} ms, above {p99_ms:g}")
    if errors is not None and found["errors_in_all"] > errors:
        said.append(f"{found['errors_in_all']:,} errors, more than {errors:,}")
    if not _answered(found):
        said.append("the service answered nothing")
    return said


def _answered(found: dict[str, Any]) -> bool:
    return any(found["latency_ms"][kind]["count"] for kind in KINDS)


def rows(found: dict[str, Any]) -> list[list[str]]:
    """Return the table's cells: a row for selects, one for rewards."""
    heads = ["p50", "p90", "p99", "p99.9", "max"]
    cells = [["", "answers/s", *(f"{name} (ms)" for name in heads), "errors"]]
    rates = {"select": found["rate_reached"], "reward": found["rewards_a_second"]}
    for kind, figures in found["latency_ms"].items():
        errors = sum(found["errors"][kind].values())
        if figures["count"] or errors:
            shown = [figures[name] for name in (*PERCENTILES, "max")]
            texts = ["-" if value is None else f"{value:,.2f}" for value in shown]
            cells.append([f"POST /{kind}", f"{rates[kind]:,.0f}", *texts, f"{errors:,}"])
    return cells


def errors_in_words(found: dict[str, Any]) -> str:
    """Return the errors by kind and reason; "" without any."""
    parts = [
        f"{count:,} {kind}s {reason}"
        for kind, by_reason in found["errors"].items()
        for reason, count in by_reason.items()
    ]
    return f"Errors: {', '.join(parts)}." if parts else ""


def facts(found: dict[str, Any]) -> str:
    """Return what was sent, and how fast, in a sentence."""
    policy = f"policy {found['policy']}" if found["policy"] else "policies by their shares"
    arms = "all arms listed" if found["arms_listed"] else "arms not listed"
    contexts = "fresh contexts" if found["fresh_contexts"] else "repeated contexts"
    rewards = (
        "rewards alone" if found["rewards_alone"]
        else f"{found['rewards_per_select']:g} rewards per select"
    )  # fmt: skip
    pace = (
        f"as fast as {found['connections']} connections go" if found["rate_asked"] is None
        else f"{found['rate_asked']:,g} selects due per second"
    )  # fmt: skip
    return (
        f"Experiment {found['experiment']}, {policy}, {arms}, {contexts}, {rewards}: {pace}, for "
        f"{found['counted_s']:g} s after a warm-up of {found['warmup_s']:g} s."
    )


def throughput(found: dict[str, Any]) -> dict[str, list[int]]:
    names = {"select": "selects", "reward": "rewards", ERROR: "errors"}
    return {names[what]: counts for what, counts in found["throughput"].items() if any(counts)}

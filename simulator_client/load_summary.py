"""The figures of a load test: the machine-readable summary, the table, and what to say of them."""

from typing import Any, Final

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from simulator_client.load import Load
from simulator_client.load_tally import ERROR, KINDS, LONGEST_US, Latencies, Tally

SCHEMA: Final = 1
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}
DIGITS: Final = 3
BUSY: Final = 0.9  # share of a core from which a process of the client has no more to give
LATE_MS: Final = 1.0
REACHED: Final = 0.98  # of the rate that was asked for; Poisson's luck is below this


def hdr(latencies: Latencies) -> Any:
    """The library's histogram, in microseconds."""
    histogram = HdrHistogram(1, LONGEST_US, DIGITS)
    for us, count in latencies.items():
        histogram.record_value(max(1, us), count)
    return histogram


def latency_ms(latencies: Latencies) -> dict[str, Any]:
    """Count, mean, percentiles and maximum; None of nothing."""
    count = len(latencies)
    if not count:
        return {"count": 0, **dict.fromkeys(["mean", *PERCENTILES, "max"])}
    histogram = hdr(latencies)
    found = {
        name: _ms(min(histogram.get_value_at_percentile(percent), latencies.worst_us))
        for name, percent in PERCENTILES.items()
    }
    mean_us = sum(us * times for us, times in latencies.items()) / count
    return {"count": count, "mean": _ms(mean_us), **found, "max": _ms(latencies.worst_us)}


def summary(load: Load, tally: Tally) -> dict[str, Any]:
    """The machine-readable summary; null where something is not known.

    rate_reached     selects answered a second, within the seconds that count
    latency_ms       of answers to what fell due in those seconds; of what was given up, how long
                     it was waited for
    throughput       answers and errors in each second, the warm-up's first
    client           cores: share of a core that each process used; late: from when a request was
                     due to when the client looked at it, which is its own doing
    """
    plan = load.plan
    counted_s = max(tally.counted_s)
    errors: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
    for (kind, what), count in sorted(tally.errors.items()):
        errors[kind][what] = count
    late = latency_ms(tally.late)
    found = {
        "schema": SCHEMA,
        "urls": list(load.urls),
        "experiment": load.experiment,
        "policy": load.policy,
        "arms": load.arms,
        "fresh_contexts": bool(plan.numbered),
        "rewards_per_select": plan.rewards_per_select,
        "rewards_alone": plan.rewards_alone,
        "rate_asked": plan.rate,
        "spacing": plan.spacing if plan.rate else None,
        "connections": plan.connections,
        "processes": plan.processes,
        "warmup_s": plan.warmup_s,
        "counted_s": round(counted_s, 3),
        "timeout_s": plan.timeout_s,
        "seed": plan.seed,
        "rate_reached": round(tally.answered["select"] / counted_s, 1),
        "rewards_a_second": round(tally.answered["reward"] / counted_s, 1),
        "latency_ms": {kind: latency_ms(tally.latencies[kind]) for kind in KINDS},
        "errors": errors,
        "errors_in_all": sum(tally.errors.values()),
        "unlogged": tally.unlogged,
        "client": {
            "cores": [round(core, 3) for core in tally.cores],
            "late_p99_ms": late["p99"],
            "late_max_ms": late["max"],
        },
        "throughput": tally.seconds,
        "hdr": {
            kind: hdr(tally.latencies[kind]).encode().decode()
            for kind in KINDS
            if len(tally.latencies[kind])
        },
    }
    return found | {"remarks": remarks(found)}


def remarks(found: dict[str, Any]) -> list[str]:
    """What a reader of the figures has to know, in plain words."""
    said = []
    client, asked = found["client"], found["rate_asked"]
    busiest = max(client["cores"])
    if busiest >= BUSY:
        said.append(
            f"The client was the bottleneck: its busiest process used {busiest:.0%} of a core. "
            "The service may be faster than this; take more --processes, or another machine."
        )
    elif (client["late_p99_ms"] or 0.0) > LATE_MS:
        said.append(
            f"The client was late by itself, by {client['late_p99_ms']:g} ms at p99, though it "
            f"used {busiest:.0%} of a core: something else had it. The latencies contain that."
        )
    if asked is not None and found["rate_reached"] < REACHED * asked:
        said.append(
            f"The rate was not reached: {found['rate_reached']:,.0f} of {asked:,.0f} selects a "
            "second were answered within the time. Latencies count from when each was due."
        )
    if found["unlogged"]:
        said.append(
            f"{found['unlogged']:,} decisions were answered before they were in the log: it was "
            "gone, or slower than FORAGE_SELECT_LOG_SECONDS."
        )
    if not sum(found["latency_ms"][kind]["count"] for kind in KINDS):
        said.append("Nothing was answered.")
    if found["rewards_alone"] and not found["latency_ms"]["reward"]["count"]:
        said.append("There was no decision to reward; --warm-up is when they are made.")
    return said


def missed(found: dict[str, Any], p99_ms: float | None, errors: int | None) -> list[str]:
    """The limits that the test did not keep, in words; nothing answered keeps none."""
    said = []
    if p99_ms is not None:
        for kind, figures in found["latency_ms"].items():
            if figures["count"] and figures["p99"] > p99_ms:
                said.append(f"p99 of {kind}s is {figures['p99']:g} ms, above {p99_ms:g}")
    if errors is not None and found["errors_in_all"] > errors:
        said.append(f"{found['errors_in_all']:,} errors, more than {errors:,}")
    if not sum(found["latency_ms"][kind]["count"] for kind in KINDS):
        said.append("nothing was answered")
    return said


def rows(found: dict[str, Any]) -> list[list[str]]:
    """The table's cells: a row for selects, one for rewards."""
    heads = ["p50", "p90", "p99", "p99.9", "max"]
    cells = [["", "answers/s", *(f"{name} (ms)" for name in heads), "errors"]]
    rates = {"select": found["rate_reached"], "reward": found["rewards_a_second"]}
    for kind, figures in found["latency_ms"].items():
        if not figures["count"] and not found["errors"][kind]:
            continue
        values = [figures[name] for name in (*PERCENTILES, "max")]
        told = ["-" if value is None else f"{value:,.2f}" for value in values]
        errors = sum(found["errors"][kind].values())
        cells.append([f"POST /{kind}", f"{rates[kind]:,.0f}", *told, f"{errors:,}"])
    return cells


def errors_in_words(found: dict[str, Any]) -> str:
    """Errors by kind and status; '' where there are none."""
    parts = [
        f"{count:,} {kind}s {what}"
        for kind, by_what in found["errors"].items()
        for what, count in by_what.items()
    ]
    return f"Errors: {', '.join(parts)}." if parts else ""


def facts(found: dict[str, Any]) -> str:
    """What was sent, and how fast, in a sentence or two."""
    policy = f"policy {found['policy']}" if found["policy"] else "policies by their shares"
    arms = "arms left out" if found["arms"] is None else f"{found['arms']:,} arms spelled out"
    contexts = (
        "a number in each context that never repeats"
        if found["fresh_contexts"]
        else "contexts that repeat"
    )
    if found["rewards_alone"]:
        mix = "rewards alone"
    else:
        mix = f"{found['rewards_per_select']:g} rewards a select"
    if found["rate_asked"] is None:
        pace = f"as fast as {found['connections']} connections go"
    else:
        pace = f"{found['rate_asked']:,g} selects a second due ({found['spacing']})"
    return (
        f"Experiment {found['experiment']}, {policy}, {arms}, {contexts}, {mix}: {pace}, for "
        f"{found['counted_s']:g} s after {found['warmup_s']:g} s to warm up."
    )


def throughput(found: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """What there is to draw over the seconds, by name."""
    names = {"select": "selects", "reward": "rewards", ERROR: "errors"}
    return [(names[what], counts) for what, counts in found["throughput"].items() if any(counts)]


def _ms(us: float) -> float:
    return round(us / 1e3, 3)

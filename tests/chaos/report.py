"""The summary of a run: a table for people, JSON for programs."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.chaos.campaign import Result

SHOWN = 20
"""Violations printed; the JSON has all."""

COUNTS = {
    "events in the log": "events",
    "versions activated": "versions",
    "selects answered": "selects",
    "decision rows": "rows",
    "rewards acknowledged": "acknowledged",
    "corrections": "corrected",
    "jumps of clocks": "jumps",
    "gone with the log's end, told": "gone",
    "lost": "lost",
    "counted twice": "doubled",
}


def summary(
    results: Sequence[Result], disk: str, disk_wrong: Sequence[str], seed: int
) -> dict[str, Any]:
    violations = [f"{each.name}: {line}" for each in results for line in each.violations]
    violations += [f"disk_full: {line}" for line in disk_wrong]
    return {
        "kills": sum(each.kills.total() for each in results),
        "stops": sum(each.stops for each in results),
        "redis_faults": sum(each.redis_faults.total() for each in results),
        "network_faults": sum(each.network_faults.total() for each in results),
        "losses": sum(each.losses.total() for each in results),
        "jumps": sum(each.jumps for each in results),
        "gone": sum(each.gone for each in results),
        "selects": sum(each.selects for each in results),
        "acknowledged": sum(each.acknowledged for each in results),
        "lost": sum(each.lost for each in results),
        "doubled": sum(each.doubled for each in results),
        "heads_equal": all(each.heads_equal for each in results) if results else None,
        "disk_full": disk,
        "hosts": results[-1].hosts if results else "loopback",
        "seed": seed,
        "seconds": round(sum(each.seconds for each in results), 1),
        "violations": violations,
        "campaigns": {each.name: vars(each) for each in results},
    }


def table(results: Sequence[Result], told: dict[str, Any]) -> str:
    lines = _lines(results, told) if results else []
    lines += [f"disk_full: {told['disk_full']}", f"seed: {told['seed']}"]
    violations = told["violations"]
    lines += [f"VIOLATION {line}" for line in violations[:SHOWN]]
    if len(violations) > SHOWN:
        lines.append(f"... and {len(violations) - SHOWN} more")
    return "\n".join(lines)


def _lines(results: Sequence[Result], told: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("", *(each.name for each in results), "all")]
    for what in ("service", "service, power", "redis", "redis, power", "trainer"):
        each_kills = [each.kills[what] for each in results]
        rows.append((f"kill -9 of {what}", *map(str, each_kills), str(sum(each_kills))))
    losses = [each.losses.total() for each in results]
    rows.append(("losses of the log's end", *map(str, losses), str(sum(losses))))
    stops = [each.stops for each in results]
    rows.append(("SIGTERM of service", *map(str, stops), str(sum(stops))))
    for what, name in (("Redis faults", "redis_faults"), ("network faults", "network_faults")):
        faults = [getattr(each, name).total() for each in results]
        rows.append((what, *map(str, faults), str(sum(faults))))
    for label, name in COUNTS.items():
        counts = [getattr(each, name) for each in results]
        rows.append((label, *map(str, counts), str(sum(counts))))
    equal = [("no", "yes")[each.heads_equal] for each in results]
    rows.append(("heads equal the log's fold", *equal, ("no", "yes")[told["heads_equal"]]))
    seconds = [f"{each.seconds:.0f}" for each in results]
    rows.append(("seconds", *seconds, f"{told['seconds']:.0f}"))
    lines = ["  ".join((row[0].ljust(30), *(cell.rjust(8) for cell in row[1:]))) for row in rows]
    slowest_s = max(each.slowest_stop_seconds for each in results)
    lines.append(f"slowest stop: {slowest_s:.1f} s")
    for what, name in (("Redis faults", "redis_faults"), ("network faults", "network_faults")):
        every = Counter[str]()
        for each in results:
            every += getattr(each, name)
        kinds = [f"{kind} {count}" for kind, count in sorted(every.items())]
        lines.append(f"{what}: {', '.join(kinds) or 'none'}")
    recoveries = sorted(second for each in results for second in each.recoveries)
    if recoveries:
        p99 = recoveries[min(round(0.99 * len(recoveries)), len(recoveries) - 1)]
        lines.append(f"ready again after a loss: p99 {p99:.1f} s, at most {recoveries[-1]:.1f} s")
    if shim := results[-1].shim_because:
        lines.append(f"no loss of power, and no wrong clock: {shim}")
    because = results[-1].loopback_because
    lines.append(f"hosts: {told['hosts']}{because and f' ({because})'}")
    return lines

"""The summary of a run: a table for people, JSON for programs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.chaos.campaign import Result

SHOWN: Final = 20
"""Violations printed; the JSON has all."""

KILLED: Final = ("service", "service, power", "worker", "server", "server, power", "trainer")
COUNTS: Final[Mapping[str, Callable[[Result], int]]] = {
    "losses of the log's end": lambda result: result.losses.total(),
    "SIGTERM of service": lambda result: result.stops,
    "server faults": lambda result: result.server_faults.total(),
    "events in the log": lambda result: result.events,
    "versions activated": lambda result: result.versions,
    "selects answered": lambda result: result.selects,
    "decision rows": lambda result: result.rows,
    "rewards acknowledged": lambda result: result.acknowledged,
    "corrections": lambda result: result.corrected,
    "gone with the log's end": lambda result: result.gone,
    "requests cut off by a kill": lambda result: result.cut_off,
    "lost": lambda result: result.lost,
    "counted twice": lambda result: result.doubled,
    "heads equal the log's fold": lambda result: result.heads_equal,
    "seconds": lambda result: round(result.seconds),
}


def summary(
    results: Sequence[Result], disk: str, disk_wrong: Sequence[str], seed: int
) -> dict[str, Any]:
    violations = [f"{each.name}: {line}" for each in results for line in each.violations]
    violations += [f"disk_full: {line}" for line in disk_wrong]
    return {
        "kills": sum(each.kills.total() for each in results),
        **{name: sum(map(count, results)) for name, count in COUNTS.items()},
        "disk_full": disk,
        "seed": seed,
        "violations": violations,
        "campaigns": {each.name: vars(each) for each in results},
    }


def table(results: Sequence[Result], told: Mapping[str, Any]) -> str:
    lines = _lines(results) if results else []
    lines += [f"disk_full: {told['disk_full']}", f"seed: {told['seed']}"]
    violations = told["violations"]
    lines += [f"VIOLATION {line}" for line in violations[:SHOWN]]
    if len(violations) > SHOWN:
        lines.append(f"... and {len(violations) - SHOWN} more")
    return "\n".join(lines)


def _lines(results: Sequence[Result]) -> list[str]:
    rows = [("", *(each.name for each in results))]
    rows += [
        (f"kill -9 of {what}", *(str(each.kills[what]) for each in results)) for what in KILLED
    ]
    rows += [(name, *(str(count(each)) for each in results)) for name, count in COUNTS.items()]
    lines = ["  ".join((row[0].ljust(30), *(cell.rjust(8) for cell in row[1:]))) for row in rows]
    lines.append(f"slowest stop: {max(each.slowest_stop_seconds for each in results):.1f} s")
    faults = sum((each.server_faults for each in results), Counter[str]())
    lines.append("server faults: " + ", ".join(f"{kind} {n}" for kind, n in sorted(faults.items())))
    if recoveries := [second for each in results for second in each.recoveries]:
        lines.append(f"ready again after a loss: at most {max(recoveries):.1f} s")
    if shim := results[0].shim_because:
        lines.append(f"no loss of power: {shim}")
    return lines

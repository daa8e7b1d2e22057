"""make drills: break a service as the alerts foresee it, and see each fire within its stated time.

A real service on Redis, a trainer, and Prometheus with the configuration and rules of
deploy/prometheus. Prints stated and measured times, and writes them to out/drills.json; the exit
status is 1 where an alert came late, fired before its cause or did not end, or where a policy whose
head was started anew did not decide again.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from tests.drills.breakable import FRAGILE
from tests.drills.stand import ROOT, RULES, Stand, kill, stand
from tests.drills.traffic import Traffic

ENOUGH = {"honest": 1_100, "poisoned": 1_100, "sure": 500, "net": 500, FRAGILE: 500}
"""Rewards of each policy before anything is broken: a shift is detected from 1,000 on."""
WARM_S = 600.0
OVER_S, QUIET_S = 60.0, 5.0
OUT = ROOT / "out" / "drills.json"
UNITS = {"s": 1, "m": 60, "h": 3_600}


@dataclass(frozen=True)
class Drill:
    """An alert, of a policy or of none, and how to cause it."""

    alert: str
    policy: str
    cause: Callable[[], None]


def stated(alert: str) -> float:
    """Return the seconds within which an alert fires, which its rule states as "1m30s"."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    [text] = [
        rule["annotations"]["within"]
        for group in groups
        for rule in group["rules"]
        if rule["alert"] == alert
    ]
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)([smh])", text))


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)  # noqa: T201


def warm_up(place: Stand, traffic: Traffic) -> None:
    """Wait until every policy has enough rewards, and a trained version serves."""
    deadline = time.monotonic() + WARM_S
    url = f"{place.url}/experiments/drill/policies/net"
    while (
        any(traffic.rewarded[policy] < count for policy, count in ENOUGH.items())
        or not httpx.get(url, timeout=10).json()["version"]
    ):
        if time.monotonic() > deadline:
            raise SystemExit(f"not warm after {WARM_S:g} s: {traffic.rewarded}")
        time.sleep(1)


def stop_exploring(place: Stand) -> None:
    """Take the floor from `sure`: what is left is a posterior without doubt."""
    url = f"{place.url}/experiments/drill"
    definition = httpx.get(url, timeout=10).json()["definition"]
    definition["policies"]["sure"]["epsilon"] = 0.0
    httpx.put(url, json=definition, timeout=10).raise_for_status()


def hand_back(place: Stand) -> list[str]:
    """Start the broken head anew. Return what the service did not say or do."""
    log = f"policy {FRAGILE!r}"
    counted = place.fallback_decisions(FRAGILE)
    missing = [
        what
        for what, found in {
            "the metric of the fallback": counted > 0,
            "the line that the fallback decides": place.said(f"the fallback decides for {log}"),
        }.items()
        if not found
    ]
    url = f"{place.url}/experiments/drill/policies/{FRAGILE}/reset"
    httpx.post(url, timeout=10).raise_for_status()
    if not waited(lambda: place.said(f"{log} decides again")):
        return [*missing, "the line that the policy decides again"]
    counted = place.fallback_decisions(FRAGILE)
    time.sleep(QUIET_S)
    if place.fallback_decisions(FRAGILE) > counted:
        missing.append("the end of the fallback")
    return missing


def waited(true: Callable[[], bool]) -> bool:
    """Wait until something is true, for OVER_S at most. Return whether it is."""
    deadline = time.monotonic() + OVER_S
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(1)
    return True


def measured(place: Stand, *drills: Drill) -> list[tuple[str, str, float, float | None]]:
    """Cause all; return alert, policy, stated and measured seconds (None: never) of each."""
    begun, fired = dict[str, float](), dict[str, float]()
    for drill in drills:
        say(f"cause of {drill.alert}")
        begun[drill.alert] = time.monotonic()
        drill.cause()
    while waiting := [drill for drill in drills if drill.alert not in fired]:
        firing, now = place.firing(), time.monotonic()
        for drill in waiting:
            if (drill.alert, drill.policy) in firing:
                fired[drill.alert] = now - begun[drill.alert]
                say(f"{drill.alert} {drill.policy} fires after {fired[drill.alert]:.0f} s")
        if all(now - begun[drill.alert] > 1.5 * stated(drill.alert) for drill in waiting):
            break
        time.sleep(1)
    return [
        (drill.alert, drill.policy, stated(drill.alert), fired.get(drill.alert)) for drill in drills
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("--quiet-seconds", type=float, default=75.0, help="before the first cause")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="drills", ignore_cleanup_errors=True) as folder,
        stand(Path(folder)) as place,
    ):
        traffic = Traffic(place.url)
        traffic.start()
        say("warming up")
        warm_up(place, traffic)
        say(f"nothing is wrong for {options.quiet_seconds:g} s")
        time.sleep(options.quiet_seconds)
        strays = place.firing()
        found = measured(place, Drill("ForageFallback", FRAGILE, place.break_head))
        missing = hand_back(place)
        found += measured(
            place,
            Drill("ForageTrainingOverdue", "net", lambda: kill(place.trainer)),
            Drill("ForageRewardShift", "poisoned", traffic.poison.set),
            Drill("ForageExplorationCollapsed", "sure", lambda: stop_exploring(place)),
        )
        # False rewards put the predictions of one policy off, and another earns more once it no
        # longer explores: no false alarms.
        expected = {(alert, policy) for alert, policy, *_ in found}
        strays |= {key for key in place.firing() - expected if key[1] not in {"poisoned", "sure"}}
        found += measured(place, Drill("ForageLogGone", "", place.redis.kill))
        place.redis.start()
        over = {("ForageLogGone", ""), ("ForageFallback", FRAGILE)}
        waited(lambda: not over & place.firing())
        strays |= place.firing() & over
        found += measured(place, Drill("ForageDown", "", lambda: kill(place.service)))
        traffic.stop()
    for alert, _, within, after in found:
        say(f"{alert}: stated {within:.0f} s, measured {after and round(after)} s")
    for alert, policy in sorted(strays):
        say(f"fired without a cause, or did not end: {alert} {policy}")
    for what in missing:
        say(f"the service lacked {what}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    late = any(after is None or after > within for *_, within, after in found)
    return 1 if late or strays or missing else 0


if __name__ == "__main__":
    raise SystemExit(main())

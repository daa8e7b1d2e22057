"""make drills: break a service as the alerts foresee it, and see each fire within its stated time.

A real service on Redis, a trainer, and Prometheus with the configuration and rules of
deploy/prometheus. Prints and writes (out/drills.json) a table of stated and measured times; the
exit status is 1 where an alert came late, or fired before its cause.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import yaml

from tests.drills.stand import ROOT, RULES, Stand, kill, seconds, stand
from tests.drills.traffic import Traffic

ENOUGH = {"honest": 1_100, "poisoned": 1_100, "sure": 500, "net": 500}
"""Rewards of each policy before anything is broken: a shift is told from 1,000 on."""

WARM_S = 600.0


@dataclass
class Drill:
    """alert, of a policy or '': stated and measured seconds from the cause; None: never."""

    cause: str
    alert: str
    policy: str
    stated_s: float
    begun: float = 0.0
    measured_s: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.alert, self.policy

    @property
    def in_time(self) -> bool:
        return self.measured_s is not None and self.measured_s <= self.stated_s


def stated(factor: float) -> dict[str, float]:
    """Seconds by alert. Only what `for` takes of it is shortened."""
    found = {}
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            waits = seconds(rule.get("for", "0s"))
            found[rule["alert"]] = seconds(rule["annotations"]["within"]) - waits * (1 - factor)
    return found


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)  # noqa: T201


def warm_up(place: Stand, traffic: Traffic) -> None:
    """Until every policy is known well enough, and a trained version serves."""
    deadline = time.monotonic() + WARM_S
    while not (_enough(traffic) and _trained(place)):
        if time.monotonic() > deadline:
            raise SystemExit(f"not warm after {WARM_S:g} s: {traffic.rewarded}")
        time.sleep(1)


def _enough(traffic: Traffic) -> bool:
    return all(traffic.rewarded[policy] >= count for policy, count in ENOUGH.items())


def _trained(place: Stand) -> bool:
    answer = httpx.get(f"{place.url}/experiments/drill/policies/net", timeout=10).json()
    return bool(answer["version"])


def stop_exploring(place: Stand) -> None:
    """`sure` loses its floor: what is left is a posterior without doubt."""
    url = f"{place.url}/experiments/drill"
    definition = httpx.get(url, timeout=10).json()["definition"]
    definition["policies"]["sure"]["epsilon"] = 0.0
    httpx.put(url, json=definition, timeout=10).raise_for_status()


def watch(place: Stand, drills: Iterable[Drill]) -> None:
    """Until all have fired, or the last one's time is over."""
    waiting = list(drills)
    while waiting:
        firing, now = place.firing(), time.monotonic()
        for drill in list(waiting):
            if drill.key in firing:
                drill.measured_s = now - drill.begun
                say(f"{drill.alert} {drill.policy} fires after {drill.measured_s:.0f} s")
                waiting.remove(drill)
            elif now - drill.begun > 1.5 * drill.stated_s:
                say(f"{drill.alert} {drill.policy} does not fire")
                waiting.remove(drill)
        time.sleep(1)


def bring_about(place: Stand, drills: list[tuple[Drill, Callable[[], None]]]) -> None:
    for drill, cause in drills:
        say(drill.cause)
        drill.begun = time.monotonic()
        cause()
    watch(place, [drill for drill, _ in drills])


def play(place: Stand, quiet_s: float) -> tuple[list[Drill], set[tuple[str, str]]]:
    """The drills, and what fired without a cause."""
    within = stated(place.factor)
    traffic = Traffic(place.url)
    traffic.start()
    say("warming up")
    warm_up(place, traffic)
    say(f"nothing is wrong for {quiet_s:g} s")
    time.sleep(quiet_s)
    early = place.firing()

    def poison() -> None:
        traffic.poison = True

    def drill(cause: str, alert: str, policy: str = "") -> Drill:
        return Drill(cause, alert, policy, within[alert])

    learning = [
        (drill("kill the trainer", "ForageTrainingOverdue", "net"), lambda: kill(place.trainer)),
        (drill("poison rewards", "ForageRewardShift", "poisoned"), poison),
        (
            drill("collapse exploration", "ForageExplorationCollapsed", "sure"),
            lambda: stop_exploring(place),
        ),
    ]
    bring_about(place, learning)
    expected = {one.key for one, _ in learning}
    # What follows from false rewards is no false alarm: predictions of the poisoned are off.
    strays = {key for key in place.firing() - expected if key[1] != "poisoned"}
    serving = [(drill("stop Redis", "ForageLogGone"), place.redis.kill)]
    bring_about(place, serving)
    say("Redis is started again")
    place.redis.start()
    cleared = time.monotonic()
    while ("ForageLogGone", "") in place.firing() and time.monotonic() - cleared < 60:
        time.sleep(1)
    say(f"ForageLogGone is over after {time.monotonic() - cleared:.0f} s")
    if ("ForageLogGone", "") in place.firing():
        strays.add(("ForageLogGone that does not end", ""))
    down = [(drill("kill the service", "ForageDown"), lambda: kill(place.service))]
    bring_about(place, down)
    traffic.stop()
    return [one for one, _ in [*learning, *serving, *down]], early | strays


def table(drills: Iterable[Drill]) -> str:
    lines = ["| cause | alert | stated, s | measured, s |", "|---|---|--:|--:|"]
    for one in drills:
        measured = "never" if one.measured_s is None else f"{one.measured_s:.0f}"
        lines.append(f"| {one.cause} | {one.alert} | {one.stated_s:.0f} | {measured} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument(
        "--factor", type=float, default=1.0, help="of every `for` of the rules (default 1: as is)"
    )
    parser.add_argument("--quiet-seconds", type=float, default=75.0, help="before the first cause")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "drills.json")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="drills", ignore_cleanup_errors=True) as folder,
        stand(Path(folder), options.factor) as place,
    ):
        drills, strays = play(place, options.quiet_seconds)
    print(f"\n{table(drills)}\n")  # noqa: T201
    if options.factor != 1:
        say(f"every `for` was {options.factor:g} times as long as it is deployed")
    for alert, policy in sorted(strays):
        say(f"fired without a cause: {alert} {policy}")
    report = {"factor": options.factor, "drills": [asdict(one) for one in drills]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if all(one.in_time for one in drills) and not strays else 1


if __name__ == "__main__":
    raise SystemExit(main())

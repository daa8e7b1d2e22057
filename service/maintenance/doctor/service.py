"""A service that runs: what it answers, its clock, its experiments, and whether somebody trains."""

import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from service import __version__
from service.maintenance.doctor.checks import Check
from service.settings import Settings

TIMEOUT_S = 5.0
SKEW_S = 2.0  # the Date of an answer has whole seconds
QUIET = 1_000
"""Decisions after which somebody should have been heard of."""
OVERDUE = 1.2
"""Training that fell due at n rewards and is not done at so many times n: nobody trains."""

MEMORY = re.compile(r'^forage_experiment_memory_bytes\{experiment="([^"]*)"\} (\S+)$', re.MULTILINE)

COUNTERS = {
    "forage_lost_decisions_total": (
        "decisions were lost while the log was gone",
        "raise FORAGE_BUFFER_DECISIONS, and see why the log was gone",
    ),
    "forage_damaged_snapshots_total": (
        "snapshots are damaged",
        "look at the disk; forage audit says whether the log is whole",
    ),
}


async def examine_service(settings: Settings, url: str) -> list[Check]:
    headers = settings.key_headers
    try:
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, headers=headers) as client:
            return [check async for check in _examine(client, settings.experiment_memory_bytes)]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as fault:
        say = f"{url} cannot be reached, or is no Forage ({type(fault).__name__})"
        return [Check("service", "fault", say, "start it: forage serve; or correct --url")]


async def _examine(client: httpx.AsyncClient, memory_bytes: int) -> AsyncIterator[Check]:
    before = time.time()
    answer = (await client.get("/healthz")).raise_for_status()
    after = time.time()
    health = answer.json()
    for check in _health(health):
        yield check
    if health["version"] != __version__:
        say = f"it is version {health['version']}, and this is {__version__}"
        yield Check("version", "warning", say, "run the same version everywhere")
    if date := answer.headers.get("date"):
        yield _clock(date, before, after)
    if (await client.get("/readyz")).status_code == 200:
        yield Check("ready", "ok", "it has folded its log and takes traffic")
    else:
        say = "it is not ready: it has not folded its log to the end, or cannot write it"
        yield Check("ready", "fault", say, "its log says which")
    listed = await client.get("/experiments")
    if listed.status_code in (401, 403):
        say = f"experiments are not shown to us ({listed.status_code})"
        yield Check("experiments", "warning", say, "set FORAGE_KEY to a key of scope admin")
        return
    if listed.status_code == 421:
        say = "it does not answer for the host of --url"
        yield Check("experiments", "warning", say, "list that host in FORAGE_ALLOWED_HOSTS")
        return
    async for check in _experiments(client, listed.raise_for_status().json()["experiments"]):
        yield check
    metrics = await client.get("/metrics")
    if metrics.status_code == 200:
        for check in (*_counters(metrics.text), *_memories(metrics.text, memory_bytes)):
            yield check


def _health(health: Mapping[str, Any]) -> Iterator[Check]:
    if health["status"] == "ok":
        say = f"Forage {health['version']} on {health['store']}: {health['durability']}"
        yield Check("service", "ok", say)
    else:
        say = "it is degraded: the log cannot be written, and no reward is taken"
        yield Check("service", "fault", say, "look at the store; docs/troubleshooting.md")
    if health.get("quarantined"):
        say = f"{health['quarantined']} experiments are not served: an event cannot be folded"
        yield Check("quarantine", "fault", say, "forage repair shows the event")


async def _experiments(
    client: httpx.AsyncClient, experiments: list[Mapping[str, Any]]
) -> AsyncIterator[Check]:
    if not experiments:
        yield Check("experiments", "warning", "there are none", "forage init; forage serve --help")
    for experiment in experiments:
        path = f"/experiments/{experiment['name']}/policies"
        policies = (await client.get(path)).raise_for_status().json()["policies"]
        for check in examine_experiment(experiment, policies):
            yield check


def examine_experiment(
    experiment: Mapping[str, Any], policies: list[Mapping[str, Any]]
) -> Iterator[Check]:
    name = f"experiment {experiment['name']}"
    decisions = sum(policy["decisions"] for policy in policies)
    rewards = sum(policy["rewards"] for policy in policies)
    fine = True
    if not experiment["arms"]:
        yield Check(name, "warning", "it has no arms", "POST /arms, or send them with requests")
        fine = False
    if decisions >= QUIET and not rewards:
        say = f"{decisions:,} decisions and not one reward"
        yield Check(name, "warning", say, "see that pages call /reward, and with which answers")
        fine = False
    for policy in policies:
        for check in _policy(f"{name}, {policy['name']}", policy, decisions):
            yield check
            fine = False
    if fine:
        yield Check(name, "ok", f"{decisions:,} decisions, {rewards:,} rewards")


def _policy(name: str, policy: Mapping[str, Any], decisions: int) -> Iterator[Check]:
    if policy["share"] > 0 and not policy["decisions"] and decisions >= QUIET:
        say = f"has a share of the traffic and no decision of {decisions:,}"
        yield Check(name, "warning", say, "see whether every request names another policy")
    head = policy["head"]
    if head is not None and not head["smallest_eigenvalue"] > 0:
        say = f"the smallest eigenvalue of its head is {head['smallest_eigenvalue']:.3g}"
        yield Check(name, "fault", say, "POST .../reset starts it from the prior")
    due, rewards = policy["training_due_at"], policy["rewards"]
    if policy["training_due"] and due and rewards > OVERDUE * due:
        trained = "and it never was" if policy["trained_to"] is None else "since the last"
        yield Check(
            name,
            "warning",
            f"training fell due at {due:,} rewards, it has {rewards:,}, {trained}: nobody trains",
            "run `forage train --follow` beside the service, and read its log",
        )


def _counters(metrics: str) -> Iterator[Check]:
    for metric, (say, advice) in COUNTERS.items():
        values = re.findall(rf"^{metric}(?:\{{[^}}]*\}})? (\S+)$", metrics, re.MULTILINE)
        if count := sum(map(float, values)):
            yield Check("since its start", "warning", f"{count:,.0f} {say}", advice)


def _memories(metrics: str, most: int) -> Iterator[Check]:
    for name, taken in MEMORY.findall(metrics):
        if float(taken) > most:
            say = f"it takes some {float(taken) / 2**20:,.0f} MiB, and may take {most / 2**20:,.0f}"
            advice = "raise FORAGE_EXPERIMENT_MEMORY_BYTES, or define it with fewer columns or arms"
            yield Check(f"experiment {name}", "warning", say, advice)


def _clock(date: str, before: float, after: float) -> Check:
    skew = (before + after) / 2 - parsedate_to_datetime(date).timestamp()
    if abs(skew) > SKEW_S + (after - before):
        say = f"ours is {skew:+.0f} s from that of the service"
        return Check("clock", "warning", say, "run NTP on both: times of rewards are read from it")
    return Check("clock", "ok", "ours agrees with that of the service")

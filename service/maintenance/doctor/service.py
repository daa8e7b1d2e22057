"""A running service: what it answers, its clock, its experiments, and whether a trainer runs."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from service import __version__
from service.maintenance.doctor.checks import Check, fault, ok, warning
from service.settings import Settings

TIMEOUT_S = 5.0
SKEW_S = 2.0  # the Date of an answer has whole seconds
QUIET = 1_000
"""Decisions after which a reward, or a decision of each policy, is expected."""
OVERDUE = 1.2
"""A training that fell due at n rewards and is not done at so many times n has no trainer."""

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

GAUGES = {
    "forage_integrity_faults": (
        "parts of the store cannot be read",
        "docs/runbooks.md#store-damaged; its log names them",
    ),
}

JsonObject = Mapping[str, Any]


async def examine_service(settings: Settings, url: str) -> list[Check]:
    headers = settings.key_headers
    try:
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, headers=headers) as client:
            return [check async for check in _examine(client, settings.experiment_memory_bytes)]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        say = f"{url} cannot be reached, or is no Forage ({type(error).__name__})"
        return [fault("service", say, "start it: forage serve; or correct --url")]


async def _ask_health(client: httpx.AsyncClient) -> httpx.Response:
    answer = await client.get("/healthz")
    return answer if answer.status_code == 503 else answer.raise_for_status()


async def _examine(client: httpx.AsyncClient, memory_bytes: int) -> AsyncIterator[Check]:
    before = time.time()
    answer = await _ask_health(client)
    after = time.time()
    health = answer.json()
    for check in _health(health):
        yield check
    if health["version"] != __version__:
        say = f"it is version {health['version']}, and this is {__version__}"
        yield warning("version", say, "run the same version everywhere")
    if date := answer.headers.get("date"):
        yield _clock(date, before, after)
    if (await client.get("/readyz")).status_code == 200:
        yield ok("ready", "it has folded its log and takes traffic")
    else:
        say = "it is not ready: it has not folded its log to the end, or cannot write it"
        yield fault("ready", say, "its log says which")
    listed = await client.get("/experiments")
    if listed.status_code in (401, 403):
        say = f"it does not show us experiments ({listed.status_code})"
        yield warning("experiments", say, "set FORAGE_KEY to a key of scope admin")
        return
    if listed.status_code == 421:
        say = "it does not answer for the host of --url"
        yield warning("experiments", say, "list that host in FORAGE_ALLOWED_HOSTS")
        return
    async for check in _experiments(client, listed.raise_for_status().json()["experiments"]):
        yield check
    metrics = await client.get("/metrics")
    if metrics.status_code == 200:
        for check in _metrics(metrics.text, memory_bytes):
            yield check


def _health(health: JsonObject) -> Iterator[Check]:
    if health["status"] == "ok":
        say = f"Forage {health['version']} on {health['store']}: {health['durability']}"
        yield ok("service", say)
    else:
        say = f"it is {health['status']}: it cannot write the log, and accepts no reward"
        yield fault("service", say, "look at the store; docs/troubleshooting.md")
    if health.get("quarantined"):
        say = f"{health['quarantined']} experiments are not served: an event cannot be folded"
        yield fault("quarantine", say, "forage repair shows the event")


async def _experiments(
    client: httpx.AsyncClient, experiments: Sequence[JsonObject]
) -> AsyncIterator[Check]:
    if not experiments:
        yield warning("experiments", "there are none", "forage init; forage serve --help")
    for experiment in experiments:
        path = f"/experiments/{experiment['name']}/policies"
        policies = (await client.get(path)).raise_for_status().json()["policies"]
        for check in examine_experiment(experiment, policies):
            yield check


def examine_experiment(experiment: JsonObject, policies: Sequence[JsonObject]) -> list[Check]:
    name = f"experiment {experiment['name']}"
    decisions = sum(policy["decisions"] for policy in policies)
    rewards = sum(policy["rewards"] for policy in policies)
    found = []
    if not experiment["arms"]:
        advice = "POST /arms, or send them with requests"
        found.append(warning(name, "it has no arms", advice))
    if decisions >= QUIET and not rewards:
        advice = "see that pages call /reward, and with which answers"
        found.append(warning(name, f"{decisions:,} decisions and not one reward", advice))
    for policy in policies:
        found += _policy(f"{name}, {policy['name']}", policy, decisions)
    return found or [ok(name, f"{decisions:,} decisions, {rewards:,} rewards")]


def _policy(name: str, policy: JsonObject, decisions: int) -> Iterator[Check]:
    if policy["share"] > 0 and not policy["decisions"] and decisions >= QUIET:
        say = f"has a share of the traffic and no decision of {decisions:,}"
        yield warning(name, say, "see whether every request names another policy")
    head = policy["head"]
    if head is not None and not head["smallest_eigenvalue"] > 0:
        say = f"the smallest eigenvalue of its head is {head['smallest_eigenvalue']:.3g}"
        yield fault(name, say, "POST .../reset starts it from the prior")
    due, rewards = policy["training_due_at"], policy["rewards"]
    if policy["training_due"] and due and rewards > OVERDUE * due:
        trained = "and it never was" if policy["trained_to"] is None else "since the last"
        say = f"training fell due at {due:,} rewards, it has {rewards:,}, {trained}: nobody trains"
        yield warning(name, say, "run `forage train --follow` beside the service, and read its log")


def _metrics(text: str, memory_bytes: int) -> Iterator[Check]:
    counted = dict.fromkeys((*COUNTERS, *GAUGES), 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in counted:
                counted[sample.name] += sample.value
            elif sample.name == "forage_experiment_memory_bytes" and sample.value > memory_bytes:
                taken, most = sample.value / 2**20, memory_bytes / 2**20
                yield warning(
                    f"experiment {sample.labels['experiment']}",
                    f"it takes some {taken:,.0f} MiB, and may take {most:,.0f}",
                    "raise FORAGE_EXPERIMENT_MEMORY_BYTES, or define it with fewer columns or arms",
                )
    for name, (say, advice) in COUNTERS.items():
        if counted[name]:
            yield warning("since its start", f"{counted[name]:,.0f} {say}", advice)
    for name, (say, advice) in GAUGES.items():
        if counted[name]:
            yield fault("integrity", f"{counted[name]:,.0f} {say}", advice)


def _clock(date: str, before: float, after: float) -> Check:
    skew = (before + after) / 2 - parsedate_to_datetime(date).timestamp()
    if abs(skew) > SKEW_S + (after - before):
        say = f"ours is {skew:+.0f} s from that of the service"
        return warning("clock", say, "run NTP on both: times of rewards are read from it")
    return ok("clock", "ours agrees with that of the service")

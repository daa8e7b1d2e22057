"""The checks of `forage doctor`: what a service needs to start, and how a running one is.

The doctor starts no service, folds no log and changes no data.
"""

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, get_args

import httpx

from service import __version__
from service.clock import SYSTEM, Clock
from service.errors import ConfigurationError, ForageError, NoTables
from service.log.reading import opened
from service.log.stores import POSTGRES, Store, open_store
from service.log.stores.sqlite import SqliteStore
from service.offline.checking import check_file
from service.security.keys import loopback, read_keys
from service.settings import Settings
from service.training import can_train

PROBE_TIMEOUT_S = 5.0

STORE_SKEW_S = 1.0
SERVICE_SKEW_S = 2.0  # the Date header of an answer has whole seconds

OVERDUE = 1.2
"""Multiple of the rewards at which a training fell due: one that is still not done there has no
trainer."""

SYNC_REDIS = "CONFIG SET appendonly yes, appendfsync always, and the same in redis.conf"
SYNC_POSTGRES = "ALTER SYSTEM SET synchronous_commit = on (fsync likewise), and reload"

Level = Literal["ok", "warning", "fault"]

JsonAnswer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. name: what was checked. advice: what to do; empty where level is
    ok."""

    name: str
    level: Level
    message: str
    advice: str = ""


def ok(name: str, message: str) -> Check:
    return Check(name, "ok", message)


def warning(name: str, message: str, advice: str) -> Check:
    return Check(name, "warning", message, advice)


def fault(name: str, message: str, advice: str) -> Check:
    return Check(name, "fault", message, advice)


def text(checks: Sequence[Check]) -> str:
    """Lay out a line a check, its advice below it, and a summary."""
    lines = []
    width = max(len(each.name) for each in checks)
    for each in checks:
        lines.append(f"{each.level:7}  {each.name:{width}}  {each.message}")
        if each.advice:
            lines.append(f"{'':7}  {'':{width}}  -> {each.advice}")
    levels = [each.level for each in checks]
    counts = [f"{levels.count(level)} {level}" for level in get_args(Level)]
    return "\n".join([*lines, ", ".join(counts)])


async def examine(settings: Settings, url: str | None, clock: Clock = SYSTEM) -> list[Check]:
    """Run every check. url: of a running service to ask as well; None: of none."""
    found = [*_keys(settings, clock), *_definitions(settings)]
    if settings.trainer != "off" and not can_train():
        message = "torch is not installed: policies with a net stay untrained"
        found.append(
            warning("trainer", message, "pip install 'forage-bandits[train]', or train elsewhere")
        )
    found += [check async for check in _store(settings)]
    if url is not None:
        found += await _service(settings, url, clock)
    return found


def _keys(settings: Settings, clock: Clock) -> Iterator[Check]:
    path = settings.keys
    if path is None:
        if loopback(settings.host):
            message = "FORAGE_KEYS is not set here: a service started here needs none"
            yield ok("keys", message)
        else:
            judge = warning if settings.open else fault
            message = f"FORAGE_HOST is {settings.host} and requests need no key"
            yield judge("keys", message, "set FORAGE_KEYS to a file that `forage keys` keeps")
        return
    try:
        keys = read_keys(path)
    except ConfigurationError as error:
        yield fault("keys", str(error).replace("\n", " "), "forage keys --help")
        return
    now = datetime.fromtimestamp(clock.time(), UTC)
    live = [key for key in keys if key.state(now) == "live"]
    if not any("admin" in key.scopes for key in live):
        message = "no live key has the scope admin: trainer and console are refused"
        yield warning("keys", message, f"forage keys add --keys {path} --scopes admin --name NAME")
    if expired := [key.name for key in keys if key.state(now) == "expired"]:
        yield warning("keys", f"expired: {', '.join(expired)}", "make new ones, or revoke these")
    yield ok("keys", f"{path}: {len(live)} live of {len(keys)}")


def _definitions(settings: Settings) -> Iterator[Check]:
    for path in settings.experiments:
        checked = check_file(path)
        if checked.faults:
            message = f"{path} has faults: {checked.faults[0].path} {checked.faults[0].message}"
            yield fault("definitions", message, f"forage check {path}")
        else:
            yield ok("definitions", f"{path} defines experiment {checked.experiment!r}")


async def _store(settings: Settings) -> AsyncIterator[Check]:
    try:
        store = open_store(settings.store, readonly=True, redis_replicas=settings.redis_replicas)
        if settings.store.startswith("memory:"):
            yield warning(
                "store", "memory:// loses everything at a stop", "use sqlite, redis or postgresql"
            )
        elif isinstance(store, SqliteStore) and not store.path.exists():
            folder = store.path.parent
            if os.access(folder, os.W_OK | os.X_OK):
                yield ok("store", f"{store.path} does not exist yet: `forage serve` creates it")
            else:
                message = f"the folder {folder} does not exist or cannot be written"
                yield fault("store", message, f"create it: mkdir -p {folder}")
        else:
            async with opened(store):
                async for check in _open_store(store, settings):
                    yield check
    except NoTables as error:
        yield ok("store", str(error))
    except ForageError as error:
        yield fault("store", str(error), "docs/troubleshooting.md lists the remedies")


async def _open_store(store: Store, settings: Settings) -> AsyncIterator[Check]:
    names = await store.experiments()
    yield ok("store", f"opens, and holds {len(names)} experiments")
    if "survives" in store.durability:
        yield ok("durability", store.durability)
    else:
        scheme = settings.store.partition(":")[0]
        advice = SYNC_POSTGRES if scheme in POSTGRES else SYNC_REDIS
        yield warning("durability", store.durability, advice)
    if store.shared:
        await store.commit([])  # raises where a service could write nothing
        skew = store.clock_skew_seconds or 0.0
        if abs(skew) > STORE_SKEW_S:
            yield warning("clock", f"{skew:+.1f} s from that of the store", "run NTP on both")
        else:
            yield ok("clock", f"{1000 * skew:+.0f} ms from that of the store")
    if settings.token_keys:
        yield ok("token secret", "kept in FORAGE_TOKEN_KEYS alone: no backup of the store holds it")
    elif await store.secret_is_elsewhere():
        message = "the store has none: FORAGE_TOKEN_KEYS had it, and is not set here"
        advice = "set the same FORAGE_TOKEN_KEYS; without them earlier decision tokens are refused"
        yield warning("token secret", message, advice)
    else:
        yield ok("token secret", "kept in the store" if names else "the first start makes one")
    for name in names:
        position = (await store.describe(name)).position
        yield ok(f"experiment {name}", f"{position:,} events")


async def _service(settings: Settings, url: str, clock: Clock) -> list[Check]:
    headers = settings.key_headers
    try:
        async with httpx.AsyncClient(
            base_url=url, timeout=PROBE_TIMEOUT_S, headers=headers, trust_env=False
        ) as client:
            return [check async for check in _ask(client, clock)]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError) as error:
        message = f"{url} cannot be reached, or is no Forage ({type(error).__name__})"
        return [fault("service", message, "start it: forage serve; or correct --url")]


async def _ask(client: httpx.AsyncClient, clock: Clock) -> AsyncIterator[Check]:
    before = clock.time()
    answer = await client.get("/healthz")
    after = clock.time()
    health = answer.json()
    if health["status"] == "ok":
        message = f"Forage {health['version']} on {health['store']}: {health['durability']}"
        yield ok("service", message)
    else:
        message = f"is {health['status']}: it cannot write the log, and accepts no reward"
        yield fault("service", message, "repair the store; docs/troubleshooting.md")
    if health.get("quarantined"):
        message = f"{health['quarantined']} experiments are not served: their logs cannot be folded"
        yield fault("quarantine", message, "forage repair and GET /status say why")
    if health["version"] != __version__:
        message = f"the service is version {health['version']}, this is {__version__}"
        yield warning("version", message, "run the same version everywhere")
    if date := answer.headers.get("date"):
        yield check_clock(date, before, after)
    if (await client.get("/readyz")).status_code == 200:
        yield ok("ready", "it has folded its log and takes traffic")
    else:
        message = "it has not folded its log to the end, or cannot write it"
        yield fault("ready", message, "its log says which")
    listed = await client.get("/experiments")
    if listed.status_code == 421:
        message = "the service does not answer for the host of --url"
        yield warning("experiments", message, "add that host to FORAGE_ALLOWED_HOSTS")
    elif listed.status_code in (401, 403):
        message = f"the service does not show experiments to this key ({listed.status_code})"
        yield warning("experiments", message, "set FORAGE_KEY to a key of scope admin")
    else:
        for experiment in listed.raise_for_status().json()["experiments"]:
            path = f"/experiments/{experiment['name']}/policies"
            policies = (await client.get(path)).raise_for_status().json()["policies"]
            for check in check_training(experiment["name"], policies):
                yield check


def check_clock(date: str, before: float, after: float) -> Check:
    """Compare the Date header of an answer with the unix times before and after it."""
    skew = (before + after) / 2 - parsedate_to_datetime(date).timestamp()
    if abs(skew) > SERVICE_SKEW_S + (after - before):
        return warning("clock", f"{skew:+.0f} s from that of the service", "run NTP on both")
    return ok("clock", "agrees with that of the service")


def check_training(experiment: str, policies: Sequence[JsonAnswer]) -> Iterator[Check]:
    """Find policies whose training is overdue, in the answer of /experiments/{name}/policies."""
    overdue = [
        policy
        for policy in policies
        if policy["training_due"]
        and (due := policy["training_due_at"])
        and policy["rewards"] > OVERDUE * due
    ]
    for policy in overdue:
        message = (
            f"the training of {policy['name']} fell due at {policy['training_due_at']:,} rewards; "
            f"now there are {policy['rewards']:,}"
        )
        advice = "run `forage train --follow` beside the service, and read its log"
        yield warning(f"experiment {experiment}", message, advice)
    if not overdue:
        yield ok(f"experiment {experiment}", "no training is overdue")

"""The parts of one serving process, put together in one place."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from service.analysis.challenger_value import challenger_request
from service.analysis.checkpoints import NOWHERE, Checkpoints, temporary_folder
from service.analysis.evaluate import evaluate
from service.analysis.evaluation_answer import EvaluationAnswer
from service.analysis.jobs import Jobs
from service.analysis.rollouts import RolloutLooks, look_at_rollouts
from service.analysis.running import EvaluationWorker
from service.analysis.verdicts import Verdicts
from service.clock import SYSTEM, Clock
from service.decide.experiments import Experiments
from service.decide.select import Selector
from service.definition.experiment import load_definition
from service.errors import ConfigurationError, Conflict, Invalid
from service.http.lifecycle import Lifecycle
from service.http.overload import Overload
from service.http.protocol import connection_limit
from service.http.services import Services
from service.log.log import Log
from service.log.stores import Store, open_store
from service.manage.admin import Admin
from service.manage.erasure import Eraser
from service.manage.importing import Importer
from service.manage.retention import Retention
from service.manage.rollouts import Rollouts
from service.naming import quoted
from service.observe.metrics_collector import ProcessGauges, StateGauges
from service.observe.overview import Overview
from service.observe.sizes import SizeMeter
from service.security.access import Access
from service.security.addresses import Addresses
from service.security.hosts import Hosts
from service.security.keys import loopback
from service.security.token import TokenSealer
from service.settings import Settings
from service.settle.expiry import Expiry
from service.settle.settlement import Settlements
from service.state.events import STARTED_BY
from service.state.fold import State
from service.state.footprint import footprint_of
from service.state.rollout import RolloutPlan
from service.telemetry.history import History
from service.telemetry.metrics import Telemetry
from service.telemetry.siblings import Siblings

logger = logging.getLogger(__name__)

EXAMPLE = Path(__file__).parent / "definition" / "examples" / "zooplus.toml"


UNGUARDED = """{host} can be reached from other hosts, so keys are required. Make one:
  forage keys add --keys keys.json --name admin --scopes admin
and serve with FORAGE_KEYS=keys.json. Where nobody but your own services can reach it, because of a
private network or a proxy that asks who it is: FORAGE_OPEN=true."""


def check_exposure(settings: Settings) -> None:
    """Raise ConfigurationError, before anything listens, where others could reach a service without
    keys and nobody said that this is meant."""
    if settings.keys is not None:
        if settings.open:
            raise ConfigurationError(
                "FORAGE_OPEN=true and FORAGE_KEYS are both set: one says that no keys are needed, "
                "the other which"
            )
        return
    if settings.open:
        logger.warning(
            "FORAGE_OPEN: requests need no key, and anyone who reaches %s:%d may define "
            "experiments, read the log and erase it",
            settings.host,
            settings.port,
        )
    elif loopback(settings.host):
        logger.warning(
            "requests need no key: anyone who can connect from this host may define experiments, "
            "read the log and erase it (docs/keys.md)"
        )
    else:
        raise ConfigurationError(UNGUARDED.format(host=settings.host))


@dataclass(frozen=True)
class Workers:
    """The workers of a service, as one of them knows them.

    siblings      asks the others what they counted
    checkpoints   folder that they share; None: there is no place for one
    """

    count: int
    siblings: Siblings
    checkpoints: str | None


@asynccontextmanager
async def open_services(
    settings: Settings,
    store: Store | None = None,
    *,
    clock: Clock = SYSTEM,
    rng: Random | None = None,
) -> AsyncIterator[Services]:
    """`open_store_services`, and then `start`."""
    async with open_store_services(settings, store, clock=clock, rng=rng) as services:
        await start(services)
        yield services


@asynccontextmanager
async def open_store_services(
    settings: Settings,
    store: Store | None = None,
    workers: Workers | None = None,
    *,
    clock: Clock = SYSTEM,
    rng: Random | None = None,
) -> AsyncIterator[Services]:
    """Open the store and put the parts together; close in order at the end. Until `start` has ended
    the application answers probes alone.

    store     used in place of the one that the settings name
    workers   of which this process is one; None: it is the whole service
    rng       of all that is drawn; by default the entropy of the operating system
    Raises StoreError where log or lock cannot be had, ConfigurationError for a wrong file.
    """
    if store is None:
        store = open_store(
            settings.store,
            shared=workers is not None,
            redis_replicas=settings.redis_replicas,
            listen=settings.store_listen,
            clock=clock,
        )
    try:
        await store.open()
        secrets = settings.token_keys or [await _secret_of(store)]
        with nullcontext() if workers else temporary_folder(settings.store) as folder:
            folder = workers.checkpoints if workers else folder
            services = assemble(settings, store, secrets, folder, workers, clock=clock, rng=rng)
            try:
                yield services
            finally:
                await services.evaluations.close()
                await services.log.close()
    finally:
        await store.close()


async def start(services: Services) -> None:
    """Recover from the store, and define what is to be served. Raises StoreError where the log
    cannot be read or trusted, ConfigurationError for a wrong file."""
    log, telemetry = services.log, services.telemetry
    await log.open()
    telemetry.registry.register(ProcessGauges(log, telemetry))
    telemetry.states.register(StateGauges(log, telemetry, services.clock))
    if not log.folds:
        services.lifecycle.starting = False
        return
    _warn_of_large(services)
    await _define(services)
    _warn_of_default(services)
    log.background.spawn(services.expiry.run())
    log.background.spawn(services.retention.run())
    log.background.spawn(services.sizes.run())
    log.background.spawn(services.history.run())
    log.background.spawn(services.verdicts.run())
    log.background.spawn(services.rollouts.run())
    log.background.spawn(services.rollouts.watch())
    if services.settings.webhook_url is not None:
        from service.observe.webhook import Webhook  # httpx takes time and memory

        log.background.spawn(Webhook(log, services.store, services.settings, telemetry).run())
    services.lifecycle.starting = False


async def _secret_of(store: Store) -> bytes:
    if await store.secret_is_elsewhere():
        logger.warning(
            "FORAGE_TOKEN_KEYS is not set, and had the token secret of this log: a new secret is "
            "made, and rewards of earlier decisions are refused"
        )
    return await store.secret()


def assemble(
    settings: Settings,
    store: Store,
    secrets: Sequence[bytes],
    checkpoints: str | None = None,
    workers: Workers | None = None,
    *,
    clock: Clock = SYSTEM,
    rng: Random | None = None,
) -> Services:
    """Assemble the parts over an open store. Raises ConfigurationError for a file of keys that
    cannot be read."""
    telemetry, sealer = Telemetry(clock), TokenSealer(secrets, rng)
    connections, max_connections = set[Any](), connection_limit(settings)
    if workers is not None:
        telemetry.siblings = workers.siblings
    telemetry.connections.set_function(connections.__len__)
    telemetry.max_connections.set(max_connections)
    log = Log(store, settings, telemetry, clock, rng)
    settlements = Settlements(log, store, sealer, telemetry)
    experiments = Experiments(log.replicas, settings)
    kept = NOWHERE if checkpoints is None else Checkpoints(Path(checkpoints))
    bounds = (
        settings.store,
        settings.evaluation_seconds,
        settings.evaluation_queue,
        clock,
        checkpoints,
    )
    history = History(lambda: log.replicas.states, telemetry, clock)
    admin = Admin(log, store, settings.experiment_memory_bytes)
    verdicts = Verdicts(EvaluationWorker(*bounds), EvaluationWorker(*bounds), log, telemetry)

    async def look(state: State) -> RolloutLooks:
        if settings.store.startswith("memory"):  # no other process can read it
            return await look_at_rollouts(store, state.name)
        return await verdicts.rollouts(state)

    async def compare(state: State, plan: RolloutPlan) -> EvaluationAnswer:
        request = challenger_request(state.name, plan)
        if settings.store.startswith("memory"):
            return await evaluate(store, request)
        return await verdicts.compared(state, request)

    return Services(
        settings,
        Lifecycle(),
        clock,
        telemetry,
        store,
        log,
        Overload(telemetry, settings),
        sealer,
        experiments,
        Selector(log, experiments, sealer, settings, telemetry, rng),
        settlements,
        Expiry(log, store, settlements, settings.expiry_seconds),
        admin,
        Rollouts(admin, log, look, compare, telemetry),
        Retention(log, store, settings, telemetry),
        SizeMeter(log, store, telemetry),
        Eraser(log, store, sealer, telemetry, kept),
        Importer(log, store, sealer, settings.max_arms),
        Access(settings.keys, telemetry, clock, workers=workers.count if workers else 1),
        Hosts(
            settings.host,
            settings.allowed_hosts,
            settings.cors_origins,
            keys=settings.keys is not None,
        ),
        connections,
        max_connections,
        Addresses(settings.trusted_proxies),
        history,
        Overview(log, store, telemetry, history, clock),
        Jobs(EvaluationWorker(*bounds), clock, rng),
        verdicts,
    )


def _warn_of_large(services: Services) -> None:
    """Warn about existing experiments that are too large; they are served anyway."""
    quota = services.settings.experiment_memory_bytes
    for name, state in services.log.replicas.states.items():
        if (taken := sum(footprint_of(state).values())) > quota:
            logger.warning(
                "experiment %s takes some %d MiB of memory, more than the %d that one may take "
                "(FORAGE_EXPERIMENT_MEMORY_BYTES): it is served, and may not grow",
                name,
                round(taken / 2**20),
                quota // 2**20,
            )


def _warn_of_default(services: Services) -> None:
    name = services.settings.default_experiment
    if name is not None and name not in services.log.replicas.names:
        logger.warning(
            "FORAGE_DEFAULT_EXPERIMENT names %s, which does not exist: requests that name no "
            "experiment are refused until it is defined",
            quoted(name),
        )


async def _define(services: Services) -> None:
    """Define the experiments of the files that the log does not hold yet."""
    files = services.settings.experiments
    if not files and not services.log.replicas.names:
        files = [EXAMPLE]
    for path in files:
        name, definition = load_definition(path)
        if name in services.log.replicas.quarantined:
            continue
        state = services.log.replicas.state(name)
        if state is not None and state.definition not in (definition, definition.completed()):
            logger.warning(
                "%s: the log holds another definition of %s, which is served; `forage apply` "
                "changes it to that of the file",
                path,
                name,
            )
        if state is None:
            try:
                await services.admin.define(name, definition, STARTED_BY)
            except Invalid as fault:
                faults = "\n".join(f"  {each.path}: {each.message}" for each in fault.faults)
                raise ConfigurationError(f"{path}:\n{faults}") from fault
            except Conflict:  # another process that starts on the same log was first
                await services.log.replicas.follow(seconds=0)

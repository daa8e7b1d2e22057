"""The parts of one serving process, put together in one place."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from service.admin import Admin
from service.engine import Engine
from service.errors import ConfigurationError, Conflict, Invalid, StoreUnavailable
from service.experiment import load_definition
from service.importing import Importer
from service.journal import Journal
from service.settings import Settings
from service.settlement import Settlements
from service.stores import open_store
from service.telemetry import Family, Telemetry
from service.token import TokenSealer
from service.upkeep.erasure import Eraser
from service.upkeep.retention import Retention

logger = logging.getLogger(__name__)

EXAMPLE = Path(__file__).parent / "examples" / "zooplus.toml"


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    telemetry: Telemetry
    journal: Journal
    engine: Engine
    settlements: Settlements
    admin: Admin
    retention: Retention
    eraser: Eraser
    importer: Importer


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Recover from the store, define what is to be served, and close in order at the end.

    Raises StoreError where log or lock cannot be had, ConfigurationError for a wrong file.
    """
    telemetry = Telemetry()
    store = open_store(settings.store, redis_replicas=settings.redis_replicas)
    journal = Journal(store, settings, telemetry)
    try:
        await journal.open()
        services = assemble(
            settings, journal, settings.token_keys or [await journal.store.secret()]
        )
        telemetry.read(lambda: _readings(services))
        await _define(services)
        journal.spawn(_expire(services))
        journal.spawn(services.retention.run())
        yield services
    finally:
        await journal.close()


def assemble(settings: Settings, journal: Journal, secrets: Sequence[bytes]) -> Services:
    """The parts over a journal, opening nothing."""
    telemetry, sealer = journal.telemetry, TokenSealer(secrets)
    engine = Engine(journal, sealer, settings, telemetry)
    return Services(
        settings,
        telemetry,
        journal,
        engine,
        Settlements(journal, sealer, telemetry),
        Admin(journal, telemetry),
        Retention(journal, settings, telemetry),
        Eraser(journal, sealer, telemetry),
        Importer(journal, engine, sealer),
    )


async def _define(services: Services) -> None:
    """Define the experiments of the files that the log does not hold yet."""
    files = services.settings.experiments
    if not files and not services.journal.states:
        files = [EXAMPLE]
    for path in files:
        name, definition = load_definition(path)
        state = services.journal.state(name)
        if state is not None and state.definition != definition:
            logger.warning(
                "%s: the log holds another definition of %s, which is served; change it with "
                "PUT /experiments/%s",
                path,
                name,
                name,
            )
        if state is None:
            try:
                await services.admin.define(name, definition)
            except Invalid as fault:
                faults = "\n".join(f"  {each.path}: {each.message}" for each in fault.faults)
                raise ConfigurationError(f"{path}:\n{faults}") from fault
            except Conflict:  # another process that starts on the same log was first
                await services.journal.follow(seconds=0)


async def _expire(services: Services) -> None:
    while True:
        await asyncio.sleep(services.settings.expiry_seconds)
        try:
            while services.journal.presence.leads and await services.settlements.expire_due():
                pass
        except StoreUnavailable:
            logger.warning("default rewards wait for the log")
        except Exception:  # one decision must not keep the others from their rewards
            logger.exception("a default reward failed")


def _readings(services: Services) -> Iterator[Family]:
    """Gauges of the state, read when scraped."""
    telemetry, states = services.telemetry, services.journal.states
    positions: list[tuple[tuple[str, ...], float]] = [
        ((name,), float(state.position)) for name, state in states.items()
    ]
    alive: list[tuple[tuple[str, ...], float]] = [((), float(services.journal.presence.count))]
    yield Family("forage_processes", "Services that share this log and live.", (), alive)
    yield Family("forage_log_position", "Events folded.", ("experiment",), positions)
    ages: list[tuple[tuple[str, ...], float]] = [
        ((name,), age) for name in states if (age := telemetry.snapshot_age(name)) is not None
    ]
    yield Family("forage_snapshot_age_seconds", "Since the last snapshot.", ("experiment",), ages)
    rows: dict[str, list[tuple[tuple[str, ...], float]]] = {name: [] for name in POLICY_GAUGES}
    for name, state in states.items():
        for policy, learner in state.learners.items():
            key = (name, policy)
            tally, version = state.tallies[policy], learner.active
            if tally.count:
                rows["forage_reward_mean"].append((key, tally.total / tally.count))
            if watch := telemetry.watched.get(key):
                rows["forage_selection_entropy_nats"].append((key, watch.entropy))
                rows["forage_propensity_minimum"].append((key, watch.minimum))
            if version.head is not None:
                smallest = version.head.health().smallest_eigenvalue
                rows["forage_head_smallest_eigenvalue"].append((key, smallest))
            rows["forage_model_version"].append((key, version.number))
            rows["forage_trained_to_position"].append((key, version.trained_to))
    for gauge, values in rows.items():
        yield Family(gauge, POLICY_GAUGES[gauge], ("experiment", "policy"), values)


POLICY_GAUGES = {
    "forage_reward_mean": "Mean of all settled rewards.",
    "forage_selection_entropy_nats": "Running mean of the entropy of a choice.",
    "forage_propensity_minimum": "Smallest propensity of a shown arm since the start.",
    "forage_head_smallest_eigenvalue": "Of A; it has to grow.",
    "forage_model_version": "Trained version that serves; 0 is untrained.",
    "forage_trained_to_position": "Log position that the version was trained to.",
}

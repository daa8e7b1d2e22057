"""Fold heads again from the log, without decisions that should not have been learned.

A rebuilt head is another fold of the log. A service takes it as a version, as it takes the
trainer's: staged, caught up with the log, then activated. A version remembers the decisions that it
leaves out, so that no later correction and no later training brings them back.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import httpx

from service.decide.traffic import no_policy
from service.errors import ConfigurationError, NotFound, StoreUnavailable
from service.log.reading import Progress, Say, reading, single_experiment
from service.log.replay import row_pages
from service.log.replicas import Replicas
from service.log.stores import Store
from service.naming import quoted
from service.security.token import TokenSealer
from service.state.artifacts import pack_artifact
from service.state.decisions import Decision, decode_decision
from service.state.fold import State
from service.state.learner import Learner
from service.training.settlements import collect

REBUILD_ACTIVATION_SECONDS, REBUILD_POLL_SECONDS = 60.0, 0.2


@dataclass(frozen=True, slots=True)
class Condition:
    """Selects the decisions for which all of it holds; None: any.

    key           name of the caller's API key
    unit          as the caller names it
    since, until  unix seconds, the first included and the last excluded
    """

    key: str | None = None
    unit: str | None = None
    since: float | None = None
    until: float | None = None

    def holds(self, decision: Decision, hashes: Collection[str]) -> bool:
        """Say whether a decision is among these. hashes: of the unit, under each secret."""
        return (
            self.key in (None, decision.key)
            and (self.unit is None or decision.unit in hashes)
            and (self.since is None or decision.at >= self.since)
            and (self.until is None or decision.at < self.until)
        )


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A policy's head without some decisions.

    version      its number once it serves
    artifact     the body of `POST .../versions`
    settlements  in the head
    left_out     settlements not in it, also those that an earlier rebuild left out
    net          the version whose net the head sees features through; None: there is none
    """

    experiment: str
    policy: str
    version: int
    artifact: bytes
    settlements: int
    left_out: int
    net: int | None


async def rebuild_store(
    url: str,
    experiment: str | None,
    policies: Sequence[str] | None,
    conditions: Sequence[Condition],
    token_keys: Sequence[bytes] = (),
    say: Say | None = None,
) -> list[Rebuilt]:
    """Rebuild the named policies of an experiment, or all that have a head. The store is only read;
    a service may be running on it. Raises NotFound, or StoreError."""
    async with reading(url) as store:
        name = await single_experiment(store, experiment)
        state = await Replicas(store).discover(name)
        if state.deleted:
            raise NotFound(f"experiment {quoted(name)} was deleted", path="experiment")
        secrets = list(token_keys) or [await store.secret()]
        without = await find(store, state.name, conditions, TokenSealer(secrets), say)
        if not without:
            raise NotFound("the log holds no such decision", path="without")
        return [
            await rebuild(store, state, learner, without) for learner in _chosen(state, policies)
        ]


def _chosen(state: State, policies: Sequence[str] | None) -> list[Learner]:
    """Choose the named policies, or all whose head a fold of the log makes. Raises NotFound, or
    ConfigurationError for a named one without such a head."""
    if policies is None:
        return [each for each in state.folded.values() if _fault(each) is None]
    folded = state.folded
    for name in policies:
        if name not in folded:
            raise no_policy(state, name, "policies")
        if fault := _fault(folded[name]):
            raise ConfigurationError(f"policy {name} {fault}")
    return [folded[name] for name in policies]


def _fault(learner: Learner) -> str | None:
    """Say why a head cannot be rebuilt; None: it can."""
    if learner.policy.head is None:
        return "has no head"
    return None if learner.settings.learning else "is frozen: set learning to true first"


async def find(
    store: Store,
    experiment: str,
    conditions: Sequence[Condition],
    sealer: TokenSealer,
    say: Say | None = None,
) -> frozenset[str]:
    """Find the ids of the decisions that meet one of the conditions."""
    hashes = [[] if one.unit is None else sealer.unit_hashes(one.unit) for one in conditions]
    found, read, progress = set[str](), 0, Progress(say)
    async for page in row_pages(store, experiment):
        read += len(page)
        progress.tell(f"{experiment}: rows read {read:,}")
        for row in page:
            decision = decode_decision(row.payload)
            if any(one.holds(decision, own) for one, own in zip(conditions, hashes, strict=True)):
                found.add(decision.id)
    return frozenset(found)


async def rebuild(store: Store, state: State, learner: Learner, without: frozenset[str]) -> Rebuilt:
    """Fold a policy's head over the log since its creation, without these decisions, in the
    features of the version that serves now. Raises StoreUnavailable where the log was trimmed."""
    without |= learner.active.without
    try:
        history = await collect(store, state, learner, without=without)
    except StoreUnavailable as fault:
        raise StoreUnavailable(
            f"experiment {state.name}: the log no longer holds the beginning of {learner.name}'s "
            "head, so it cannot be rebuilt"
        ) from fault
    version = learner.rebuilt(learner.active.encoder, history, learner.view)
    artifact = pack_artifact(*learner.describe(version))
    return Rebuilt(
        experiment=state.name,
        policy=learner.name,
        version=version.number,
        artifact=artifact,
        settlements=history.rewards - history.left_out,
        left_out=history.left_out,
        net=learner.active.number if learner.active.encoder.trained else None,
    )


async def hand_over(url: str, headers: Mapping[str, str] | None, rebuilt: Rebuilt) -> None:
    """Give a version to a service and wait until it serves. Raises ConfigurationError where the
    service refuses it, StoreUnavailable where it does not serve in time."""
    path = f"/experiments/{rebuilt.experiment}/policies/{rebuilt.policy}"
    async with httpx.AsyncClient(base_url=url, timeout=60, headers=headers) as client:
        try:
            answer = await client.post(f"{path}/versions", content=rebuilt.artifact)
            if answer.status_code != 202:
                raise ConfigurationError(f"{url}{path}: {answer.status_code} {answer.text}")
            for _ in range(round(REBUILD_ACTIVATION_SECONDS / REBUILD_POLL_SECONDS)):
                status = (await client.get(path)).json()
                if status.get("version", 0) >= rebuilt.version:
                    return
                await asyncio.sleep(REBUILD_POLL_SECONDS)
        except httpx.TransportError as fault:
            raise ConfigurationError(f"{url} does not answer: {fault}") from fault
    raise StoreUnavailable(f"{rebuilt.policy}/{rebuilt.version} is staged and does not serve yet")

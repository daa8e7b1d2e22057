"""Heads learned anew from the log, without decisions that should not have been learned from.

A rebuilt head is another fold of the log. It is handed to a service as a version, as the trainer's
are: staged, caught up with the log, then activated. A version remembers what it leaves out, so that
no later correction and no later training brings it back.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import httpx
import numpy as np

from service.bandits.policies.memory import Memory
from service.bandits.policies.version import Version
from service.definition.features import Array
from service.errors import ConfigurationError, NotFound, StoreUnavailable
from service.log.follower import Follower
from service.log.reading import Progress, Say, reading, single_experiment
from service.log.replay import row_pages
from service.log.stores import Store
from service.observability.telemetry import Telemetry
from service.security.token import TokenSealer
from service.state.artifacts import pack_artifact
from service.state.events import Decision, decode_decision
from service.state.fold import State
from service.state.learner import Learner
from service.training.settlements import TrainingSet, collect

COMPARED = 5_000
"""The latest settlements, on which predictions are compared."""

FOLDS = 5
"""Every fifth settlement is held out, and predicted by heads that learned the others."""

ACTIVATION_SECONDS, POLL_SECONDS = 60.0, 0.2


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
        """hashes: of the unit, under each secret."""
        return (
            self.key in (None, decision.key)
            and (self.unit is None or decision.unit in hashes)
            and (self.since is None or decision.at >= self.since)
            and (self.until is None or decision.at < self.until)
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A rebuilt head beside the present one.

    settlements, left_out   that the present head learned, and those that the rebuilt one leaves out
    mean_reward             of both
    difference              of their predictions of the latest settlements that both learned: root
                            mean square, and the largest
    error                   root mean square error of both, on every fifth settlement that both
                            would learn, by heads that learned the others
    net                     the version whose net both see features through; None: there is none
    """

    settlements: int
    left_out: int
    mean_reward: tuple[float | None, float | None]
    difference: tuple[float, float]
    error: tuple[float | None, float | None]
    net: int | None


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """version: the number that it will serve as. artifact: for `POST .../versions`."""

    experiment: str
    policy: str
    version: int
    artifact: bytes
    comparison: Comparison


async def rebuild_store(
    url: str,
    experiment: str | None,
    policies: Sequence[str] | None,
    conditions: Sequence[Condition],
    token_keys: Sequence[bytes] = (),
    say: Say | None = None,
) -> list[Rebuilt]:
    """Rebuild the policies of an experiment that are named, or all that have a head. The store is
    only read: a service may be at work on it. Raises NotFound, or StoreError."""
    async with reading(url) as store:
        name = await single_experiment(store, experiment)
        state = await Follower(store, Telemetry()).discover(name)
        if state.deleted:
            raise NotFound("the experiment was deleted", path="experiment")
        secrets = list(token_keys) or [await store.secret()]
        without = await find(store, state.name, conditions, TokenSealer(secrets), say)
        if not without:
            raise NotFound("the log holds no decision that this is true of", path="without")
        return [
            await rebuild(store, state, learner, without) for learner in _chosen(state, policies)
        ]


def _chosen(state: State, policies: Sequence[str] | None) -> list[Learner]:
    """Raises NotFound, or ConfigurationError for one whose head is not what the log would make."""
    if policies is None:
        return [each for each in state.learners.values() if _fault(each) is None]
    for name in policies:
        if name not in state.learners:
            raise NotFound(f"the experiment has no policy {name}", path="policies")
        if fault := _fault(state.learners[name]):
            raise ConfigurationError(f"policy {name} {fault}")
    return [state.learners[name] for name in policies]


def _fault(learner: Learner) -> str | None:
    """Why a head cannot be learned anew; None: it can."""
    if not learner.policy.has_head:
        return "has no head"
    return None if learner.settings.learning else "is frozen: set learning to true first"


async def find(
    store: Store,
    experiment: str,
    conditions: Sequence[Condition],
    sealer: TokenSealer,
    say: Say | None = None,
) -> frozenset[str]:
    """Ids of the decisions that meet one of the conditions."""
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
    """A policy's head over all that the log holds since it was born but for these decisions, in the
    features of the version that serves now. Raises StoreUnavailable where the log was trimmed."""
    without |= learner.active.without
    try:
        present = await collect(store, state, learner)
        left = await collect(store, state, learner, without=without)
    except StoreUnavailable as fault:
        raise StoreUnavailable(
            f"experiment {state.name}: the log no longer holds the beginning of {learner.name}'s "
            "head, which cannot be learned anew from it"
        ) from fault
    version = _version(learner, left, learner.next_version[1], without)
    artifact = pack_artifact(*learner.describe(version))
    comparison = _compared(learner, version, present, left)
    return Rebuilt(state.name, learner.name, version.number, artifact, comparison)


def _version(
    learner: Learner, history: TrainingSet, number: int, without: frozenset[str]
) -> Version:
    active = learner.active
    version = _folded(learner, history.memory, history, number)
    version.trained_to, version.without = history.watermark, without
    version.rewards = active.rewards if active.number else history.rewards
    if version.memory is not None:
        version.memory = history.memory.copy().limited(learner.memory_limit)
    return version


def _folded(learner: Learner, memory: Memory, history: TrainingSet, number: int) -> Version:
    """A head over these settlements, in the features of the active version."""
    active = learner.active
    version = learner.version(number, active.encoder)
    version.doubt = active.doubt
    windowed = learner.settings.window is not None
    version.refold(memory, history.watermark + 1 if windowed else history.begins)
    return version


def _compared(
    learner: Learner, version: Version, present: TrainingSet, left: TrainingSet
) -> Comparison:
    memory = left.memory
    latest = slice(-COMPARED, None)
    x, arms = memory.x[latest], memory.arms[latest]
    difference = _means(version, x, arms) - _means(learner.active, x, arms)
    return Comparison(
        settlements=present.rewards - present.left_out,
        left_out=left.left_out - present.left_out,
        mean_reward=(_mean(present.memory.rewards), _mean(memory.rewards)),
        difference=(
            float(np.sqrt(np.mean(difference**2))) if len(difference) else 0.0,
            float(np.abs(difference).max(initial=0.0)),
        ),
        error=(_error(learner, present, memory), _error(learner, left, memory)),
        net=learner.active.number if learner.active.encoder.trained else None,
    )


def _error(learner: Learner, history: TrainingSet, kept: Memory) -> float | None:
    """Of a head that learned a history but for every fifth of the kept settlements, on these."""
    rows = range(len(kept))[::FOLDS][-COMPARED:]
    if len(rows) < FOLDS:
        return None
    held_out = {(kept.keys[row], kept.arms[row]) for row in rows}
    memory = history.memory.copy()
    pairs = zip(memory.keys, memory.arms, strict=True)
    memory.keep(np.array([pair not in held_out for pair in pairs]))
    version = _folded(learner, memory, history, learner.active.number)
    predicted = _means(version, kept.x[rows], [kept.arms[row] for row in rows])
    return float(np.sqrt(np.mean((predicted - np.array(kept.rewards)[rows]) ** 2)))


def _means(version: Version, x: Array, arms: Sequence[str]) -> Array:  # (n,)
    return version.mean(version.phi(x), arms) if len(x) else np.empty(0)


def _mean(rewards: Sequence[float]) -> float | None:
    return float(np.mean(rewards)) if rewards else None


async def hand_over(url: str, headers: Mapping[str, str] | None, rebuilt: Rebuilt) -> None:
    """Give a version to a service and wait until it serves. Raises ConfigurationError where the
    service refuses it, StoreUnavailable where it does not serve in time."""
    path = f"/experiments/{rebuilt.experiment}/policies/{rebuilt.policy}"
    async with httpx.AsyncClient(base_url=url, timeout=60, headers=headers) as client:
        try:
            answer = await client.post(f"{path}/versions", content=rebuilt.artifact)
            if answer.status_code != 202:
                raise ConfigurationError(f"{url}{path}: {answer.status_code} {answer.text}")
            for _ in range(round(ACTIVATION_SECONDS / POLL_SECONDS)):
                status = (await client.get(path)).json()
                if status.get("version", 0) >= rebuilt.version:
                    return
                await asyncio.sleep(POLL_SECONDS)
        except httpx.TransportError as fault:
            raise ConfigurationError(f"{url} does not answer: {fault}") from fault
    raise StoreUnavailable(f"{rebuilt.policy}/{rebuilt.version} is staged and does not serve yet")

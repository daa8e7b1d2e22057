"""Changes to what is served: experiments, arms, versions. Each ends as an event in the log."""

import asyncio
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from time import time
from typing import Any

import numpy as np

from service.bandits.policies.version import WIDE, Version
from service.bandits.posterior import Health, digest
from service.definition.experiment import LARGEST_REWARD, Definition
from service.definition.features import LARGEST_PRODUCT, Array, Schema, View
from service.definition.policies import Network
from service.errors import Conflict, Damaged, Invalid, LogTooNew, NotFound, PreconditionFailed
from service.log.journal import Journal
from service.log.replay import Pace, record_at
from service.log.stores import Store
from service.log.stores.base import Append, Known
from service.observability.telemetry import Telemetry
from service.serving.probing import expect_sound, rows_of
from service.state.events import (
    AnyEvent,
    ArmRemoved,
    ArmUpserted,
    ExperimentDefined,
    ExperimentDeleted,
    PolicyReset,
    VersionStaged,
    encode_event,
)
from service.state.fold import State, read_artifact, read_meta
from service.state.footprint import expect_room, footprint_of
from service.state.learner import Learner
from service.state.reward_statistics import interval

LEAST_ARTIFACT_BYTES = 4 * 2**20
"""That any version may hold uncompressed; of a larger policy, what it is estimated to take."""


SETTINGS = {
    "alpha": (1e-9, 1e6),
    "ridge": (1e-9, 1e9),
    "noise": (1e-9, LARGEST_REWARD),
    "scale": (1e-9, 1e6),
}
"""Smallest and largest value of settings whose products with features and rewards make scores: far
beyond use, and far from overflow."""


class Admin:
    """memory_bytes: that an experiment may take, by an estimate."""

    def __init__(
        self, journal: Journal, store: Store, telemetry: Telemetry, memory_bytes: int
    ) -> None:
        self._journal, self._store = journal, store
        self._telemetry, self._memory_bytes = telemetry, memory_bytes

    # -- experiments ---------------------------------------------------------------------------

    async def define(
        self, name: str, definition: Definition, if_match: int | None = None
    ) -> tuple[State, bool]:
        """Define an experiment, first or anew; the state, and whether it was the first time.

        Other features start a new schema version and with it new heads; other settings of a head
        start that head from the prior (`fold.HEADLESS` lists those that do not).
        Raises Invalid, PreconditionFailed, or Conflict where another definition came between.
        """
        state = await self._journal.discover(name)
        created = state.deleted
        definition = definition.completed(None if created else state.definition)
        self.check(definition)
        self._check_revision(state, if_match)
        expect_room(self._memory_bytes, state, definition, len(definition.arms))
        same = not created and state.definition.features == definition.features
        event = ExperimentDefined(
            at=time(),
            revision=state.revision + 1,
            schema_version=state.schema_version + (not same),
            definition=definition.model_dump(mode="json"),
        )
        await asyncio.to_thread(_expect_foldable, name, event)
        await self._append_revision(state, event, event.revision)
        return await self._journal.discover(name), created

    async def share(
        self, state: State, policy: str, share: float, if_match: int | None = None
    ) -> None:
        """Change a policy's part of the traffic. A catalogue of any size stays where it is: it does
        not come and go with the request. Raises as `define`, and NotFound."""
        find(state, policy)
        self._check_revision(state, if_match)
        policies = dict(state.definition.policies)
        policies[policy] = policies[policy].model_copy(update={"share": share})
        if not any(each.share for each in policies.values()):
            raise Invalid("at least one policy needs a share above 0", path="share")
        changed = {"policies": policies, "arms": state.arms}
        definition = state.definition.model_copy(update=changed)
        event = ExperimentDefined(
            at=time(),
            revision=state.revision + 1,
            schema_version=state.schema_version,
            definition=definition.model_dump(mode="json"),
        )
        await self._append_revision(state, event, event.revision)

    async def delete(self, state: State, if_match: int | None = None) -> None:
        self._check_revision(state, if_match)
        event = ExperimentDeleted(at=time(), revision=state.revision + 1)
        await self._append_revision(state, event, event.revision)

    async def reset(self, state: State, policy: str, if_match: int | None = None) -> None:
        """Start a policy's head from the prior and its net untrained: it forgets all it learned.

        Raises NotFound, PreconditionFailed, or Conflict where a definition came between.
        """
        find(state, policy)
        self._check_revision(state, if_match)
        event = PolicyReset(at=time(), policy=policy, revision=state.revision + 1)
        await self._append_revision(state, event, event.revision)

    async def _append_revision(self, state: State, event: AnyEvent, revision: int) -> None:
        entry = Append(state.name, encode_event(event), {f"revision/{revision}": ""})
        if isinstance(await self._journal.append(entry, event), Known):
            raise Conflict(f"revision {revision} was defined by someone else meanwhile")

    @staticmethod
    def _check_revision(state: State, if_match: int | None) -> None:
        if if_match is not None and (state.deleted or if_match != state.revision):
            raise PreconditionFailed("If-Match names another revision than the present one")

    @staticmethod
    def check(definition: Definition) -> None:
        """What a definition cannot see of itself (arms, widths), or an older log may hold (rewards
        of any size). Raises Invalid."""
        _expect_moderate(definition)
        schema = Schema(definition.features)
        for arm, features in definition.arms.items():
            schema.encode_arm(features, f"arms.{arm}")
        for name, policy in definition.policies.items():
            widths = {}
            if policy.sees_features:
                view = View(schema, definition.features_of(policy))
                widths["features"] = view.width
                if view.unbounded:
                    raise Invalid(
                        f"the product {view.unbounded[0]!r} may exceed {LARGEST_PRODUCT:g}: give "
                        "its features a scale, a clip, or min and max",
                        path=f"policies.{name}.features",
                    )
            if isinstance(policy, Network) and policy.has_net:
                widths |= {"hidden": max(policy.hidden), "embedding": policy.embedding}
            for setting, width in widths.items():
                if width > definition.max_vector:
                    raise Invalid(
                        f"makes {width} columns, more than max_vector {definition.max_vector}",
                        path=f"policies.{name}.{setting}",
                    )

    # -- arms ----------------------------------------------------------------------------------

    async def upsert_arms(self, state: State, arms: Mapping[str, Mapping[str, Any]]) -> None:
        """Add arms or give them other features. All are checked before they are written, together:
        those of one call are one commit of the log."""
        if new := len(arms.keys() - state.arms.keys()):
            count = len(state.arms) + new
            expect_room(self._memory_bytes, state, state.definition, count)
        pace, entries, own = Pace(), list[tuple[Append, AnyEvent]](), secrets.token_hex(16)
        for number, (arm, features) in enumerate(arms.items()):
            state.schema.encode_arm(features, f"arms.{arm}")
            event = ArmUpserted(at=time(), arm=arm, features=dict(features))
            marks = {f"admin/{own}/{number}": ""}
            entries.append((Append(state.name, encode_event(event), marks), event))
            await pace.keep()
        await self._journal.append_all(entries)

    async def remove_arm(self, state: State, arm: str) -> None:
        """No longer chosen; what was shown of it can still be rewarded. Raises NotFound."""
        if arm not in state.arms:
            raise NotFound("the catalogue has no such arm", path="arm")
        await self._append(state, ArmRemoved(at=time(), arm=arm))

    async def _append(self, state: State, event: AnyEvent) -> None:
        """An event without an identity of its own: writing it again writes the same state."""
        mark = f"admin/{secrets.token_hex(16)}"
        await self._journal.append(Append(state.name, encode_event(event), {mark: ""}), event)

    # -- versions ------------------------------------------------------------------------------

    async def stage(self, state: State, policy: str, artifact: bytes) -> int:
        """Take a trained version: store it, log it, and let it catch up and serve.

        Returns its number. Raises NotFound, Invalid where it does not fit the policy, Conflict
        where it was trained for another head or version than the next.
        """
        learner = find(state, policy)
        x = await rows_of(self._store, state)
        limit = max(footprint_of(state)[f"policies.{policy}"], LEAST_ARTIFACT_BYTES)
        try:
            version, meta = await asyncio.to_thread(
                _judged, learner, artifact, limit, x, state.definition.reward.range
            )
        except (Damaged, LogTooNew) as fault:
            raise Invalid(str(fault), path="artifact") from fault
        if (meta.get("born"), version.number) != learner.next_version or learner.staged:
            raise Conflict("the version was trained for another head, or is not the next one")
        if not 0 < version.trained_to <= state.position:
            raise Invalid("the watermark lies outside the log", path="artifact")
        following = version.trained_to + 1
        if following <= state.position and not await record_at(self._store, state.name, following):
            raise Conflict(
                "the log was trimmed beyond what the version was trained to: train again"
            )
        async for erased in self._journal.erasures(state.name, version.trained_to):
            if version.memory and not set(erased.decisions).isdisjoint(version.memory.keys):
                raise Conflict("the version was trained on what has been erased: train again")
        digest = hashlib.sha256(artifact).hexdigest()
        await self._store.put_blob(state.name, digest, artifact)
        event = VersionStaged(
            at=time(),
            policy=policy,
            born=learner.born,
            version=version.number,
            artifact=digest,
            size=len(artifact),
            watermark=version.trained_to,
            rewards=version.rewards,
        )
        mark = f"staged/{policy}/{learner.born}/{version.number}"
        entry = Append(state.name, encode_event(event), {mark: digest})
        outcome = await self._journal.append(entry, event)
        if isinstance(outcome, Known) and outcome.marks[mark].value != digest:
            raise Conflict("another artifact was staged as this version")
        return version.number

    # -- status --------------------------------------------------------------------------------

    async def policies(self, state: State) -> list[dict[str, Any]]:
        counts = await self._store.decision_counts(state.name)
        return [await self._status(state, learner, counts) for learner in state.learners.values()]

    async def policy(self, state: State, name: str) -> dict[str, Any]:
        counts = await self._store.decision_counts(state.name)
        return await self._status(state, find(state, name), counts)

    async def _status(
        self, state: State, learner: Learner, counts: Mapping[str, int]
    ) -> dict[str, Any]:
        tally = state.reward_sums[learner.name]
        watch = self._telemetry.watched.get((state.name, learner.name))
        version = learner.active
        head = None
        if version.head is not None:
            health = await _health(version)
            head = {**asdict(health), "digest": digest(version.head)}
        return {
            "name": learner.name,
            "kind": learner.settings.kind,
            "share": learner.settings.share,
            "decisions": counts.get(learner.name, 0),
            "rewards": learner.rewards,
            "mean_reward": tally.total / tally.count if tally.count else None,
            "mean_reward_interval": interval(tally, state.definition.reward),
            "propensity_mean": watch.propensity if watch else None,
            "propensity_minimum": watch.minimum if watch else None,
            "entropy_mean": watch.entropy if watch else None,
            "model_version": f"{learner.name}/{version.number}@{state.position}",
            "head": head,
            "version": version.number,
            "staged": learner.staged.version.number if learner.staged else None,
            "training_due": learner.training_due,
            "training_due_at": learner.training_due_at,
            "trained_to": version.trained_to if version.number else None,
            "versions": learner.history,
        }


async def _health(version: Version) -> Health:
    """Of a wide head in a thread: its spectrum takes seconds."""
    head = version.copied_head() if version.columns > WIDE else None
    if head is not None:
        return await asyncio.to_thread(head.health, version.usual)
    assert version.head is not None
    return version.head.health(version.usual)


def _expect_moderate(definition: Definition) -> None:
    """Raises Invalid for numbers with which sums or scores would overflow."""
    rules = definition.reward
    for setting, ends in (("range", rules.range), ("total", rules.total or ())):
        for end in ends:
            _expect_between(-LARGEST_REWARD, end, LARGEST_REWARD, f"reward.{setting}")
    for name, policy in definition.policies.items():
        for setting, (low, high) in SETTINGS.items():
            value = getattr(policy, setting, None)
            if isinstance(value, float) and value != 0:
                _expect_between(low, value, high, f"policies.{name}.{setting}")


def _expect_between(low: float, value: float, high: float, path: str) -> None:
    if not low <= value <= high:
        raise Invalid(f"must lie between {low:g} and {high:g}", path=path)


def _expect_foldable(name: str, event: ExperimentDefined) -> None:
    """Fold a definition into an empty state before the log has it. Raises Invalid where that fails,
    whatever the cause is: no replica could serve it."""
    try:
        State(name).apply(1, event)
    except Exception as fault:
        raise Invalid(f"cannot be served: {fault}", path="policies") from fault


def _judged(
    learner: Learner, artifact: bytes, limit: int, x: Array, span: tuple[float, float]
) -> tuple[Version, dict[str, Any]]:
    """A version as it was handed over, and what its trainer says of it. Raises Damaged, LogTooNew,
    or Invalid."""
    with np.errstate(all="ignore"):  # what overflows is refused
        meta = read_meta(artifact, limit)
        if not learner.settings.has_net and not meta.get("without"):
            raise Invalid(
                "has no net: it takes no version but one that was rebuilt without decisions",
                path="policy",
            )
        expect_sound(learner, read_artifact(learner, artifact, limit), x, span)
        return read_artifact(learner, artifact, limit), meta


def find(state: State, policy: str) -> Learner:
    """Raises NotFound."""
    learner = state.learners.get(policy)
    if learner is None:
        raise NotFound("the experiment has no policy of this name", path="policy")
    return learner

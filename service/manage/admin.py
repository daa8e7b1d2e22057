"""Changes of experiments, arms and versions. Each is an event in the log."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Mapping, Set
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec import structs

from service.bandits.heads.base import Meta
from service.bandits.kinds import AnyPolicy
from service.bandits.version import Version
from service.decide.traffic import no_policy
from service.definition.difference import Difference, difference
from service.definition.experiment import LARGEST_REWARD, SMALLEST_RANGE, Definition
from service.definition.rules import unknown_arms
from service.errors import (
    Conflict,
    Damaged,
    Fault,
    Invalid,
    NotFound,
    PreconditionFailed,
    StoreUnavailable,
    UnknownSchema,
)
from service.features.attributes import attribute_faults
from service.features.schema import Array, Schema
from service.features.view import View
from service.log.log import Log
from service.log.replay import Pace, erasures, record_at, skip_mark, skipped_positions
from service.log.stores import Store
from service.log.stores.base import Append, Blob, MarkConflict
from service.manage.probing import expect_sound, rows_of
from service.naming import listed, not_found, quoted
from service.state.artifacts import pack_artifact, read_artifact, read_meta, report_of
from service.state.events import (
    AnyEvent,
    ArmPatched,
    ArmRemoved,
    ArmUpserted,
    ExperimentDefined,
    ExperimentDeleted,
    FeatureValues,
    PolicyReset,
    RolloutStarted,
    RolloutStepped,
    Skipped,
    TrafficChanged,
    TrainingReport,
    VersionStaged,
    encode_event,
)
from service.state.fold import State
from service.state.footprint import expect_room
from service.state.learner import Learner
from service.state.rulebook import RuleBook
from service.state.succession import obstacle
from service.telemetry.logs import log_change
from service.training.settlements import collect

logger = logging.getLogger(__name__)

RevisingEvent = (
    ExperimentDefined
    | ExperimentDeleted
    | PolicyReset
    | TrafficChanged
    | RolloutStarted
    | RolloutStepped
)

MOST_BEHIND = 20_000
"""Events since its watermark that a version may lack. Every replica folds them at once where the
version is staged: some seconds, in which rewards wait to be learned."""

SETTING_BOUNDS = {
    "alpha": (1e-9, 1e6),
    "ridge": (1e-9, 1e9),
    "noise": (1e-9, LARGEST_REWARD),
    "scale": (1e-9, 1e6),
}
"""Bounds of settings that are multiplied with features and rewards: far beyond useful values, and
far from overflow."""


class DefinitionPlan(NamedTuple):
    """A definition that is checked and not logged yet.

    state      of the experiment as it is
    created    it is defined for the first time
    restarts   policies that would start from the prior, and why
    changes    difference from the definition and the catalogue as they are
    """

    state: State
    created: bool
    event: ExperimentDefined
    definition: Definition
    restarts: dict[str, str]
    changes: Difference

    def expect_arms(self) -> None:
        """Raise Conflict where the catalogue would be emptied: whoever leaves out `arms` may not
        mean it."""
        if self.created or not self.state.arms or self.definition.arms:
            return
        raise Conflict(
            f"the definition has no arms, and the {len(self.state.arms):,} of the catalogue would "
            "go: send them as well (GET has them), or say that it is meant with ?replace=true or "
            f'If-Match: "{self.state.revision}"',
            faults=[Fault(path, message) for path, message in self.changes.losses()],
        )


class Admin:
    """Changes of definitions, arms and policies. memory_bytes: estimated memory that an experiment
    may take."""

    def __init__(self, log: Log, store: Store, memory_bytes: int) -> None:
        self._log, self._store, self._memory_bytes = log, store, memory_bytes

    # -- experiments ---------------------------------------------------------------------------

    async def define(
        self,
        name: str,
        definition: Definition,
        by: str,
        if_match: int | None = None,
        *,
        replace: bool = False,
    ) -> tuple[State, DefinitionPlan]:
        """Define an experiment, first or anew. Raises as `plan`, and Conflict where the definition
        would empty the catalogue, or another one came between.

        by        here and below: as in `events.Change`
        replace   an empty catalogue is meant, which a revision to be changed says as well
        """
        plan = await self.plan(name, definition, if_match)
        if not replace and if_match is None:
            plan.expect_arms()
        event = structs.replace(plan.event, by=by)
        await self.append_revision(plan.state, event, "defined")
        return await self._log.replicas.discover(name), plan

    async def define_policy(
        self, name: str, policy: str, settings: AnyPolicy, by: str, if_match: int | None = None
    ) -> tuple[State, DefinitionPlan]:
        """Create a policy, or give it other settings. Raises as `plan_policy`, or Conflict where
        another definition came between."""
        plan = await self.plan_policy(name, policy, settings, if_match)
        arms = plan.state.current_definition.arms  # with those that were added since the plan
        definition = {**plan.event.definition, "arms": arms}
        event = structs.replace(plan.event, definition=definition, by=by)
        await self.append_revision(plan.state, event, f"policy {policy} defined")
        return await self._log.replicas.discover(name), plan

    async def plan(
        self, name: str, definition: Definition, if_match: int | None = None
    ) -> DefinitionPlan:
        """Plan what a definition would do.

        Other features start a new schema version. Policies keep what they learned of the columns
        that stay, unless a setting of the head or an input of a net changed (`succession`).
        Raises Invalid, or PreconditionFailed.
        """
        return await self._plan(await self._present(name), definition, if_match)

    async def plan_policy(
        self, name: str, policy: str, settings: AnyPolicy, if_match: int | None = None
    ) -> DefinitionPlan:
        """Plan what a new policy, or other settings of one, would do. Raises as `plan`, and
        NotFound where there is no such experiment."""
        state = await self._present(name)
        if state.deleted:
            raise NotFound(f"there is no experiment {quoted(name)}", path="experiment")
        try:
            settings = _divided(state, policy, settings)
            changed = state.definition_with_shares.with_policy(policy, settings)
        except ValueError as fault:
            path, _, message = str(fault).partition(": ")
            raise Invalid(message, path=path) from fault
        definition = changed.with_catalogue(state.arms, state.attributes)
        return await self._plan(state, definition, if_match)

    async def _present(self, name: str) -> State:
        await self._log.replicas.catch_up(name)
        return await self._log.replicas.discover(name)

    async def _plan(
        self, state: State, definition: Definition, if_match: int | None
    ) -> DefinitionPlan:
        created = state.deleted
        definition = definition.completed()
        self.check(definition)
        self.check_revision(state, if_match)
        if not created:
            definition = _gathered(state, definition)
            _expect_comparable(state, definition)
        expect_room(self._memory_bytes, state, definition, len(definition.arms))
        same = not created and state.definition.features.same_as(definition.features)
        version = state.schema_version + (not same)
        event = _defined(state, definition, version, self._log.clock.now(state))
        before = None if created else _gathered(state, state.current_definition)
        changes = difference(before, definition)
        fresh = await asyncio.to_thread(_folded, state.name, event)
        restarts = {
            policy: reason
            for policy, learner in fresh.folded.items()
            if (kept := state.folded.get(policy)) and (reason := obstacle(kept, learner))
        }
        if not created:
            restarts |= _unfolded(state.definition, definition)
        return DefinitionPlan(state, created, event, definition, restarts, changes)

    async def share(
        self,
        state: State,
        policy: str,
        share: float,
        by: str,
        if_match: int | None = None,
        reason: str = "",
    ) -> None:
        """Change a policy's share of the traffic. reason: why, for people. Raises
        PreconditionFailed, Conflict where another revision came between, Invalid, or NotFound."""
        find(state, policy)
        self.check_revision(state, if_match)
        if not (share and state.traffic.version_share(policy)):  # versions divide any share
            expect_no_rollout(state, policy, "its share")
        if not any({**state.traffic.given, policy: share}.values()):
            raise Invalid("at least one policy needs a share above 0", path="share")
        budget = state.traffic.budget
        if budget is not None and budget.policy == policy and not share:
            raise Invalid(
                f"never_below names {quoted(policy)}: it decides what the others may not, and "
                "needs a share above 0",
                path="share",
            )
        event = TrafficChanged(
            at=self._log.clock.now(state),
            by=by,
            shares={policy: share},
            revision=state.revision + 1,
            reason=reason,
        )
        await self.append_revision(state, event, f"share of {policy} set to {share:g}")

    async def delete(self, state: State, by: str, if_match: int | None = None) -> None:
        self.check_revision(state, if_match)
        event = ExperimentDeleted(at=self._log.clock.now(state), by=by, revision=state.revision + 1)
        await self.append_revision(state, event, "deleted")

    async def reset(self, state: State, policy: str, by: str, if_match: int | None = None) -> None:
        """Start a policy's head from the prior and its net untrained: it forgets all it learned.

        Raises NotFound, PreconditionFailed, or Conflict where a definition came between.
        """
        find_folded(state, policy)
        self.check_revision(state, if_match)
        expect_no_rollout(state, policy, "what it has learned")
        event = PolicyReset(
            at=self._log.clock.now(state), by=by, policy=policy, revision=state.revision + 1
        )
        await self.append_revision(state, event, f"policy {policy} reset")

    async def append_revision(
        self, state: State, event: RevisingEvent, what: str, mark: str | None = None
    ) -> None:
        """Log an event that makes the next revision. Raises Conflict where another one did.

        what   it does, for the service's own log
        mark   of what else it does once; None: nothing
        """
        marks = {f"revision/{event.revision}": ""} | ({} if mark is None else {mark: ""})
        entry = Append(state.name, encode_event(event), marks)
        outcome = await self._log.committer.append(entry, event)
        if isinstance(outcome, MarkConflict):
            raise Conflict(f"revision {event.revision} was defined by someone else meanwhile")
        log_change(state.name, f"{what.removesuffix('.')}, revision {event.revision}", event.by)

    @staticmethod
    def check_revision(state: State, if_match: int | None) -> None:
        """Raise PreconditionFailed where another revision was to be changed."""
        if if_match is not None and (state.deleted or if_match != state.revision):
            raise PreconditionFailed("If-Match names another revision than the present one")

    @staticmethod
    def check(definition: Definition) -> None:
        """Raise Invalid for faults of arms and widths, which `Definition` does not check, and for
        numbers that are too large."""
        _expect_moderate(definition)
        schema = Schema(definition.features)
        for arm, values in definition.arms.items():
            _expect_values(schema, definition, *definition.split(values), f"arms.{arm}")
        for loc, fault in unknown_arms(definition.rules, definition.arms):
            raise Invalid(fault, path=".".join(("rules", *loc)))
        for rule, fault in RuleBook(definition).faults(definition.arms):
            raise Invalid(fault, path=f"rules.{rule}")
        for name, policy in definition.policies.items():
            widths = {}
            if policy.policy().sees_features:
                view = View(schema, definition.features_of(policy))
                widths["features"] = view.width
                if view.fault:
                    raise Invalid(view.fault, path=f"policies.{name}.features")
            if net := policy.policy().net:
                widths |= {"hidden": max(net.hidden), "embedding": net.embedding}
            for setting, width in widths.items():
                if width > definition.max_vector:
                    raise Invalid(
                        f"makes {width} columns, more than max_vector {definition.max_vector}",
                        path=f"policies.{name}.{setting}",
                    )

    # -- arms ----------------------------------------------------------------------------------

    async def upsert_arms(
        self, state: State, arms: Mapping[str, Mapping[str, object]], by: str
    ) -> None:
        """Add arms, or replace their values, which are side by side as in a definition: all of one
        call, checked first, in one commit. Raises Invalid."""
        self._expect_room(state, arms.keys())
        pace, entries, own = Pace(), list[tuple[Append, AnyEvent]](), secrets.token_hex(16)
        now = self._log.clock.now(state)
        for number, (arm, values) in enumerate(arms.items()):
            features, attributes = state.definition.split(values)
            _expect_values(state.schema, state.definition, features, attributes, f"arms.{arm}")
            event = ArmUpserted(at=now, by=by, arm=arm, features=features, attributes=attributes)
            marks = {f"admin/{own}/{number}": ""}
            entries.append((Append(state.name, encode_event(event), marks), event))
            await pace.keep()
        await self._log.committer.append_all(entries)
        log_change(state.name, f"arms set: {listed(arms)}", by)

    async def put_arm(
        self, state: State, arm: str, features: FeatureValues, attributes: FeatureValues, by: str
    ) -> None:
        """Add an arm, or replace all its values. Raises Invalid."""
        self._expect_room(state, {arm})
        _expect_values(state.schema, state.definition, features, attributes)
        now = self._log.clock.now(state)
        event = ArmUpserted(at=now, by=by, arm=arm, features=features, attributes=attributes)
        await self._append_arm(state, event, f"arms set: {listed([arm])}")

    async def patch_arm(
        self, state: State, arm: str, features: FeatureValues, attributes: FeatureValues, by: str
    ) -> None:
        """Change the named values of an arm, and remove those that are None. Raises NotFound, and
        Invalid where the arm would not fit."""
        expect_listed(state, arm)
        whole = {**state.arms[arm], **features} if features else None
        _expect_values(state.schema, state.definition, whole, attributes)
        now = self._log.clock.now(state)
        event = ArmPatched(at=now, by=by, arm=arm, features=features, attributes=attributes)
        await self._append_arm(state, event, f"arm {quoted(arm)} changed")

    async def _append_arm(
        self, state: State, event: ArmUpserted | ArmPatched | ArmRemoved, what: str
    ) -> None:
        marks = {f"admin/{secrets.token_hex(16)}": ""}
        await self._log.committer.append(Append(state.name, encode_event(event), marks), event)
        log_change(state.name, what, event.by)

    def _expect_room(self, state: State, arms: Set[str]) -> None:
        """Raise Invalid where new ones among the arms would exceed the memory."""
        if new := len(arms - state.arms.keys()):
            count = len(state.arms) + new
            expect_room(self._memory_bytes, state, state.definition, count)

    async def remove_arm(self, state: State, arm: str, by: str) -> None:
        """Remove an arm: it is no longer chosen; what was shown of it can still be rewarded. Raises
        NotFound."""
        expect_listed(state, arm)
        event = ArmRemoved(at=self._log.clock.now(state), by=by, arm=arm)
        await self._append_arm(state, event, f"arm {quoted(arm)} retired")

    # -- versions ------------------------------------------------------------------------------

    async def stage(self, state: State, policy: str, artifact: bytes, by: str) -> int:
        """Take a trained version: store it and log it. It learns from there on, and serves once its
        gate lets it.

        Returns its number. Raises NotFound, Invalid where it does not fit the policy, Conflict
        where it was made for another head or version than the next, or lacks too many events.
        """
        learner = find_folded(state, policy)
        x = await rows_of(self._store, state)
        try:
            version, meta = await asyncio.to_thread(_judged, learner, artifact, x)
            training = report_of(meta)
        except (Damaged, UnknownSchema) as fault:
            raise Invalid(str(fault), path="artifact") from fault
        if (meta.get("born"), version.number) != learner.next_version:
            raise Conflict("the version was trained for another head, or is not the next one")
        if learner.challenger is not None:
            number = learner.challenger.version.number
            raise Conflict(f"version {number} is still compared with the one that serves")
        if not 0 < version.trained_to <= state.position:
            raise Invalid("the watermark lies outside the log", path="artifact")
        if (behind := state.position - version.trained_to) > MOST_BEHIND:
            raise Conflict(
                f"the version lacks {behind:,} events, and may lack {MOST_BEHIND:,}: rebuild its "
                "head and hand it over again"
            )
        following = version.trained_to + 1
        if following <= state.position and not await record_at(self._store, state.name, following):
            raise Conflict(
                "the log was trimmed beyond what the version was trained to: train again"
            )
        async for erased in erasures(self._store, state.name, version.trained_to):
            if version.memory and not set(erased.decisions).isdisjoint(version.memory.keys):
                raise Conflict("the version was trained on what has been erased: train again")
        return await self._append_version(state, learner, version, artifact, by, training=training)

    async def go_back(self, state: State, policy: str, number: int, by: str) -> int:
        """Let the net of an earlier version serve again: rebuild its head over the log, and stage
        both as the next version, which no gate holds back.

        Returns its number. Raises NotFound, or Conflict where the version serves, where its
        artifact or the beginning of the log is gone, or where it saw other columns.
        """
        learner = find_folded(state, policy)
        version = await self._regrown(state, learner, number)
        artifact = await asyncio.to_thread(pack_artifact, *learner.describe(version))
        return await self._append_version(state, learner, version, artifact, by, of=number)

    async def _regrown(self, state: State, learner: Learner, number: int) -> Version:
        """Return the next version with the net of an earlier one, and a head over the whole log.
        Raises as `go_back`."""
        known = {str(each.number): each for each in state.versions.of(learner.name)}
        if (entry := known.get(str(number))) is None:
            raise not_found("version", str(number), known)
        if entry.state in ("serving", "challenger"):
            word = "serves already" if entry.state == "serving" else "waits at its gate"
            raise Conflict(f"version {number} {word}")
        if learner.challenger is not None:
            waits = learner.challenger.version.number
            raise Conflict(f"version {waits} is still compared with the one that serves")
        if entry.born not in learner.births:
            raise Conflict(
                f"version {number} cannot serve again: the policy was started anew since, with "
                "other columns or settings"
            )
        artifact = await self._store.blob(state.name, entry.artifact)
        if artifact is None:
            raise Conflict(f"version {number} cannot serve again: its artifact is gone")
        try:
            earlier = await asyncio.to_thread(read_artifact, learner, artifact)
        except (Damaged, UnknownSchema) as fault:
            raise Conflict(f"version {number} cannot serve again: {fault}") from fault
        try:
            history = await collect(self._store, state, learner)
        except StoreUnavailable as fault:
            raise Conflict(
                f"version {number} cannot serve again: the log no longer holds the beginning of "
                f"{learner.name}'s head"
            ) from fault
        encoder, view = earlier.encoder, earlier.view
        return await asyncio.to_thread(partial(learner.rebuilt, encoder, history, view, of=earlier))

    async def _append_version(
        self,
        state: State,
        learner: Learner,
        version: Version,
        artifact: bytes,
        by: str,
        training: TrainingReport | None = None,
        of: int | None = None,
    ) -> int:
        """Store an artifact and log its version; its number. training, of: as `VersionStaged` has
        them. Raises Conflict where another one came first."""
        digest = hashlib.sha256(artifact).hexdigest()
        await self._store.put(state.name, Blob(digest, artifact))
        event = VersionStaged(
            at=self._log.clock.now(state),
            by=by,
            policy=learner.name,
            born=learner.born,
            version=version.number,
            artifact=digest,
            size=len(artifact),
            watermark=version.trained_to,
            rewards=version.rewards,
            training=training,
            of=of,
        )
        mark = f"staged/{event.policy}/{event.born}/{event.version}"
        entry = Append(state.name, encode_event(event), {mark: digest})
        outcome = await self._log.committer.append(entry, event)
        if isinstance(outcome, MarkConflict) and outcome.marks[mark].value != digest:
            raise Conflict("another artifact was staged as this version")
        log_change(state.name, f"version {event.version} of {event.policy} staged", by)
        return event.version

    # -- repair --------------------------------------------------------------------------------

    async def skip(self, name: str, position: int, by: str) -> None:
        """Let every replica pass over the event that an experiment is quarantined for.

        Raises NotFound, Conflict where it is not quarantined for that event, StoreUnavailable.
        """
        replica = await self._log.replicas.join(name)
        if replica.state.position == 0 and replica.quarantine is None:
            raise NotFound(f"there is no experiment {quoted(name)}", path="experiment")
        stopped = replica.quarantine
        if stopped is None or stopped.position != position:
            raise Conflict("the experiment is not quarantined for an event at this position")
        mark = skip_mark(len(await skipped_positions(self._store, name)))
        at = self._log.clock.now(replica.state)
        event = Skipped(at=at, by=by, position=position, reason=stopped.reason)
        entry = Append(name, encode_event(event), {mark: str(position)})
        await self._log.committer.append(entry, event)
        log_change(name, f"event at position {position} skipped", by)
        if not await replica.lift():
            logger.warning("experiment %s: another event cannot be folded", name)


def _defined(
    state: State, definition: Definition, schema_version: int, at: float, by: str = ""
) -> ExperimentDefined:
    return ExperimentDefined(
        at=at,
        by=by,
        revision=state.revision + 1,
        schema_version=schema_version,
        definition=definition.model_dump(mode="json"),
    )


def expect_no_rollout(state: State, policy: str, what: str) -> None:
    """Raise Conflict for a change of a policy in a rollout that would make its two policies
    incomparable. what: is to be changed."""
    rollout = state.traffic.rollout_of(policy)
    if rollout is not None:
        raise Conflict(
            f"a rollout of {quoted(rollout.challenger)} in place of {quoted(rollout.baseline)} is "
            f"under way, and {what} would change: end the rollout first (advance it to the end, or "
            "take it back)"
        )


def _expect_comparable(state: State, definition: Definition) -> None:
    """Raise Conflict where another definition changes what a rollout under way compares: its two
    policies, the reward, the features or the segments; or where its loss budget names one of the
    two. Shares may change: the two have what both are given."""
    now = state.definition
    for rollout in state.traffic.rollouts.values():
        if rollout.ended:
            continue
        for name in (rollout.policy, rollout.baseline):
            policy = definition.policies.get(name)
            if policy != now.policies[name].model_copy(update={"share": policy and policy.share}):
                expect_no_rollout(state, name, f"policy {quoted(name)}")
        never = definition.never_below
        if not sum(definition.policies[name].share for name in {rollout.policy, rollout.baseline}):
            expect_no_rollout(state, rollout.policy, "that there is any traffic for it")
        of_version = rollout.version is not None
        if never and not of_version and never.policy in (rollout.policy, rollout.baseline):
            expect_no_rollout(state, never.policy, "how never_below divides its traffic")
        if definition.reward != now.reward:
            expect_no_rollout(state, rollout.policy, "the reward")
        if not definition.features.same_as(now.features):
            expect_no_rollout(state, rollout.policy, "the features")
        if definition.rollout.guardrails.where != now.rollout.guardrails.where:
            expect_no_rollout(state, rollout.policy, "the segments that it is judged in")


def _gathered(state: State, definition: Definition) -> Definition:
    """Return a definition whose baselines have the traffic of their rollouts: a rollout alone
    divides it."""
    shares = {name: policy.share for name, policy in definition.serving.items()}
    return definition.with_shares(state.traffic.gathered(shares))


def _divided(state: State, policy: str, settings: AnyPolicy) -> AnyPolicy:
    """Return settings of a policy with its share, where a rollout says what that is. Raises
    Conflict for another share than it has, now or without the rollout."""
    rollout = state.traffic.rollout_of(policy)
    if rollout is None or rollout.version is not None:
        return settings
    share = state.traffic.given[policy]
    if settings.share not in (share, state.traffic.gathered(state.traffic.given)[policy]):
        expect_no_rollout(state, policy, "its share")
    return settings.model_copy(update={"share": share})


def _unfolded(before: Definition, after: Definition) -> dict[str, str]:
    """Return the policies that lose their heads or had none, as `fold` says."""
    loses = "a shadow with fold = false has no head, and it loses the one that it has"
    had_none = "a shadow with fold = false has no head that it could go on with"
    return {
        name: had_none if policy.fold else loses
        for name, policy in after.policies.items()
        if name in before.policies and before.policies[name].fold != policy.fold
    }


def _expect_moderate(definition: Definition) -> None:
    """Raise Invalid for numbers with which sums or scores would overflow, or squares vanish."""
    rules = definition.reward
    if rules.range[1] - rules.range[0] < SMALLEST_RANGE:
        raise Invalid(f"must be at least {SMALLEST_RANGE:g} wide", path="reward.range")
    bounded: list[tuple[str, object, float, float]] = [
        (f"reward.{setting}", end, -LARGEST_REWARD, LARGEST_REWARD)
        for setting, ends in (("range", rules.range), ("total", rules.total or ()))
        for end in ends
    ]
    for name, policy in definition.policies.items():
        values = policy.model_dump(include=set(SETTING_BOUNDS))
        bounded += [
            (f"policies.{name}.{setting}", values.get(setting) or None, low, high)
            for setting, (low, high) in SETTING_BOUNDS.items()
        ]
    for path, value, low, high in bounded:
        if isinstance(value, float) and not low <= value <= high:
            raise Invalid(f"must lie between {low:g} and {high:g}", path=path)


def _expect_values(
    schema: Schema,
    definition: Definition,
    features: Mapping[str, object] | None,
    attributes: Mapping[str, object],
    path: str = "",
) -> None:
    """Raise Invalid that names each fault in the values of an arm: under `path` where features and
    attributes stand side by side, else under `features` and `attributes`.

    features   None: they stay as they are
    """
    faults = attribute_faults(definition.attributes, attributes, path or "attributes")
    try:
        if features is not None:
            beside = definition.attributes if path else ()
            schema.encode_arm(features, path or "features", beside)
    except Invalid as fault:
        raise Invalid(fault.detail, faults=[*fault.faults, *faults]) from None
    if faults:
        raise Invalid("an attribute is unknown or of a wrong type", faults=faults)


def _folded(name: str, event: ExperimentDefined) -> State:
    """Fold a definition into an empty state. Raises Invalid where that fails, whatever the cause
    is: no replica could serve it."""
    state = State(name)
    try:
        state.apply(1, event)
    except Exception as fault:
        raise Invalid(f"cannot be served: {fault}", path="policies") from fault
    return state


def _judged(learner: Learner, artifact: bytes, x: Array) -> tuple[Version, Meta]:
    """Return an uploaded version and its trainer's metadata. Raises Damaged, UnknownSchema, or
    Invalid."""
    with np.errstate(all="ignore"):  # what overflows is refused
        meta = read_meta(artifact)
        if learner.policy.net is None and not meta.get("without"):
            raise Invalid(
                "has no net: it takes no version but one that was rebuilt without decisions",
                path="policy",
            )
        expect_sound(learner, read_artifact(learner, artifact), x)
        return read_artifact(learner, artifact), meta


def expect_listed(state: State, arm: str) -> None:
    """Raise NotFound for an arm that the catalogue lacks."""
    if arm not in state.arms:
        raise not_found("arm", arm, state.arms)


def find(state: State, policy: str) -> Learner:
    """Find the learner of a policy that can decide. Raises NotFound."""
    learner = state.learners.get(policy)
    if learner is None:
        raise no_policy(state, policy)
    return learner


def find_folded(state: State, policy: str) -> Learner:
    """Find the learner of a policy or of a shadow. Raises NotFound."""
    return state.shadows[policy] if policy in state.shadows else find(state, policy)

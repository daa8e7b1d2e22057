"""State = fold(state, events): the only code that changes an experiment's state.

Live service, recovery, replicas and the trainer all call `apply`, an event at a time, in log order.
A snapshot is a saved fold: `snapshot` and `restore` keep every bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, TypeGuard
from weakref import WeakSet

import numpy as np
from msgspec import structs

from service.bandits.candidates import Candidates, Selections
from service.bandits.heads.base import Meta, Stored, part
from service.bandits.kinds import AnyPolicy
from service.bandits.linalg import Index
from service.bandits.version import Version
from service.definition.experiment import FALLBACK, Definition
from service.errors import Damaged, FoldedBeforeSkipped, Invalid, LogGap
from service.features.attributes import fitting
from service.features.columns import base_meanings, places, taken, unknown, view_meanings
from service.features.row import Row, RowLayout
from service.features.schema import Array, Schema
from service.state import codec
from service.state.artifacts import SNAPSHOT_SCHEMA
from service.state.changelog import ChangeLog, Serving
from service.state.decider import Decider
from service.state.events import (
    AUTOMATIC,
    Activated,
    AnyEvent,
    ArmPatched,
    ArmRemoved,
    ArmUpserted,
    BudgetMoved,
    ChangeDetected,
    ChangingEvent,
    Corrected,
    Erased,
    ExperimentDefined,
    ExperimentDeleted,
    Expired,
    Exposed,
    FeatureValues,
    Imported,
    Learned,
    Leased,
    LogTruncated,
    Outcome,
    PolicyReset,
    Rewarded,
    RolloutStarted,
    RolloutStepped,
    Skipped,
    Tombstone,
    TrafficChanged,
    VersionActivated,
    VersionRejected,
    VersionStaged,
    has_erased,
    settlements_of,
)
from service.state.examination import Examination
from service.state.exposure import Exposure
from service.state.learner import Learner
from service.state.newness import Newness
from service.state.reward_statistics import ArmRewardSums, RewardTotals
from service.state.rollout import last_words
from service.state.rule_plan import Ruled
from service.state.rulebook import RuleBook, Situation
from service.state.snapshot import Snapshot
from service.state.succession import obstacle, succeed
from service.state.traffic import Traffic
from service.state.version_gate import gate_sentence
from service.state.version_registry import Instant, VersionRegistry

LONGEST_RUN, LONGEST_SLOW_RUN = 64, 4
"""Events that are folded at once at most; the same where a policy learns one after the other."""

EARLIER = 16
"""Earlier schemas of which rewards are still learned."""


NO_INLINE: Mapping[str, Mapping[str, object]] = {}
"""Values of arms outside the catalogue, where there are none."""


class ErasedParts(NamedTuple):
    """What erasures have taken out of a log.

    positions   of events that lost some or all of what they held
    decisions   that were erased
    """

    positions: Set[int] = frozenset()
    decisions: Set[str] = frozenset()


class Earlier(NamedTuple):
    """Base vectors of an earlier schema. columns: where each present column was; -1: nowhere."""

    layout: RowLayout
    columns: Index


class State:
    """One experiment, folded from its log up to `position`.

    arms         features of the catalogue, by arm
    attributes   attributes of the catalogue, by arm where it has any
    rows         the catalogue's encoded features; a new mapping once all of them change
    changes      arms added, changed or removed since this mapping was made
    changed      the last of these, in order
    learners     policies that can decide
    shadows      policies that learn and decide nothing
    built_in     decides where policies cannot, and learns from every reward; None: the definition
                 names a fallback
    traffic      shares of the policies
    selections   recent candidates of requests that named them
    rulebook     what may be shown, as the definition's rules say
    exposure     what rules with a window count in it
    newness      when the arms of the catalogue came, and how often a reward of each settled
    skips        positions of events that were passed over
    erased_keys  ids of erased decisions that stood for an Idempotency-Key; none is used again
    log_time     the largest `at` of an event, unix seconds
    reshaped     position of the last event that changed more than `moving` tells
    earlier      base vectors of earlier schemas, by their version
    first_at     `at` of the first event, by which a log is told from another one
    first_schema  schema version of the first definition since the experiment was last deleted;
                 decisions of earlier ones belong to deleted experiments of this name
    lost_to      the last position that the log has lost; lost_at: log time when it was noticed
    examination  of slots, where it is learned
    changelog    changes of all but what is learned, whatever became of the experiment
    versions     trained versions of the policies
    digest       of the last event, as the snapshot has it; empty where it is not known
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.position = self.reshaped = 0
        self.log_time = 0.0
        self.revision = 0
        self.schema_version = self.first_schema = 0
        self.deleted = True
        self.definition: Definition
        self.schema: Schema
        self.earlier: dict[int, Earlier] = {}
        self.arms: dict[str, FeatureValues] = {}
        self.attributes: dict[str, FeatureValues] = {}
        self.learners: dict[str, Learner] = {}
        self.shadows: dict[str, Learner] = {}
        self.built_in: Learner | None = None
        self.traffic: Traffic
        self.reward_sums: dict[str, RewardTotals] = {}
        self.arm_reward_sums: dict[str, ArmRewardSums] = {}
        self.rows: dict[str, Array] = {}
        self.changes = 0
        self.changed: list[str] = []
        self._candidates: Candidates | None = None
        self.selections = Selections()
        self.rulebook: RuleBook
        self._other_rulebooks = WeakSet[RuleBook]()
        self.newness, self.exposure = Newness(), Exposure()
        self.skips: list[int] = []
        self.erased_keys = set[str]()
        self.first_at = 0.0
        self.lost_to, self.lost_at = 0, 0.0
        self.examination: Examination | None = None
        self.digest = ""
        self.changelog = ChangeLog()
        self.versions = VersionRegistry()

    # -- the fold ------------------------------------------------------------------------------

    def apply(self, position: int, event: AnyEvent, version: Version | None = None) -> None:
        """Fold one event. version: the one that a `VersionStaged` stages, with all that it holds
        up to here (`awaits`, `catch_up`).

        Raises LogGap where `position` is not the next one, or its event was erased,
        FoldedBeforeSkipped where it skips an event that this state holds. Whatever else it raises,
        the state may hold a part of the event: only a replay can go on.
        """
        self._expect_next(position)
        if has_erased(event):
            raise _erased(self.name, position)
        if isinstance(event, Skipped):
            self._skip(position, event.position)
        elif isinstance(event, LogTruncated | Exposed | Leased | BudgetMoved):
            self._note(position, event)
        elif not isinstance(event, Activated | Imported | Tombstone):  # marks hold what was shown
            if isinstance(event, Erased):
                self.erased_keys.update(event.keyed)
            self._change(position, event, version)
        if position == 1:
            self.first_at = event.at
        self.changelog.note(position, event, self._serving)
        self.position = position
        if not isinstance(event, Learned | Expired | Exposed | Leased | Activated | Imported):
            self.reshaped = position
        self.log_time = max(self.log_time, event.at)

    @property
    def longest_run(self) -> int:
        """Most settlements that are folded at once, for about a millisecond."""
        each = all(learner.learns_runs for learner in self._all_learners)
        return LONGEST_RUN if each else LONGEST_SLOW_RUN

    def runs_with(self, event: AnyEvent) -> bool:
        """Whether an event can be folded in a run (`apply_run`) with others like it."""
        return (
            isinstance(event, Rewarded | Expired)
            and not self.deleted
            and not has_erased(event)
            and self.examination is None
            and event.schema_version == self.schema_version
            and all(self.schema.layout.holds(row) for row in rows_of(event))
        )

    def apply_run(self, position: int, events: Sequence[Rewarded | Expired]) -> None:
        """Fold events that this state `runs_with`, and that follow each other from a position on,
        with the bits of `apply` one by one. Raises LogGap as `apply`."""
        self._expect_next(position)
        told = [settlements_of(event) for event in events]
        self._tally_run([one for settlements in told for one in settlements])
        for learner in self._all_learners:
            learner.fold_run(position, told)
        if position == 1:
            self.first_at = events[0].at
        self.position = position + len(events) - 1
        self.log_time = max(self.log_time, *(event.at for event in events))

    def _expect_next(self, position: int) -> None:
        if position != self.position + 1:
            raise LogGap(
                f"experiment {self.name}: position {position} follows {self.position} in the log"
            )

    def _serving(self) -> Serving:
        versions = {name: learner.active.number for name, learner in self.learners.items()}
        return versions, {} if self.deleted else self.traffic.given

    def _note(self, position: int, event: LogTruncated | Exposed | Leased | BudgetMoved) -> None:
        """Note what concerns no head and makes no revision."""
        match event:
            case BudgetMoved():
                if not self.deleted:
                    self.traffic = self.traffic.after(position, event)
            case LogTruncated():
                self.lost_to = max(self.lost_to, event.last)
                self.lost_at = max(self.lost_at, event.at)
            case Leased():
                self.exposure.lease(event.at, event.rule, event.process, event.asked)
            case Exposed():
                for _, at, shown in event.decisions:
                    self.exposure.add(at, shown)

    def awaits(self, event: VersionStaged) -> Learner | None:
        """Return the policy that takes the version; None: a definition came between, and it is for
        another head."""
        learner = self.folded.get(event.policy)
        if learner is None or (event.born, event.version) != learner.next_version:
            return None
        return learner

    def catch_up(
        self, learner: Learner, version: Version, position: int, event: AnyEvent, gone: ErasedParts
    ) -> None:
        """Fold an event that the state already holds into a version that is not staged yet.

        gone   what was erased before it is staged: no process folds that into it, whether it reads
               the event or what the erasure has left of it

        Raises LogGap where some of the event has been erased since.
        """
        if position in self.skips:
            return
        if has_erased(event) and position not in gone.positions:
            raise _erased(self.name, position)
        if isinstance(event, Rewarded | Expired | Corrected) and self.knows(event.schema_version):
            settlements = [
                self.present(one)
                for one in settlements_of(event)
                if one.decision not in gone.decisions
            ]
            version.fold(position, version.in_order(learner.told(settlements, position)))
        elif is_change_of(event, learner):
            version.drop(self.present_columns(event), event.since, position)
        elif isinstance(event, Erased):
            version.forget(event.decisions)

    def _change(self, position: int, event: ChangingEvent, version: Version | None) -> None:
        match event:
            case ExperimentDefined():
                self._define(position, event)
            case ExperimentDeleted():
                self.deleted, self.revision, self.examination = True, event.revision, None
                self.learners, self.shadows, self.built_in = {}, {}, None
                self.arms, self.attributes = {}, {}
                self.newness, self.exposure = Newness(), Exposure()
                self.reward_sums, self.arm_reward_sums = {}, {}
                self.versions = VersionRegistry()
            case PolicyReset() | TrafficChanged() | RolloutStarted() | RolloutStepped():
                self._revise(position, event)
            case _ if self.deleted:
                pass  # written before the committer saw the deletion
            case Rewarded() | Expired() | Corrected():
                self._settle(position, event)
            case VersionStaged():
                self.stage(position, event, version)
            case VersionActivated() | VersionRejected():
                self.end_gate(position, event)
            case ChangeDetected() | Erased():
                self._forget(position, event)
            case ArmUpserted() | ArmPatched() | ArmRemoved():
                self._list(event)

    def _forget(self, position: int, event: ChangeDetected | Erased) -> None:
        """Forget a change's stale settlements, or the single settlements of erased decisions: the
        sums of the heads stay."""
        for learner in self._all_learners:
            if isinstance(event, Erased):
                learner.forget(event.decisions)
            elif is_change_of(event, learner):
                learner.change(position, event, self.present_columns(event))

    def _skip(self, position: int, skipped: int) -> None:
        """Skip the event at this position (`replay.read_event`), or check that an earlier one was
        skipped."""
        if skipped == position:
            self.skips.append(position)
        elif skipped not in self.skips:
            raise FoldedBeforeSkipped(
                f"experiment {self.name}: position {skipped} was folded and then skipped"
            )

    def _list(self, event: ArmUpserted | ArmPatched | ArmRemoved) -> None:
        """Add, change or remove an arm; a change of one that was removed since its check changes
        nothing."""
        arm = event.arm
        if isinstance(event, ArmUpserted):
            known = arm in self.arms
            self._upsert(arm, event.features, event.attributes)
            if not known and arm in self.arms:
                self.newness.add(arm, event.at)
        elif isinstance(event, ArmRemoved):
            self.arms.pop(arm, None)
            self.rows.pop(arm, None)
            self.newness.remove(arm)
            self._note_change(arm)
            self._set_attributes(arm, {})
        elif arm in self.arms:
            features = _changed(self.arms[arm], event.features)
            attributes = _changed(self.attributes.get(arm, {}), event.attributes)
            self._upsert(arm, features, attributes)

    def _upsert(self, arm: str, features: FeatureValues, attributes: FeatureValues) -> None:
        """Set an arm, if it fits the features of this position (a definition may have followed its
        check), with those of its attributes that fit. A change of attributes alone leaves all that
        is made of features as it is."""
        if features != self.arms.get(arm):
            try:
                row = self.schema.encode_arm(features)
            except Invalid:
                return
            self.arms[arm], self.rows[arm] = features, row
            self._note_change(arm)
        self._set_attributes(arm, fitting(self.definition.attributes, attributes))

    def _set_attributes(self, arm: str, attributes: FeatureValues) -> None:
        if attributes == self.attributes.get(arm, {}):
            return
        if attributes:
            self.attributes[arm] = attributes
        else:
            del self.attributes[arm]
        for rulebook in (self.rulebook, *self._other_rulebooks):
            rulebook.note_change(arm)

    def _note_change(self, arm: str) -> None:
        """Drop what was made of the features of the catalogue, and note the arm that changed."""
        self._candidates = None
        self.selections.clear()
        self.changes += 1
        self.changed.append(arm)
        if len(self.changed) > max(10_000, len(self.rows) // 4):
            del self.changed[: len(self.changed) // 2]  # a reader behind by more reloads all

    def _define(self, position: int, event: ExperimentDefined) -> None:
        definition = Definition.model_validate(event.definition)
        same_features = event.schema_version == self.schema_version and not self.deleted
        schema = self.schema if same_features else Schema(definition.features)
        if self.deleted:
            self.earlier, self.first_schema = {}, event.schema_version
            self.newness = Newness()
        else:
            self.newness.follow(self.arms, definition.arms, event.at)
            if not same_features:
                self._remember_columns(schema)

        def follow(kept: Learner | None, name: str, settings: AnyPolicy) -> Learner:
            fresh = Learner(self.name, name, settings, definition, schema, event.revision, position)
            if kept is None or obstacle(kept, fresh):
                return fresh
            if same_features and view_meanings(kept.view) == view_meanings(fresh.view):
                kept.configure(settings, definition.reward.limits, position)
                return kept
            succeed(kept, fresh, position)
            return fresh

        kept = self.folded
        folded = {
            name: follow(kept.get(name), name, settings)
            for name, settings in definition.folded.items()
        }
        learners = {name: each for name, each in folded.items() if not each.settings.shadow}
        own = definition.built_in_fallback
        self.built_in = None if own is None else follow(self.built_in, FALLBACK, own)
        traffic, before = (Traffic({}), None) if self.deleted else (self.traffic, self.definition)
        self.traffic = traffic.defined(position, definition, before)
        self.definition, self.schema, self.learners = definition, schema, learners
        self.shadows = {name: each for name, each in folded.items() if name not in learners}
        self.versions.follow(folded, Instant(position, event.at))
        self._mark_who_learns_all(position)
        self.rulebook = RuleBook(definition)
        self.exposure.define(definition.rules)
        self.revision, self.schema_version = event.revision, event.schema_version
        self.reward_sums = {
            name: self.reward_sums.get(name, RewardTotals(position)) for name in learners
        }
        self.arm_reward_sums = {
            name: self.arm_reward_sums.get(name, ArmRewardSums(position)) for name in learners
        }
        if definition.reward.examination != "position":
            self.examination = None
        elif self.examination is None:
            self.examination = Examination()
        self.deleted = False
        self.arms, self.attributes = {}, {}
        for arm, values in definition.arms.items():
            self.arms[arm], attributes = definition.split(values)
            if attributes:
                self.attributes[arm] = attributes
        self._encode_catalogue()

    def _remember_columns(self, schema: Schema) -> None:
        """Where the columns of a new schema were in the present one, and in earlier ones."""
        index = places(base_meanings(self.schema), base_meanings(schema))
        own = Earlier(self.schema.layout, np.arange(self.schema.width))
        known = {self.schema_version: own, **self.earlier}
        self.earlier = {
            version: one._replace(columns=taken(one.columns, index, -1))
            for version, one in list(known.items())[:EARLIER]
        }

    def knows(self, schema_version: int) -> bool:
        """Whether base vectors of this schema can be read."""
        return schema_version == self.schema_version or schema_version in self.earlier

    @property
    def schema_versions(self) -> range:
        """All since the experiment was last deleted."""
        return range(self.first_schema, self.schema_version + 1)

    def has_forgotten(self, schema_version: int) -> bool:
        """Whether nothing can be learned of decisions under this schema any more: it belongs to a
        deleted experiment, or too many others have followed."""
        return schema_version < self.schema_version and not self.knows(schema_version)

    def present(self, event: Learned) -> Learned:
        """Return the event with rows of the present schema. Raises Damaged where its own do not fit
        the schema that it names."""
        present = self.schema.layout
        if event.schema_version == self.schema_version:
            for one in event.settled:
                present.expect(one.row)
            return event
        layout, columns = self.earlier[event.schema_version]
        for one in event.settled:
            layout.expect(one.row)
        base = taken(
            layout.unpack([one.row for one in event.settled]), columns, unknown(self.schema)
        )
        settled = [
            structs.replace(one, row=present.pack(x))
            for one, x in zip(event.settled, base, strict=True)
        ]
        return structs.replace(event, schema_version=self.schema_version, settled=settled)

    def present_columns(self, event: ChangeDetected) -> list[int]:
        """Return the base columns of the present schema that the event names."""
        if event.schema_version == self.schema_version:
            return event.columns
        earlier = self.earlier.get(event.schema_version)
        if earlier is None:
            return []
        return np.flatnonzero(np.isin(earlier.columns, event.columns)).tolist()

    def _revise(
        self, position: int, event: PolicyReset | TrafficChanged | RolloutStarted | RolloutStepped
    ) -> None:
        self.revision = event.revision
        if isinstance(event, PolicyReset):
            self._reset(position, event)
        else:
            self.traffic = self.traffic.after(position, event)
            if isinstance(event, RolloutStepped):
                self._end_rollout_of_version(position, event)
        self._mark_who_learns_all(position)

    def _end_rollout_of_version(self, position: int, event: RolloutStepped) -> None:
        """Let a version serve whose rollout is finished, or drop the one that was rolled back."""
        rollout = self.traffic.rollouts[event.policy]
        if rollout.version is None or not rollout.ended:
            return
        learner = self.learners[event.policy]
        make = VersionActivated if rollout.state == "finished" else VersionRejected
        ended = make(
            at=event.at,
            by=event.by,
            policy=event.policy,
            born=learner.born,
            version=rollout.version,
            gate=learner.gate_figures,
            reason=last_words(rollout),
        )
        self.end_gate(position, ended)

    def _reset(self, position: int, event: PolicyReset) -> None:
        """Start a policy anew, if it is there."""
        name = event.policy
        for held in (self.learners, self.shadows):
            if name in held:
                settings = held[name].settings
                born = event.revision, position
                held[name] = Learner(self.name, name, settings, self.definition, self.schema, *born)
        self.versions.follow(self.folded, Instant(position, event.at))

    def _mark_who_learns_all(self, position: int) -> None:
        """Let shadows learn from every reward, and challengers while their rollouts are under
        way."""
        for name, learner in self.folded.items():
            every = learner.settings.learns_all or self.traffic.is_challenger(name)
            learner.learn_from(every=every, position=position)

    def _encode_catalogue(self) -> None:
        self.rows = {arm: self.schema.encode_arm(features) for arm, features in self.arms.items()}
        self._candidates, self.changes, self.changed = None, 0, []
        self.selections.clear()

    @property
    def deciding(self) -> dict[str, Learner]:
        """The policies that can decide, and the fallback that is built in."""
        built_in = {} if self.built_in is None else {FALLBACK: self.built_in}
        return {**self.learners, **built_in}

    @property
    def counts_settled(self) -> bool:
        """Whether a decision reads how often rewards of arms have settled."""
        return not self.deleted and self.rulebook.counts_settled

    @property
    def fallback(self) -> Decider:
        """What decides where a policy cannot."""
        if self.built_in is not None:
            return Decider.serving(self.built_in)
        return Decider.serving(self.learners[str(self.definition.fallback)])

    def decider(self, policy: str, sticky: str) -> Decider:
        """Return what decides for a unit of a policy: the version that serves, or its challenger
        in a rollout. sticky: as `winner` takes it."""
        learner = self.learners[policy]
        if self.traffic.draws_challenger(self.name, policy, sticky):
            return Decider.challenging(learner)
        return Decider.serving(learner)

    @property
    def deciders(self) -> dict[Decider, float]:
        """What decides the requests that name no policy, each with its chance."""
        found = dict[Decider, float]()
        for name, chance in self.traffic.chances.items():
            learner, part = self.learners[name], self.traffic.version_share(name)
            found[Decider.serving(learner)] = chance * (1 - part)
            if part:
                found[Decider.challenging(learner)] = chance * part
        return found

    def rolls_out(self, learner: Learner) -> bool:
        """Whether a policy's challenger has to take over its traffic in stages: if there is any."""
        return learner.rolls_out and self.traffic.chance(learner.name) > 0

    @property
    def folded(self) -> dict[str, Learner]:
        """The policies that learn: those that can decide, and shadows."""
        return {**self.learners, **self.shadows}

    @property
    def _all_learners(self) -> list[Learner]:
        built_in = [] if self.built_in is None else [self.built_in]
        return [*self.learners.values(), *self.shadows.values(), *built_in]

    @property
    def current_definition(self) -> Definition:
        """Return the definition, with the catalogue as it is now and the shares as they are set."""
        return self.definition_with_shares.with_catalogue(self.arms, self.attributes)

    @property
    def definition_with_shares(self) -> Definition:
        """Return the definition, with the shares as people and rollouts have set them."""
        return self.definition.with_shares(self.traffic.given)

    @property
    def candidates(self) -> Candidates:
        """Return the catalogue as arms to choose from, cached until it changes."""
        if self._candidates is None:
            x = np.array(list(self.rows.values())).reshape(len(self.rows), self.schema.arm.width)
            self._candidates = Candidates(tuple(self.rows), x)
        return self._candidates

    def rule(
        self,
        candidates: Candidates,
        situation: Situation,
        inline: Mapping[str, Mapping[str, object]] = NO_INLINE,
        rulebook: RuleBook | None = None,
    ) -> Ruled:
        """Return what the rules make of a decision among candidates. inline: values of those
        outside the catalogue; rulebook: of other rules. Raises NoEligibleArm."""

        def values(arm: str) -> Mapping[str, object]:
            if arm in inline:
                return inline[arm]
            return {**self.arms[arm], **self.attributes.get(arm, {})}

        if rulebook is not None:  # it has to hear of attributes that change
            self._other_rulebooks.add(rulebook)
        book = rulebook or self.rulebook
        return book.rule(candidates, values, self.newness, situation, inline)

    def _settle(self, position: int, event: Rewarded | Expired | Corrected) -> None:
        if not self.knows(event.schema_version):
            return
        settlements = [self.present(one) for one in settlements_of(event)]
        for one in settlements:
            self._tally(one)
        for learner in self._all_learners:
            learner.fold(position, settlements)

    def _tally(self, event: Learned) -> None:
        """Count the outcomes of an event in all sums beside the heads."""
        tally, by_arm = self.reward_sums.get(event.policy), self.arm_reward_sums.get(event.policy)
        for outcome in event.settled:
            if self.examination is not None:
                self._examine(self.examination, outcome)
            if tally is not None and by_arm is not None:
                tally.move(outcome)
                by_arm.move(outcome, self.arms)
                self.versions.settle(event.policy, event.version, outcome)
            self.newness.settle(outcome, self.arms)

    def _tally_run(self, settlements: Sequence[Learned]) -> None:
        """Count first outcomes as `_tally` does: what adds up in one sum in its order."""
        by_policy = dict[str, list[Outcome]]()
        by_version = dict[tuple[str, int], list[float]]()
        for one in settlements:
            by_policy.setdefault(one.policy, []).extend(one.settled)
            rewards = by_version.setdefault((one.policy, one.version), [])
            rewards.extend(outcome.reward for outcome in one.settled)
            for outcome in one.settled:
                self.newness.settle(outcome, self.arms)
        for policy, found in by_policy.items():
            tally, by_arm = self.reward_sums.get(policy), self.arm_reward_sums.get(policy)
            if tally is not None and by_arm is not None:
                tally.add([outcome.reward for outcome in found])
                for outcome in found:
                    by_arm.move(outcome, self.arms)
        for (policy, version), rewards in by_version.items():
            if policy in self.reward_sums:
                self.versions.add(policy, version, rewards)

    def _examine(self, examination: Examination, outcome: Outcome) -> None:
        scaled = self.definition.reward.scaled
        slot, reward = outcome.slot, scaled(outcome.reward)
        own = None if outcome.inline else outcome.arm
        if not slot:
            return
        if outcome.was is None:
            examination.learn(own, slot, reward, outcome.predicted)
        else:
            examination.correct(own, slot, reward, scaled(outcome.was))

    def examined(self, slot: int) -> float:
        """Return the chance that a user looks at a slot, from 1 on, by which a miss weighs."""
        given = self.definition.reward.examination
        if isinstance(given, list):
            return given[min(slot, len(given)) - 1]
        return 1.0 if self.examination is None else self.examination.lower(slot)

    @property
    def chances(self) -> list[float] | None:
        """Chances that a user looks at the slots, from the first on, as they are given or
        likeliest; None: every miss counts whole."""
        if self.examination is not None:
            return self.examination.likely
        given = self.definition.reward.examination
        return given if isinstance(given, list) else None

    def stage(self, position: int, event: VersionStaged, version: Version | None) -> None:
        """Take a version as a challenger, if a policy awaits it. Raises Damaged where it is
        missing."""
        if (learner := self.awaits(event)) is None:
            return
        if version is None:
            raise Damaged(f"artifact {event.artifact} of {event.policy}/{event.version} is missing")
        learner.stage(version, event.training)
        self.versions.stage(position, event)

    def end_gate(self, position: int, event: VersionActivated | VersionRejected) -> None:
        """Let the challenger that the event names serve, or drop it."""
        learner = self.folded.get(event.policy)
        if learner is None or (challenger := learner.challenger) is None:
            return
        if (event.born, event.version) != (learner.born, challenger.version.number):
            return  # it ended the gate of another head
        if isinstance(event, VersionActivated):
            learner.activate(position, event.at)
        else:
            learner.challenger = None
        self.versions.end_gate(position, event)

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Save the fold."""
        return self.capture()()

    def capture(self, digest: str = "", *, learning: bool = True) -> Callable[[], Snapshot]:
        """Return a function that makes a snapshot of the present state, in a thread while the fold
        goes on. digest: of the last event; learning: with what no decision reads."""
        arrays: dict[str, Stored] = {}
        learners = {}
        for index, (name, learner) in enumerate(self.folded.items()):
            learners[name], own = learner.dump(learning=learning)
            arrays |= {f"{index}.{key}": array for key, array in own.items()}
        built_in: Meta | None = None
        if self.built_in is not None:
            built_in, own = self.built_in.dump(learning=learning)
            arrays |= {f"{FALLBACK}.{key}": array for key, array in own.items()}
        by_arms = self.arm_reward_sums.values() if learning else ()
        for index, by_arm in enumerate(by_arms):
            arrays |= {f"arms.{index}.{key}": array for key, array in by_arm.arrays().items()}
        for version, earlier in self.earlier.items():
            arrays[f"earlier.{version}"] = earlier.columns
            arrays[f"layouts.{version}"] = earlier.layout.blocks
        meta: Meta = {}
        if self.examination is not None:
            meta["examination"], own = self.examination.dump()
            arrays |= {f"examination.{key}": array for key, array in own.items()}
        meta |= {
            "name": self.name,
            "position": self.position,
            "revision": self.revision,
            "schema_version": self.schema_version,
            "first_schema": self.first_schema,
            "deleted": self.deleted,
            "definition": None if self.deleted else self.definition.model_dump(mode="json"),
            "traffic": {} if self.deleted else self.traffic.members(),
            "learners": learners,
            "built_in": built_in,
            "tallies": {name: vars(tally) for name, tally in self.reward_sums.items()},
            "skips": self.skips,
            "erased_keys": sorted(self.erased_keys),
            "log_time": self.log_time,
            "first_at": self.first_at,
            "lost": (self.lost_to, self.lost_at),
            "digest": digest,
            "exposure": self.exposure.members(),
        }
        text, position = codec.text_of(SNAPSHOT_SCHEMA, meta), self.position
        large = {
            "arms": dict(self.arms),
            "attributes": dict(self.attributes),
            **self.newness.members(),
            **(self.changelog if learning else ChangeLog()).members(),
            **(self.versions if learning else VersionRegistry()).members(),
        }
        own = {name: array.copy(order="K") for name, array in arrays.items()}

        def write() -> Snapshot:
            whole = text
            for name, values in large.items():
                whole = codec.with_member(whole, name, values)
            return Snapshot(position, codec.seal(whole, own))

        return write

    @classmethod
    def restore(cls, snapshot: Snapshot) -> "State":
        """Return the saved fold. Raises Damaged or UnknownSchema."""
        meta, arrays = codec.unpack(snapshot.payload, SNAPSHOT_SCHEMA)
        state = cls(meta["name"])
        if not meta["deleted"]:
            state._define(
                meta["position"],
                ExperimentDefined(
                    at=0.0,
                    revision=meta["revision"],
                    schema_version=meta["schema_version"],
                    definition=meta["definition"],
                ),
            )
            state.traffic = Traffic.restore(meta["traffic"])
            state.arms, state.attributes = meta["arms"], meta["attributes"]
            state._encode_catalogue()
            state.newness = Newness.restore(meta["came"], meta["settled"])
            state.exposure.restore(meta["exposure"])
            if state.built_in is not None:
                state.built_in.load(meta["built_in"], part(arrays, f"{FALLBACK}."))
            for index, (name, told) in enumerate(meta["learners"].items()):
                state.folded[name].load(told, part(arrays, f"{index}."))
            for index, name in enumerate(state.learners):
                if by_arm := part(arrays, f"arms.{index}."):
                    state.arm_reward_sums[name] = ArmRewardSums.restore(by_arm)
        state.reward_sums = {name: RewardTotals(**tally) for name, tally in meta["tallies"].items()}
        state.position = state.reshaped = meta["position"]
        state.revision = meta["revision"]
        state.schema_version, state.first_schema = meta["schema_version"], meta["first_schema"]
        layouts = part(arrays, "layouts.")
        state.earlier = {
            int(version): Earlier(RowLayout(layouts[version].copy()), columns.copy())
            for version, columns in part(arrays, "earlier.").items()
        }
        state.changelog = ChangeLog.restore(meta["changelog"], meta["changelog_dropped"])
        state.versions = VersionRegistry.restore(meta["versions"])
        state.skips, state.log_time = list(meta["skips"]), meta["log_time"]
        state.first_at, state.erased_keys = meta["first_at"], set(meta["erased_keys"])
        (state.lost_to, state.lost_at), state.digest = meta["lost"], meta["digest"]
        if "examination" in meta:
            own = part(arrays, "examination.")
            state.examination = Examination.restore(meta["examination"], own)
        return state


def rows_of(event: Rewarded | Expired) -> Iterator[Row]:
    """Yield the base vectors of an event."""
    parts = event.decisions if isinstance(event, Expired) else (event,)
    return (one.row for part in parts for one in part.settled)


def _changed(values: FeatureValues, changes: FeatureValues) -> FeatureValues:
    """Return the values after the changes, of which None removes a value."""
    return {name: value for name, value in {**values, **changes}.items() if value is not None}


def _erased(name: str, position: int) -> LogGap:
    return LogGap(
        f"experiment {name}: the event at position {position} was erased: a replay begins at the "
        "origin, after it"
    )


def is_change_of(event: AnyEvent, learner: Learner) -> TypeGuard[ChangeDetected]:
    """Whether the event is a change of this policy's present head."""
    return (
        isinstance(event, ChangeDetected)
        and event.policy == learner.name
        and event.born in learner.births
    )


def changes_due(state: State, at: float) -> list[ChangeDetected]:
    """Events to log for policies whose residuals say that the world has changed."""
    due = []
    for learner in state.folded.values():
        detector = learner.detector if learner.settings.learning else None
        if detector is not None and (alarm := detector.alarm):
            column, since = alarm
            due.append(
                ChangeDetected(
                    at=at,
                    policy=learner.name,
                    born=learner.born,
                    number=learner.changes + 1,
                    stratum="all" if column is None else state.schema.column_name(column),
                    columns=[] if column is None else [column],
                    since=since,
                    schema_version=state.schema_version,
                )
            )
    return due


def gates_due(state: State, at: float) -> list[VersionActivated | VersionRejected]:
    """Events to log for policies whose challenger is to serve, or to go."""
    due = list[VersionActivated | VersionRejected]()
    for learner in state.folded.values():
        outcome, challenger = learner.gate_outcome, learner.challenger
        if challenger is not None and outcome is not None:
            number, seen = challenger.version.number, learner.gate_figures
            make = VersionActivated if outcome == "serves" else VersionRejected
            due.append(
                make(
                    at=at,
                    by=AUTOMATIC,
                    policy=learner.name,
                    born=learner.born,
                    version=number,
                    gate=seen,
                    reason=gate_sentence(number, learner.active.number, seen, outcome),
                )
            )
    return due

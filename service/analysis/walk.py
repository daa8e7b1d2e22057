"""The decisions of a log, each with what every policy would have done in its place.

The log is folded once from its beginning, and a decision is evaluated under the state of the very
position it was made at: no policy has seen its reward, or a later one. So an estimate is what the
policy would have earned while it learned, decision by decision (progressive validation), or,
frozen, what it would have earned as it stood before the first of the decisions.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from msgspec import structs

from service.analysis.history import BEFORE_ORIGIN, DAMAGED_ROWS
from service.analysis.rederive import candidates_of, decider_of, limits_of, ruled
from service.analysis.request import RuleFields
from service.analysis.selected import SelectedDecisions
from service.analysis.targets import ExtraPolicies, frozen, guesses, with_rules
from service.bandits.candidates import Candidates
from service.bandits.constraints.slots import SlateLimits
from service.bandits.heads.base import Meta
from service.decide.scoring import decide
from service.decide.traffic import no_policy
from service.errors import Invalid, LogGap, NoEligibleArm, NoFiniteScores, NotFound
from service.features.schema import Array
from service.log.reading import SILENT, Progress
from service.log.replay import RowsByPosition, origin_of, replay, steps
from service.log.replica import Replica
from service.log.stores import Store
from service.log.stores.base import Snapshot
from service.naming import quoted
from service.retrieval.shortlists import applies
from service.state.decider import Decider
from service.state.decisions import Decision, decode_decision, is_imported
from service.state.events import AnyEvent, Erased, ExperimentDefined, Expired, Tombstone
from service.state.fold import State
from service.state.learner import Learner
from service.state.rulebook import RuleBook

ABSENT = "made before all of the policies were there"
NONE_ELIGIBLE = "the rules to evaluate would have left no arm"
UNFIT_FEATURES = "their features or arms do not fit the policies as they stand"
LEAST_PROPENSITY = 1e-12
"""Least propensity of a shown arm. A decision of a smaller one would hold all the weight of any
log, and squares and cubes of such weights overflow; no log is long enough to show an arm of so
small a chance."""
TINY_PROPENSITY = (
    f"their shown arm had a chance below {LEAST_PROPENSITY:g}: nothing can be weighted by it"
)
SURE = 1.0
NO_RULES: Mapping[str, RuleFields | None] = {}
"""Other rules, where there are none."""


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """A decision of the log, with what estimates need of it.

    number      of its row; position: of the state that made it
    shown       which of the arms was shown (first)
    behaviour   (K,) the chance that the log shows each with; None where only that of the shown arm
                is known
    propensity  the shown arm's
    targets     by policy, (K,) the chance that it would have shown each with
    guess       (K,) of each one's reward
    limits      of a reward
    shortlist   the policy that made it chose the arms itself
    other_candidates   policies that would have chosen other arms
    """

    number: int
    position: int
    decision: Decision
    shown: int
    behaviour: Array | None
    propensity: float
    targets: Mapping[str, Array]
    guess: Array
    limits: tuple[float, float]
    shortlist: bool
    other_candidates: frozenset[str]

    @property
    def arms(self) -> Sequence[str]:
        return self.decision.arms


class _Chances:
    """The chances of the first slot that deciders give the candidates of one decision, (K,) each.

    failed   labels of those without finite scores, in whose place the fallback decides
    """

    def __init__(
        self,
        state: State,
        decision: Decision,
        context: Array,
        candidates: Candidates,
        slots: int,
        limits: SlateLimits | None,
        maker: Decider | None = None,
    ) -> None:
        """Take a decision, under limits. maker: what made it under these, if something did."""
        self._state, self._decision, self._maker = state, decision, maker
        self._context, self.candidates = context, candidates
        self._slots, self._limits = slots, limits
        self._known = dict[Decider, Array]()
        self.failed = set[str]()

    def of(self, decider: Decider) -> Array:
        """Return the chances in place of a decider. Raises NoFiniteScores where the fallback has
        none."""
        if decider not in self._known:
            self._known[decider] = self._decide(decider)
        return self._known[decider]

    def _decide(self, decider: Decider) -> Array:
        fallback, candidates = self._state.fallback, self.candidates
        if decider == self._maker:
            facts = self._decision.facts
        else:
            facts = decider.facts(candidates, self._decision.inline)
        try:
            p, _ = decide(decider, self._context, candidates, self._slots, 0, facts, self._limits)
        except NoFiniteScores:
            if decider == fallback:
                raise
            self.failed.add(decider.label)
            return self.of(fallback)
        return p


class Walk:
    """Over one experiment's log.

    rules         other rules, which the policies are to keep
    own           divide by the propensity under the policy that was assigned, even where chance
                  assigned it
    learned_from  by policy, rewards that it had learned from at the last decision; None: it never
                  learns
    """

    def __init__(
        self,
        store: Store,
        experiment: str,
        policies: Sequence[str],
        added: ExtraPolicies,
        *,
        rules: Mapping[str, RuleFields | None] = NO_RULES,
        freeze: bool = False,
        own: bool = False,
    ) -> None:
        self._store, self._name = store, experiment
        self._policies, self._added = policies, added
        self._freeze, self._own, self._rules = freeze, own, rules
        self._rulebook: tuple[int, RuleBook] | None = None
        self._frozen: dict[str, Learner] | None = None
        self._frozen_schema = 0
        self._erased: set[int] = set()
        self._down: set[str] = set()
        self._state: State | None = None
        self._folded = self._states()
        self.left_out: Counter[str] = Counter()
        self.range = 0.0, 1.0
        self.learned_from: dict[str, int | None] = {}

    async def decisions(
        self, chosen: SelectedDecisions, progress: Progress = SILENT, upto: float = inf
    ) -> AsyncIterator[LoggedDecision]:
        """Yield each that can be evaluated, in log order, and stop at a position of the log: the
        next call goes on from there. Raises StoreError where the log cannot be folded, NotFound
        where it never held one of the policies."""
        rows = RowsByPosition(self._store, self._name, chosen.numbers, chosen.positions)
        self._erased |= chosen.erased
        done, end = 0, (await self._store.describe(self._name)).position
        async for position, state in self._folded:
            self._state = state
            if done in (0, len(chosen)):
                progress.share("events replayed", position, end)
            async for index, made_at, payload in rows.up_to(position):
                done += 1
                progress.share("decisions evaluated", done, len(chosen))
                number = int(chosen.numbers[index])
                if made_at < position or state is None:
                    self.left_out[BEFORE_ORIGIN] += 1
                elif logged := self._evaluate(state, number, decode_decision(payload)):
                    yield logged
            if position >= upto:
                return
        self._check()

    def _check(self) -> None:
        state = self._state
        if state is None or state.deleted:
            raise NotFound("the experiment was deleted", path="experiment")
        if unknown := [name for name in self._policies if name not in state.folded]:
            if unknown[0] in self._added.policies:
                fault = self._added.faults.get(unknown[0], "it served before")
                say = f"there is no policy {quoted(unknown[0])}: {fault}"
                raise NotFound(say, path="policies")
            raise no_policy(state, unknown[0], "policies")
        self.range = state.definition.reward.range

    # -- the fold ------------------------------------------------------------------------------

    def dump(self) -> tuple[Meta, bytes] | None:
        """Return where the walk has stopped, for `resume`, and a snapshot of the fold there; None:
        it has none."""
        state = self._state
        if state is None:
            return None
        meta = {
            "left_out": self.left_out,
            "learned_from": self.learned_from,
            "faults": self._added.faults,
            "down": sorted(self._down),
        }
        return meta, state.snapshot().payload

    def resume(self, meta: Meta, position: int, snapshot: bytes) -> None:
        """Go on from where another walk over this log with the same policies had stopped. Raises
        Damaged or UnknownSchema."""
        self._state = State.restore(Snapshot(position, snapshot))
        self.left_out, self.learned_from = Counter(meta["left_out"]), meta["learned_from"]
        self._added.faults, self._down = meta["faults"], set(meta["down"])
        self._folded = self._later_states(self._state)

    async def _later_states(self, state: State) -> AsyncIterator[tuple[int, State | None]]:
        replica = Replica(self._store, state, erased=self._erased)
        async for position, event in replay(self._store, self._name, state.position, dense=True):
            await self._fold(replica, position, event)
            yield position, replica.state

    async def _states(self) -> AsyncIterator[tuple[int, State | None]]:
        """Yield each position of the log and the state there; None before an origin where the fold
        has to begin, because earlier events were trimmed."""
        kept = await origin_of(self._store, self._name)
        origin = None if kept is None else State.restore(kept)
        replica = Replica(self._store, State(self._name), erased=self._erased)
        async for step in steps(self._store, self._name, origin, past_tombstones=True):
            if isinstance(step.fault, LogGap):
                raise LogGap(
                    f"experiment {self._name}: position {step.position} is missing from the log"
                )
            if step.fault is not None:
                raise step.fault
            if step.origin is not None:
                self._added.into_origin(step.origin)
                replica = Replica(self._store, step.origin, erased=self._erased)
            elif step.event is not None and not step.waits:
                await self._fold(replica, step.position, step.event)
            yield step.position, None if step.waits else replica.state

    async def _fold(self, replica: Replica, position: int, event: AnyEvent) -> None:
        """Fold an event into the replica. An erased event is skipped, since heads lack it from here
        on, and of a block what is left is folded; an event of a head that an added policy does not
        have is skipped, too."""
        if isinstance(event, ExperimentDefined):
            event = self._added.into(event)
        elif isinstance(event, Tombstone) or self._added.concerns(event, replica.state):
            event = Erased(at=event.at, decisions=[], positions=[])
        elif isinstance(event, Expired):
            event = structs.replace(event, erased=0, erased_inline=0)
        await replica.apply(position, event)
        if not replica.state.deleted:
            await self._added.follow(self._store, replica.state, position, event.at)

    # -- a decision ----------------------------------------------------------------------------

    def _evaluate(self, state: State, number: int, decision: Decision) -> LoggedDecision | None:
        """Evaluate a decision; None, and counted as left out, where that cannot be done."""
        folded = state.folded
        if state.deleted or any(name not in folded for name in self._policies):
            self.left_out[ABSENT] += 1
            return None
        if self._freeze and self._frozen is None:
            self._frozen = {name: frozen(state, folded[name]) for name in self._policies}
            self._frozen_schema = state.schema_version
        if self._frozen is not None and state.schema_version != self._frozen_schema:
            self.left_out[UNFIT_FEATURES] += 1
            return None
        try:
            context = state.schema.encode_context(decision.context)
            candidates = candidates_of(state, decision)
            limits = limits_of(state, decision, candidates)
        except (KeyError, ValueError, Invalid, NoEligibleArm):
            self.left_out[UNFIT_FEATURES] += 1
            return None

        maker = decider_of(state, decision)
        chances = _Chances(state, decision, context, candidates, decision.slots, limits, maker)
        first = decision.shown[0]
        shown = decision.arms.index(first.arm)
        behaviour = self._behaviour(state, decision, chances)
        propensity = first.propensity if behaviour is None else float(behaviour[shown])
        if not propensity >= LEAST_PROPENSITY:
            self.left_out[TINY_PROPENSITY if propensity > 0 else DAMAGED_ROWS] += 1
            return None
        learners = self._frozen or folded
        targets = {name: Decider.serving(learners[name]) for name in self._policies}
        try:
            values = self._values(state, decision, context, candidates, targets, chances)
        except (KeyError, ValueError, NoEligibleArm):
            self.left_out[NONE_ELIGIBLE] += 1
            return None
        self.learned_from = {name: each.learner.learned_from for name, each in targets.items()}
        return LoggedDecision(
            number,
            state.position,
            decision,
            shown,
            behaviour,
            propensity,
            values,
            guesses(state, context, candidates),
            state.definition.reward.limits,
            decision.facts.shortlist is not None,
            with_other_candidates(state, decision, targets),
        )

    def _values(
        self,
        state: State,
        decision: Decision,
        context: Array,
        candidates: Candidates,
        targets: Mapping[str, Decider],
        chances: _Chances,
    ) -> dict[str, Array]:
        """Return the chances of each target: under the rules of the decision, or under other ones.
        Raises NoEligibleArm, or KeyError or ValueError where windows were counted otherwise."""
        if not self._rules:
            return {name: chances.of(each) for name, each in targets.items()}
        if self._rulebook is None or self._rulebook[0] != state.revision:
            other = with_rules(state.definition, self._rules)
            self._rulebook = state.revision, RuleBook(other)
        found = ruled(state, decision, candidates, self._rulebook[1])
        found = found.counted(decision.facts.counts)
        places, values = [candidates.row_of[arm] for arm in found.candidates.ids], {}
        slots = min(decision.slots, len(places))
        ruled_chances = _Chances(state, decision, context, found.candidates, slots, found.limits)
        for name, each in targets.items():
            values[name] = np.zeros(len(candidates.ids))
            values[name][places] = ruled_chances.of(each)
        return values

    def _behaviour(self, state: State, decision: Decision, chances: _Chances) -> Array | None:
        """Return the chance of each arm to be shown, over the draw of the arm and, where chance
        assigned the policy, over that draw, too: sum_j share_j p_j (the balance heuristic; Agarwal
        et al. 2017 for many loggers). Only the draw of the arm counts where another policy would
        have had other arms to draw from. A policy for which the fallback decides has its
        chances."""
        if not decision.probabilities:
            return None
        own = np.array(decision.probabilities)
        if self._own or decision.assignment == SURE or is_imported(decision):
            return own
        drawn, fallback = state.deciders, state.fallback
        by_name = {each.name: each for each in drawn}
        if decision.policy not in by_name or with_other_candidates(state, decision, by_name):
            return own
        self._follow(state, decision, chances)
        mixed = [
            chance * chances.of(fallback if each.label in self._down else each)
            for each, chance in drawn.items()
        ]
        return np.asarray(sum(mixed))

    def _follow(self, state: State, decision: Decision, chances: _Chances) -> None:
        """Note whether a decider is down: the fallback decides for it, though its head has finite
        scores here, as after a fault in a process's memory. It is until it decides again."""
        decider = state.decider(decision.policy, decision.sticky)
        if not decision.facts.fallback:
            if decider.tells_apart(chances.candidates):
                self._down.discard(decider.label)
            return
        chances.of(decider)
        if decider.label not in chances.failed:
            self._down.add(decider.label)


# -- shortlists ------------------------------------------------------------------------------------


def with_other_candidates(
    state: State, decision: Decision, deciders: Mapping[str, Decider]
) -> frozenset[str]:
    """Return the policies that would have had other candidates: propensities hold among the logged
    candidates alone. The policy that made the decision, as of then, had these; where the fallback
    did, none had."""
    own = None if decision.facts.fallback else state.learners.get(decision.policy)
    catalogue = not decision.inline and len(decision.arms) == len(state.rows)
    return frozenset(
        name
        for name, each in deciders.items()
        if each.learner is not own
        and (decision.facts.shortlist is not None or (catalogue and applies(state, each.policy)))
    )

"""Lookup: what a request for a decision names, as the state of its experiment has it."""

from collections.abc import Container, Sequence
from hashlib import blake2b
from random import Random

import msgspec

from service.bandits.candidates import Candidates
from service.bandits.constraints.slots import SlateLimits
from service.decide import arms
from service.decide.decision_times import DecisionTime, DecisionTimes
from service.decide.ruling import rule, rule_catalogue, rule_shortlist, situation_of
from service.decide.traffic import assign
from service.decide.tries import Tries
from service.decide.windows import Windows
from service.definition.select_request import BARE, Envelope, InlineArm, SelectRequest
from service.errors import Invalid
from service.features.schema import Array
from service.log.clock import LogClock
from service.retrieval.shortlists import Retrieval, applies
from service.security.token import TokenSealer, text_of
from service.settings import Settings
from service.state.decider import Decider
from service.state.decisions import DecisionFacts, FallbackReason, Shortlist
from service.state.exposure import ShownByRule
from service.state.fold import State
from service.state.footprint import decision_bytes
from service.state.rule_plan import Ruled
from service.state.rulebook import Situation

CHEAP_S = 0.0005
"""Decisions that take no longer need little memory as well."""


Choosing = tuple[Decider, Array, Candidates, int, int, DecisionFacts, SlateLimits | None]


class Lookup(msgspec.Struct, frozen=True, gc=False):
    """A request, the policy that decides it, its candidates and its context.

    position    of the state
    policy      name of the assigned one
    decider     the assigned policy by one of its versions, or the fallback
    unit        its keyed hash, if the request has one
    assignment  probability of the assigned policy
    inline      candidates outside the catalogue
    time        of decisions like it
    facts       what bounds the probabilities
    situation   what the rules look at
    ruled       the candidates that may be shown, and their limits
    """

    state: State
    position: int
    request: SelectRequest
    envelope: Envelope
    policy: str
    decider: Decider
    assignment: float
    inline: dict[str, InlineArm]
    context: Array
    id: str
    unit: str | None
    seed: int
    time: DecisionTime
    facts: DecisionFacts
    situation: Situation
    ruled: Ruled

    @property
    def assigned_version(self) -> int:
        """The number of the version of the assigned policy that decides, or had to."""
        return self.facts.failed if self.facts.fallback else self.decider.version.number

    @property
    def at(self) -> float:
        """Unix seconds of the decision."""
        return self.situation.at

    @property
    def candidates(self) -> Candidates:
        """Empty where finding them takes long (`Lookups.retrieve`)."""
        return self.ruled.candidates

    @property
    def slots(self) -> int:
        """How many arms it ranks: fewer than asked for where rules leave no more."""
        return min(self.request.top_k, len(self.candidates.ids))

    @property
    def choice(self) -> Choosing:
        """The arguments of `scoring.decide`."""
        return (
            self.decider, self.context, self.candidates, self.slots, self.seed, self.facts,
            self.ruled.limits,
        )  # fmt: skip


class Lookups:
    """Looks requests up.

    times   of the decisions that were made
    """

    def __init__(
        self,
        sealer: TokenSealer,
        settings: Settings,
        clock: LogClock,
        times: DecisionTimes,
        rng: Random,
        windows: Windows,
    ) -> None:
        self._sealer, self._settings, self._clock, self._rng = sealer, settings, clock, rng
        self._retrieval, self._times, self._tries = Retrieval(), times, Tries()
        self._windows = windows

    def look_up(
        self,
        state: State,
        request: SelectRequest,
        envelope: Envelope = BARE,
        found: arms.Found | None = None,
    ) -> Lookup:
        """Look a request up. Raises Refused.

        found   the arms of the request, where they are known already
        """
        at = self._clock.now(state)
        own, seed = self._identity(state, envelope.key, at)
        unit = None if request.unit is None else self._sealer.unit_hash(request.unit)
        decider, assignment = assign(state, request.policy, unit or own)
        situation = situation_of(state, request, at, unit or own)
        inline, shortlist = dict[str, InlineArm](), None
        if request.arms is None and applies(state, decider.policy):
            context = state.schema.encode_context(request.context)
            self._expect_slots(request.top_k, len(state.rows))
            catalogue = rule_catalogue(state, situation, self._windows)
            if catalogue is not None and not applies(state, decider.policy, catalogue.candidates):
                ruled = catalogue
            else:
                found_arms = self._retrieval.fast_candidates(
                    state, decider, context, seed, _ids(catalogue)
                )
                ruled = rule_shortlist(state, situation, catalogue, found_arms, self._windows)
                if found_arms.ids:
                    shortlist = self._retrieval.shortlist(state, decider)
        else:
            given, inline = found or arms.find(state, request.arms, self._settings.max_arms)
            context = state.schema.encode_context(request.context)
            self._expect_slots(request.top_k, len(given.ids))
            ruled = rule(state, situation, given, self._windows, inline)
        candidates = ruled.candidates
        time = self._times.of(decider.version, len(candidates.ids), request.top_k)
        if time.seconds > CHEAP_S:
            self._expect_room(decider, len(candidates.ids), request.top_k)
        facts = self._facts(
            decider, ruled, request.top_k, situation, envelope.key, inline, shortlist
        )
        return Lookup(
            state, state.position, request, envelope, decider.name, decider, assignment, inline,
            context, own, unit, seed, time, facts, situation, ruled,
        )  # fmt: skip

    async def retrieve(self, lookup: Lookup) -> Lookup:
        """Find the candidates where `look_up` left them out."""
        if lookup.candidates.ids:
            return lookup
        state, decider, request = lookup.state, lookup.decider, lookup.request
        situation = lookup.situation
        catalogue = rule_catalogue(state, situation, self._windows)
        found = await self._retrieval.candidates(
            state, decider, lookup.context, lookup.seed, _ids(catalogue)
        )
        if not found.ids:
            self._expect_slots(request.top_k, 0)
        self._expect_room(decider, len(found.ids), request.top_k)
        ruled = rule_shortlist(state, situation, catalogue, found, self._windows)
        shortlist = self._retrieval.shortlist(state, decider)
        key = lookup.envelope.key
        return msgspec.structs.replace(
            lookup,
            ruled=ruled,
            time=self._times.of(decider.version, len(found.ids), request.top_k),
            facts=self._facts(decider, ruled, request.top_k, situation, key, (), shortlist),
        )

    def fall_back(self, lookup: Lookup, reason: FallbackReason) -> Lookup:
        """Give a decision to the fallback, among the same candidates; in any thread while nothing
        is folded. Raises Invalid."""
        decider, candidates = lookup.state.fallback, lookup.candidates
        self._expect_room(decider, len(candidates.ids), lookup.request.top_k)
        untried = decider.facts(candidates, lookup.inline).untried
        facts = msgspec.structs.replace(
            lookup.facts,
            untried=untried,
            fallback=reason,
            failed=lookup.decider.version.number,
        )
        return msgspec.structs.replace(lookup, decider=decider, facts=facts)

    def find_arms(self, state: State, request: SelectRequest) -> arms.Found:
        """Find the arms that a request names, in any thread while nothing is folded. Raises
        Invalid."""
        return arms.find(state, request.arms, self._settings.max_arms)

    def count_shown(self, lookup: Lookup, shown: Sequence[int]) -> ShownByRule | None:
        """Count candidates that are about to be shown as tried, and for rules with a window. Return
        what the log is to count."""
        if lookup.facts.untried:
            ids = lookup.candidates.ids
            self._tries.show(lookup.decider.learner, [ids[index] for index in shown])
        plan = lookup.ruled.plan
        return plan and self._windows.show(lookup.state, lookup.id, plan, lookup.at, shown)

    def _identity(self, state: State, key: str | None, at: float) -> tuple[str, int]:
        """Return id and seed of a decision. A key determines both, so that two processes that have
        folded the same log decide alike."""
        if key is None:
            return new_id(at, self._rng), self._rng.getrandbits(63)
        own = self._sealer.request_ids(state.name, state.first_schema, key, state.erased_keys)[0]
        return own, seed_of(own)

    def _facts(
        self,
        decider: Decider,
        ruled: Ruled,
        top_k: int,
        situation: Situation,
        key: str | None,
        outside: Container[str],
        shortlist: Shortlist | None,
    ) -> DecisionFacts:
        """Return what bounds the probabilities. Showings of this process count, but for a key: two
        processes that have folded the same log decide it alike."""
        if key is not None:
            facts = decider.facts(ruled.candidates, outside)
        else:
            facts = self._tries.facts(decider, ruled.candidates, outside)
        exclude, only, off = situation.exclude, situation.only, situation.off
        wishes = only is not None or exclude
        if shortlist is None and not (wishes or off or ruled.if_empty or ruled.counts):
            return facts
        return msgspec.structs.replace(
            facts,
            shortlist=shortlist,
            exclude=exclude,
            only=only,
            if_empty=ruled.if_empty,
            counts=ruled.counts,
            slots=min(top_k, len(ruled.candidates.ids)) if ruled.counts else 0,
            off=off,
        )

    def _expect_slots(self, slots: int, arms: int) -> None:
        """Raise Invalid for more slots than arms, or than the service ranks."""
        most = self._settings.max_top_k
        if not 1 <= slots <= min(arms, most):
            reason = "the number of arms" if arms <= most else "the most that this service ranks"
            raise Invalid(f"must be from 1 to {min(arms, most):,}, {reason}", path="top_k")

    def _expect_room(self, decider: Decider, arms: int, slots: int) -> None:
        """Raise Invalid for a decision that would take too much memory."""
        wanted = decision_bytes(decider.version, decider.policy.rule.draws, arms, slots)
        most = self._settings.max_select_memory_bytes
        if wanted > most:
            raise Invalid(
                f"would take some {wanted:.1e} bytes of memory, and may take {most:.1e}: "
                "name fewer arms, or rank one",
                path="arms",
            )


def _ids(catalogue: Ruled | None) -> Sequence[str] | None:
    return None if catalogue is None else catalogue.candidates.ids


def new_id(at: float, rng: Random) -> str:
    """22 characters: the time (Unix seconds) and 80 random bits. Ids of one time lie together in
    the log; wholly random ids made a commit touch twice the pages."""
    return text_of((int(at * 1_000) << 80 | rng.getrandbits(80)).to_bytes(16, "big"))


def seed_of(id: str) -> int:
    """Derive the seed of a keyed decision; unpredictable without the secret."""
    return int.from_bytes(blake2b(id.encode(), digest_size=8).digest(), "big") >> 1

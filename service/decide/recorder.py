"""Token and row of a decision."""

from collections.abc import Iterable

import msgspec
from msgspec import structs

from service.bandits import rules
from service.decide.lookup import Lookup
from service.definition.select_request import InlineArm, SelectRequest
from service.errors import Invalid
from service.features.schema import Array
from service.log.stores.base import DecisionRow
from service.security.token import TOKEN_CHARACTERS, Ticket, TokenSealer
from service.state.decisions import Decision, Shown, as_logged, encode_decision
from service.state.events import FeatureValues
from service.state.exposure import ShownByRule

Choice = tuple[Lookup, Array, rules.Slate]
"""A request as it was decided, the probabilities of the first slot, and the arms that are shown."""


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """A decision that is neither logged nor answered yet.

    required   the answer is worth nothing without its row, which alone holds the shown arms
    entropy    of the choice, in nats
    """

    decision: Decision
    token: str
    required: bool
    row: DecisionRow
    entropy: float


class Recorder:
    """Writes the rows and tokens of decisions.

    most_bytes   of a row whose request names its arms; the owner chose a catalogue's size
    """

    def __init__(self, sealer: TokenSealer, most_bytes: int) -> None:
        self._sealer, self._most_bytes = sealer, most_bytes

    def record(
        self, lookup: Lookup, p: Array, slate: rules.Slate, exposed: ShownByRule | None = None
    ) -> Recorded:
        """Make token and row of a decision. Raises Invalid where the row is too long.

        p: of the candidates, of the first slot. slate: what is shown; exposed: of it, what rules
        count.
        """
        state, request, decider = lookup.state, lookup.request, lookup.decider
        candidates, inline, reward = lookup.candidates, lookup.inline, state.definition.reward
        ids, reward_by = candidates.ids, lookup.at + reward.wait_seconds
        rows = [state.schema.row(lookup.context, candidates.x[index]) for index in slate.arms]
        names, moved = state.rulebook.names, slate.held or lookup.ruled.removed
        decision = Decision(
            id=lookup.id,
            at=lookup.at,
            policy=lookup.policy,
            assignment=lookup.assignment,
            model_version=f"{decider.label}@{state.position}",
            schema_version=state.schema_version,
            unit=lookup.unit,
            context=request.context,
            arms=list(ids),
            inline={arm: inline[arm].features for arm in inline},
            probabilities=as_logged(p, slate.arms[0], slate.propensities[0]),
            seed=lookup.seed,
            bank=decider.policy.bank_seed,
            shown=[
                Shown(ids[index], propensity, row, ids[index] in inline)
                for index, propensity, row in zip(slate.arms, slate.propensities, rows, strict=True)
            ],
            slate_log=slate.log_chance,
            reward_by=reward_by,
            accept_until=reward_by + reward.accept_seconds,
            deferred=request.deferred,
            key=lookup.envelope.caller,
            facts=lookup.facts,
            rules=lookup.ruled.moved_by(names, slate.held) if moved else (),
            relaxed=tuple([names[number] for number in slate.relaxed]) if slate.relaxed else (),
            attributes=_attributes(inline.values()) if inline else {},
        )
        token, whole = self.token(state.name, decision, logged=True)
        waits = reward.default is not None and not request.deferred
        due = reward_by if waits else None
        payload = encode_decision(decision)
        if request.arms is not None and len(payload) > self._most_bytes:
            raise Invalid(
                f"would make a decision of more than {self._most_bytes} bytes", path="arms"
            )
        counted = None if exposed is None else (lookup.at, exposed)
        row = DecisionRow(state.name, lookup.id, decision.series, payload, due, counted)
        first = slate.propensities[0]
        entropy = 0.0 if first == 1.0 else rules.entropy(p)
        return Recorded(decision, token, not whole, row, entropy)

    def repeats(self, request: SelectRequest, decision: Decision) -> bool:
        """Say whether the request asks for this decision, as far as it says."""
        units = [None] if request.unit is None else self._sealer.unit_hashes(request.unit)
        facts, slots = decision.facts, decision.slots
        asked = request.context, request.deferred, {*request.exclude}, _set_of(request.only)
        told = decision.context, decision.deferred, {*facts.exclude}, _set_of(facts.only)
        if asked != told:
            return False
        if request.top_k != slots and not slots == len(decision.arms) < request.top_k:
            return False  # rules may leave fewer arms than slots
        if decision.unit not in units:
            return False
        if request.policy not in (None, decision.policy):
            return False
        named = request.arms
        if named is None:
            return True
        ids = [arm.id if isinstance(arm, InlineArm) else arm for arm in named]
        outside = [arm for arm in named if isinstance(arm, InlineArm)]
        inline = {arm.id: arm.features for arm in outside}
        own = decision.arms, decision.inline, decision.attributes
        return (ids, inline, _attributes(outside)) == own

    def token(
        self, experiment: str, decision: Decision, *, logged: bool, keyed: bool = False
    ) -> tuple[str, bool]:
        """Return the token, and whether it holds the shown arms: beyond the limit of a token the
        row alone does. keyed: made under a client's idempotency key."""
        ticket = Ticket(
            decision.id,
            experiment,
            decision.policy,
            decision.model_version,
            decision.schema_version,
            decision.shown,
            decision.reward_by,
            decision.accept_until,
            decision.deferred,
            unlogged=not logged,
            contested=keyed and not logged,
        )
        token = self._sealer.seal(ticket)
        if len(token) <= TOKEN_CHARACTERS:
            return token, True
        return self._sealer.seal(structs.replace(ticket, shown=[])), False


def _set_of(ids: Iterable[str] | None) -> set[str] | None:
    return None if ids is None else {*ids}


def _attributes(inline: Iterable[InlineArm]) -> dict[str, FeatureValues]:
    """Return the attributes of arms outside the catalogue that have any, by arm."""
    return {arm.id: arm.attributes for arm in inline if arm.attributes}

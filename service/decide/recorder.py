"""Token and row of a decision."""

from collections.abc import Iterable, Sequence

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
        self, chosen: Sequence[Choice], exposed: Sequence[ShownByRule | None]
    ) -> list[Recorded | Invalid]:
        """Make tokens and rows of decisions; Invalid for one whose row is too long. exposed: of
        what each shows, what rules count.

        All decisions are made, then all tokens, then all rows: code that has just run is in the
        caches.
        """
        decisions = [self._decision(*choice) for choice in chosen]
        tokens = [
            self.token(lookup.state.name, decision, logged=True)
            for (lookup, *_), decision in zip(chosen, decisions, strict=True)
        ]
        payloads = [encode_decision(decision) for decision in decisions]
        return [
            self._recorded(choice, decision, token, payload, counted)
            for choice, decision, token, payload, counted in zip(
                chosen, decisions, tokens, payloads, exposed, strict=True
            )
        ]

    def _decision(self, lookup: Lookup, p: Array, slate: rules.Slate) -> Decision:
        """Return a decision. p: of the candidates, of the first slot; slate: what is shown."""
        state, request, decider = lookup.state, lookup.request, lookup.decider
        candidates, inline, reward = lookup.candidates, lookup.inline, state.definition.reward
        ids, reward_by = candidates.ids, lookup.at + reward.wait_seconds
        rows = [state.schema.row(lookup.context, candidates.x[index]) for index in slate.arms]
        names, moved = state.rulebook.names, slate.held or lookup.ruled.removed
        return Decision(
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

    def _recorded(
        self,
        choice: Choice,
        decision: Decision,
        token: tuple[str, bool],
        payload: bytes,
        exposed: ShownByRule | None,
    ) -> Recorded | Invalid:
        lookup, p, slate = choice
        request, reward = lookup.request, lookup.state.definition.reward
        if request.arms is not None and len(payload) > self._most_bytes:
            return Invalid(
                f"would make a decision of more than {self._most_bytes} bytes", path="arms"
            )
        sealed, whole = token
        waits = reward.default is not None and not request.deferred
        due = decision.reward_by if waits else None
        counted = None if exposed is None else (lookup.at, exposed)
        row = DecisionRow(lookup.state.name, lookup.id, decision.series, payload, due, counted)
        entropy = 0.0 if slate.propensities[0] == 1.0 else rules.entropy(p)
        return Recorded(decision, sealed, not whole, row, entropy)

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

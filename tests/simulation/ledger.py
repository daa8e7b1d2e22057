"""What callers were told, and an account of the log that knows nothing of how the service folds.

The n-th contribution to a decision is worth 2^-n: any sum says which contributions it is of, and
sums of them are exact.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from service.decide.select import Answer
from service.definition.experiment import RewardRules
from service.errors import Conflict, ForageError, Gone, StoreUnavailable
from service.state.decisions import Decision, decode_decision, encode_decision
from service.state.events import AnyEvent, Erased, Learned, settlements_of
from service.state.events import Outcome as Told

CONTRIBUTIONS = 8
"""At most so many to a decision."""


@dataclass
class Contribution:
    """One outcome that a caller reports until it is answered. answers: the statuses it got."""

    reward_id: str
    rewards: dict[str, float]
    answers: list[str] = field(default_factory=list)
    refused: bool = False

    @property
    def took(self) -> bool:
        return any(status in ("accepted", "corrected") for status in self.answers)


@dataclass
class Visit:
    """One answered decision and what its caller has reported of it. erased: its unit was, after
    this was answered, and whoever asked for that was told that it is done."""

    token: str
    decision: Decision
    logged: bool
    unit: str
    erased: bool = False
    sent: list[Contribution] = field(default_factory=list)

    def contribute(self, arms: list[str]) -> Contribution:
        number = len(self.sent)
        own = Contribution(f"r{number}" if number else "", dict.fromkeys(arms, 2.0**-number / 2))
        self.sent.append(own)
        return own


@dataclass
class Chain:
    """One shown arm in the log: its first word, what it stands at, the contributions in it."""

    since: int
    value: float
    default: bool
    policy: str
    taken: list[float] = field(default_factory=list)


@dataclass
class Totals:
    """Of one policy, as `fold.RewardSums` has to have them."""

    count: int = 0
    total: float = 0.0


class Ledger:
    def __init__(self, rules: RewardRules) -> None:
        self._rules = rules
        self.visits: dict[str, Visit] = {}
        self.chains: dict[tuple[str, str], Chain] = {}
        self.taken_out: set[str] = set()
        """Decisions that the log says were erased."""

    def shown(self, unit: str, answer: Answer | None, fault: ForageError | None) -> None:
        """A decision is answered, whatever has become of the log."""
        assert answer is not None, f"a decision failed: {fault!r}"
        decision = decode_decision(encode_decision(answer.decision))  # as its row should say it
        self.visits[decision.id] = Visit(answer.token, decision, answer.logged, unit)

    def logged_of(self, unit: str) -> list[Visit]:
        return [visit for visit in self.visits.values() if visit.unit == unit and visit.logged]

    @staticmethod
    def erased(visits: list[Visit], gone: object, fault: ForageError | None) -> None:
        """visits: of the unit, answered before its erasure was asked for."""
        for visit in visits if gone is not None else ():
            visit.erased = True
        assert gone is not None or isinstance(fault, StoreUnavailable), repr(fault)

    def answered(
        self,
        visit: Visit,
        own: Contribution,
        status: str | None,
        fault: ForageError | None,
        *,
        erased: bool = False,
    ) -> None:
        """erased: it was sent after the erasure of its unit was done."""
        assert not (erased and status), f"{visit.decision.id} was erased, a reward was {status}"
        if status is not None:
            assert not (own.took and status != "duplicate"), (
                f"a contribution to {visit.decision.id} was {status} after it was {own.answers}"
            )
            assert status != "ignored" or self._rules.aggregation == "first"
            own.answers.append(status)
        elif isinstance(fault, Gone):
            own.refused = True
        else:
            assert isinstance(fault, StoreUnavailable), f"a reward failed: {fault!r}"

    @staticmethod
    def contradicted(status: str | None, fault: ForageError | None) -> None:
        """Another value under an identity that was taken."""
        assert status is None, f"two values under one identity: {status}"
        assert isinstance(fault, Conflict | Gone | StoreUnavailable), repr(fault)

    def read(self, position: int, event: AnyEvent) -> None:
        """Take in the event at a position. Each arm is a chain that goes on where it stood."""
        for settlement in settlements_of(event):
            for one in settlement.settled:
                self._extend(position, settlement, one)
        if isinstance(event, Erased):
            self.taken_out.update(event.decisions)

    def _extend(self, position: int, event: Learned, told: Told) -> None:
        key = event.decision, told.arm
        reward, chain = told.reward, self.chains.get(key)
        default = event.defaulted
        if chain is None:
            assert (told.was, told.since) == (None, None), f"{key} was never learned at {told.was}"
            chain = self.chains[key] = Chain(position, reward, default, event.policy)
            contributed = reward
        else:
            assert (told.was, told.since) == (chain.value, chain.since), (
                f"{key} is counted twice: position {position} says {told.was} since {told.since}, "
                f"it was {chain.value} since {chain.since}"
            )
            assert not default, f"{key} expired at {position} after it was settled"
            further = self._rules.aggregation == "sum" and not chain.default
            contributed = reward - chain.value if further else reward
            chain.value, chain.default = reward, False
        if default:
            assert reward == self._rules.default, f"{key} expired with {reward}"
            return
        assert contributed not in chain.taken, f"{key} has counted {contributed} twice"
        chain.taken.append(contributed)
        assert self._rules.aggregation != "first" or len(chain.taken) == 1, f"{key} was changed"

    def totals(self) -> dict[str, Totals]:
        """By policy; each chain once, at what it stands."""
        totals: defaultdict[str, Totals] = defaultdict(Totals)
        for chain in self.chains.values():
            totals[chain.policy].count += 1
            totals[chain.policy].total += chain.value
        return totals

    def check_kept(self, rows: dict[str, bytes], trimmed: set[str]) -> None:
        """What was acknowledged is in the log, or was until it was trimmed, and nothing is that
        nobody said."""
        for key, visit in self.visits.items():
            if visit.erased and key not in trimmed:
                assert key not in rows, f"decision {key} was erased and is still there"
            elif visit.logged and key not in self.taken_out:
                assert key in rows, f"decision {key} was answered as logged and is not"
            if key in rows:
                assert decode_decision(rows[key]) == visit.decision, f"decision {key} is another"
            for own in visit.sent:
                self._check_contribution(visit, own)
        for (decision, arm), chain in self.chains.items():
            sent = self.visits[decision].sent if decision in self.visits else []
            said = {own.rewards[arm] for own in sent if arm in own.rewards}
            assert said.issuperset(chain.taken), f"nobody said {chain.taken} of {arm}"

    def _check_contribution(self, visit: Visit, own: Contribution) -> None:
        for arm, reward in own.rewards.items():
            chain = self.chains.get((visit.decision.id, arm))
            if own.answers:
                assert chain is not None, f"a reward of {visit.decision.id} was lost"
                assert chain.taken, f"the default holds over a reward of {visit.decision.id}"
            taken = chain is not None and reward in chain.taken
            if own.answers and self._rules.aggregation != "first":
                assert taken, f"{reward} of {visit.decision.id} was lost"
            if own.took and len(own.rewards) == 1:
                assert taken, f"{reward} of {visit.decision.id} was acknowledged and lost"

    def check_expired(self, now: float, rows: dict[str, bytes]) -> None:
        """Whatever was due has been settled on all of its arms."""
        for row in map(decode_decision, rows.values()):
            if row.reward_by <= now and row.id not in self.taken_out:
                for shown in row.shown:
                    assert (row.id, shown.arm) in self.chains, f"{row.id} is due and still open"

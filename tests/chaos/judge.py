"""What a log must hold: each thing that the clients were told, once, and nothing else."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from service.state.decisions import Decision
from service.state.events import (
    AnyEvent,
    Corrected,
    LogTruncated,
    Outcome,
    settlements_of,
)
from tests.chaos.ledger import Key, Ledger, Ranking


@dataclass
class Cut:
    """What a log lost of its end: the events after position `kept`, up to `last`.

    settled   how often it lost each settlement
    rows      decisions whose rows it lost
    watched   services that had folded these events went on
    """

    kept: int = 0
    last: int = 0
    settled: Counter[Key] = field(default_factory=Counter)
    rows: set[str] = field(default_factory=set)
    watched: bool = False

    def __add__(self, other: "Cut") -> "Cut":
        return Cut(0, 0, self.settled + other.settled, self.rows | other.rows)


@dataclass(frozen=True)
class Audit:
    """What is wrong with a log; a line each.

    lost      acknowledged, and not in the log with the value that was given
    doubled   settled, or told that it was, more than once
    strange   in the log, and never given so; positions that are missing
    gone      acknowledged rewards and decisions that went with a tail that was cut: no fault, if
              the log tells of each cut that a service could see
    """

    acknowledged: int
    corrected: int
    lost: list[str]
    doubled: list[str]
    strange: list[str]
    gone: int = 0


@dataclass(slots=True)
class _Trail:
    """What the log says of one settlement, in order.

    firsts   first words: rewards, and defaults of those that did not come in time
    given    rewards that a client gave
    breaks   corrections of a value that it did not have
    """

    firsts: int = 0
    value: float | None = None
    given: tuple[float, ...] = ()
    breaks: int = 0

    def take(self, outcome: Outcome, *, default: bool) -> None:
        self.firsts += outcome.was is None
        self.breaks += outcome.was is not None and outcome.was != self.value
        self.value = outcome.reward
        if not default:
            self.given += (self.value,)

    def __str__(self) -> str:
        return f"{self.firsts} first words, {self.breaks} breaks, given {list(self.given)}"

    @property
    def sound(self) -> bool:
        return self.firsts == 1 and not self.breaks and len(self.given) <= 1


NO_TRAIL: Final = _Trail()


class Log:
    """The events of a log and its decision rows, as they are read: what a verdict needs of them.

    checksums   of all payloads up to each position
    lost_to     the last positions that it lost, as it tells of them
    """

    def __init__(self, events: Iterable[tuple[int, AnyEvent]] = ()) -> None:
        self.trails: defaultdict[Key, _Trail] = defaultdict(_Trail)
        self.rankings: dict[str, Ranking] = {}
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.corrected = self.end = 0
        self.checksums = [0]
        self.strange: list[str] = []
        self.lost_to: list[int] = []
        for position, event in events:
            self.take(position, event)

    def take(self, position: int, event: AnyEvent, payload: bytes = b"") -> None:
        if position != self.end + 1:
            line = f"position {position} stands where {self.end + 1} should"
            self.strange.append(line)
        self.end = position
        self.checksums.append(crc32(payload, self.checksums[-1]))
        self.corrected += isinstance(event, Corrected)
        if isinstance(event, LogTruncated):
            self.lost_to.append(event.last)
        for settlement in settlements_of(event):
            for outcome in settlement.settled:
                trail = self.trails[settlement.decision, outcome.arm]
                trail.take(outcome, default=settlement.defaulted)
                self.sums[settlement.policy] += outcome.reward - (outcome.was or 0.0)

    def take_row(self, row: Decision) -> None:
        if row.id in self.rankings:
            self.strange.append(f"decision {row.id} has two rows")
        self.rankings[row.id] = tuple((shown.arm, shown.propensity) for shown in row.shown)


def audit(ledger: Ledger, log: Log, cuts: Sequence[Cut] = ()) -> Audit:
    """Each settlement has one first word and at most one reward: a correction of a default. Each
    decision that was said to be logged has its row. What a cut has taken may be gone, if the log
    tells of the events that services saw go."""
    cut = sum((cut for cut in cuts if _is_told(cut, log)), start=Cut())
    missing = [
        key
        for key, claim in ledger.claims.items()
        if claim.answers and claim.reward not in log.trails.get(key, NO_TRAIL).given
    ]
    without = [
        decision
        for decision, ranking in ledger.rankings.items()
        if log.rankings.get(decision) != ranking
    ]
    lost = [
        f"{key}: {ledger.claims[key].reward} was acknowledged, the log has {log.trails[key]}"
        for key in missing
        if key not in cut.settled
    ]
    lost += [
        f"{decision}: logged as {ledger.rankings[decision]}, not {log.rankings.get(decision)}"
        for decision in without
        if decision not in cut.rows
    ]
    return Audit(
        acknowledged=ledger.acknowledged,
        corrected=log.corrected,
        lost=lost,
        doubled=[*_doubled(ledger, log, cut)],
        strange=[*log.strange, *_strange(ledger, log, cut)],
        gone=len(missing) + len(without) - len(lost),
    )


def _is_told(cut: Cut, log: Log) -> bool:
    unseen = cut.last <= cut.kept or not cut.watched
    return unseen or any(last > cut.kept for last in log.lost_to)


def _doubled(ledger: Ledger, log: Log, cut: Cut) -> Iterator[str]:
    for key, trail in log.trails.items():
        if trail.firsts and not trail.sound:
            yield f"{key}: {trail}"
    for key, claim in ledger.claims.items():
        if claim.counted > 1 + cut.settled[key]:
            yield f"{key}: said to be counted {claim.counted} times"


def _strange(ledger: Ledger, log: Log, cut: Cut) -> Iterator[str]:
    for key, trail in log.trails.items():
        claim = ledger.claims.get(key)
        known: set[float | None] = set() if claim is None else {claim.reward}
        if claim is not None and key in cut.settled:
            known.add(claim.other)
        if not known.issuperset(trail.given):
            yield f"{key}: nobody gave one of {list(trail.given)}"
        if trail.firsts and key[0] in ledger.inactive:
            yield f"{key}: learned, though the decision was never activated"
    for key in ledger.contradicted:
        if key not in cut.settled:
            yield f"{key}: two values of one reward were taken"
    for decision in ledger.other:
        if decision not in cut.rows:
            yield f"{decision}: one Idempotency-Key, another decision"

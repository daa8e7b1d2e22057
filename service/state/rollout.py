"""Rollouts: a challenger takes over the traffic of its baseline in stages, or gives it back.

A rollout, what is known of its two policies and the breaches of its guardrails go in, and a step
comes out. Nothing here reads a clock, a log or an array.
"""

from collections.abc import Sequence
from math import inf, isfinite, nan
from typing import Literal

import msgspec

from service.clock import iso
from service.definition.rollout import OnUndecided
from service.naming import quoted
from service.state.guardrails import METRICS, Finding
from service.tables import figure, percent

HOUR_S = 3_600.0
DAY_S = 86_400.0
AUTOMATIC = "automatic"
"""Author, in place of a key, of what the service does by itself."""

LEAST_UNITS = 50
"""Effective number of visitors without which no rollout advances: below, a few of them make its
outcome."""
LONGEST_SILENCE_S = 900.0
"""Seconds without a settlement after which there is no data: a quiet log is no good news."""

RolloutState = Literal["running", "held", "undecided", "rolled_back", "finished"]
"""`held` by a person, or until one confirms the next stage or has looked at a breach. `undecided`:
held, since the time is over. Both can still be rolled back."""
ENDED: frozenset[RolloutState] = frozenset({"rolled_back", "finished"})
StepKind = Literal["advance", "hold", "resume", "roll back", "finish", "ask"]
ReadingState = Literal["no data", "loses", "keeps", "open"]
"""`keeps`: the challenger is within the margin. `loses`: it is beyond."""


class RolloutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as it is asked for: of `policy` in place of `baseline`. Or of a version of a policy
    in place of the one that serves; the policy is its own baseline then.

    version                the number of that version; None: the policy is the challenger
    stages                 the challenger's shares of the traffic of both, ascending; the last is 1
    margin                 share of the baseline's reward that the challenger may lose
    stage_hours            least length of a stage
    undecided_after_days   after which a rollout without an outcome ends, as `on_undecided` says
    ask                    whether a person confirms each stage
    """

    policy: str
    baseline: str
    version: int | None = None
    stages: tuple[float, ...] = (0.05, 0.2, 0.5, 1.0)
    margin: float = 0.1
    stage_hours: float = 24.0
    undecided_after_days: float = 14.0
    on_undecided: OnUndecided = "ask"
    ask: bool = False

    @property
    def challenger(self) -> str:
        """What takes over, by name."""
        return self.policy if self.version is None else f"{self.policy}/{self.version}"


class Rollout(RolloutPlan, frozen=True, kw_only=True):
    """A rollout that was started.

    position        of its start in the log
    started_at      unix seconds
    stage           place of the present stage in `stages`
    stage_since     unix seconds
    waiting_since   unix seconds from which `undecided_after_days` count
    last            the last step; None: there was none
    last_by         who took it, as `events.Change` has it
    last_reason     why, for people
    """

    position: int = 0
    started_at: float
    stage: int = 0
    state: RolloutState = "running"
    stage_since: float
    waiting_since: float
    last: "RolloutStep | None" = None
    last_by: str = ""
    last_reason: str = ""

    @property
    def share(self) -> float:
        """Share of the traffic of both that the challenger has; 0 once it is rolled back."""
        return 0.0 if self.state == "rolled_back" else self.stages[self.stage]

    def challenges(self, policy: str, version: int) -> bool:
        """Whether a version of one of its policies is the challenger, or else the baseline."""
        return policy == self.policy if self.version is None else version == self.version

    @property
    def least_share(self) -> float:
        """Smallest share of either policy in the stages that have both."""
        return min(min(share, 1 - share) for share in self.stages if 0 < share < 1)

    @property
    def waits(self) -> bool:
        """Whether it waits for a person to decide, which is not what a person has held."""
        asked = self.last is not None and self.last.kind == "ask"
        return self.state in ("held", "undecided") and asked

    def only_warns(self, breach: Finding) -> bool:
        """Whether no step follows a breach. A person who lets a rollout go on has seen what would
        hold it at this stage."""
        return breach.on_breach == "warn" or (breach.on_breach == "hold" and self.let_go)

    @property
    def let_go(self) -> bool:
        """Whether a person let it go on at this stage after a breach: then a person confirms the
        next stage, too."""
        last = self.last
        return last is not None and last.kind == "resume" and last.metric in METRICS.values()

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class RolloutReading(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a rollout's policies. A figure that nobody can compute is NaN.

    own, baseline           settled decisions of each policy
    value, baseline_value   reward of a decision of each
    within                  the challenger's reward less what the margin asks for: below 0, it loses
                            too much
    lower, upper            bounds of `within` that hold at all times at once
    evidence                of a loss beyond the margin, from bets; 1 is enough
    units                   effective number of visitors of the policy with fewer
    newest                  time of the last settlement of a decision of the stage, in unix seconds;
                            None: there is none
    """

    own: int
    baseline: int
    value: float
    baseline_value: float
    within: float
    lower: float
    upper: float
    evidence: float
    units: float
    newest: float | None


NO_READING = RolloutReading(
    own=0,
    baseline=0,
    value=nan,
    baseline_value=nan,
    within=nan,
    lower=nan,
    upper=nan,
    evidence=nan,
    units=nan,
    newest=None,
)
"""Reading of a log that cannot be read, or was not yet."""


class RolloutStep(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a rollout, with the figures that brought it about.

    stage, state   of the rollout from now on
    metric         what decided
    value, bound   of the metric, and what it was compared with; None: no decision is settled
    decisions      that the value is of; None: of the settled ones of both
    own            settled decisions of the challenger
    baseline       settled decisions of the baseline
    at             unix seconds
    """

    kind: StepKind
    stage: int
    state: RolloutState
    metric: str
    value: float | None
    bound: float | None
    own: int
    baseline: int
    at: float
    sentence: str
    decisions: int | None = None


WITHIN = "lower bound of the reward above the margin"
BEYOND = "upper bound of the reward above the margin"
EVIDENCE = "evidence of a loss beyond the margin"
DAYS = "days without an outcome"
OWN_SETTLED = "settled decisions of the challenger"
PERSON = "decision of a person"


def reading_state(reading: RolloutReading, now: float) -> ReadingState:
    """Say what a reading shows. A loss counts however old it is; anything else needs new data."""
    if -inf < reading.upper < 0 or 1 <= reading.evidence < inf:
        return "loses"
    figures = msgspec.structs.astuple(reading)[:-1]
    silent = reading.newest is None or now - reading.newest > LONGEST_SILENCE_S
    if silent or not all(map(isfinite, figures)):
        return "no data"
    return "keeps" if reading.lower > 0 else "open"


def next_step(
    rollout: Rollout, reading: RolloutReading, now: float, breaches: Sequence[Finding] = ()
) -> RolloutStep | None:
    """Return what a rollout does now by itself; None: it goes on as it is.

    It stops at once where the challenger loses too much, or breaches a guardrail: no hours and no
    visitors are waited for. It advances where data are new, the challenger is within the margin,
    the stage had its hours, and LEAST_UNITS were there. now: unix seconds
    """
    if rollout.ended:
        return None
    state = reading_state(reading, now)
    guarded = guarded_step(rollout, reading, now, breaches)
    if state == "loses" and (guarded is None or guarded.kind != "roll back"):
        return roll_back(rollout, reading, now)
    if guarded is not None:
        return guarded
    if rollout.state != "running":
        return None
    if state == "keeps" and reading.units >= LEAST_UNITS:
        if now - rollout.stage_since < rollout.stage_hours * HOUR_S:
            return None
        asks = rollout.ask or rollout.let_go
        return _ask(rollout, reading, now) if asks else advance(rollout, reading, now)
    if now - rollout.waiting_since < rollout.undecided_after_days * DAY_S:
        return None
    return _undecided(rollout, reading, now, state)


def guarded_step(
    rollout: Rollout, reading: RolloutReading, now: float, breaches: Sequence[Finding]
) -> RolloutStep | None:
    """Return what breaches of guardrails make of a rollout; None: nothing. One that is held can
    still be rolled back. One that a person let go on is not held again at its stage."""
    if rollout.ended:
        return None
    for breach in breaches:
        if breach.on_breach == "back":
            said = f"{breach.sentence} {quoted(rollout.baseline)} has its traffic back."
            return _breached("roll back", "rolled_back", rollout, reading, now, breach, said)
    if rollout.state != "running":
        return None
    for breach in breaches:
        if not rollout.only_warns(breach):
            said = f"{breach.sentence} {_until_decided(rollout)}"
            return _breached("ask", "held", rollout, reading, now, breach, said)
    return None


def begun(plan: RolloutPlan, position: int, at: float) -> Rollout:
    """Return a plan as a rollout at its first stage. position: of its start; at: unix seconds."""
    given = msgspec.structs.asdict(plan)
    return Rollout(**given, position=position, started_at=at, stage_since=at, waiting_since=at)


def applied(rollout: Rollout, step: RolloutStep, by: str = "", reason: str = "") -> Rollout:
    """Return the rollout after a step. by, reason: as `events.RolloutStepped` has them."""
    moved, resumed = step.stage != rollout.stage, step.kind == "resume"
    return msgspec.structs.replace(
        rollout,
        stage=step.stage,
        state=step.state,
        stage_since=step.at if moved else rollout.stage_since,
        waiting_since=step.at if resumed else rollout.waiting_since,
        last=step,
        last_by=by,
        last_reason=reason,
    )


# -- steps, which a person may also take ---------------------------------------------------------


def advance(rollout: Rollout, reading: RolloutReading, now: float) -> RolloutStep:
    """Return the step to the next stage. The last stage ends a rollout."""
    return _forward(rollout, reading, now, rollout.stage + 1, _verdict(rollout, reading, now))


def roll_back(rollout: Rollout, reading: RolloutReading, now: float) -> RolloutStep:
    """Return the step that gives all traffic back to the baseline."""
    metric, value, bound = BEYOND, reading.upper, 0.0
    if not -inf < reading.upper < 0 and reading.evidence >= 1:
        metric, value, bound = EVIDENCE, reading.evidence, 1.0
    said = f"{_verdict(rollout, reading, now)} {quoted(rollout.baseline)} has its traffic back."
    return _step("roll back", "rolled_back", rollout, reading, now, (metric, value, bound), said)


def hold(rollout: Rollout, reading: RolloutReading, now: float) -> RolloutStep:
    """Return the step after which a rollout stays at its stage."""
    said = f"{_verdict(rollout, reading, now)} The rollout is held at {percent(rollout.share)}."
    counts = OWN_SETTLED, float(reading.own), None
    return _step("hold", "held", rollout, reading, now, counts, said)


def resume(rollout: Rollout, reading: RolloutReading, now: float) -> RolloutStep:
    """Return the step after which a held rollout goes on, with all its days before it."""
    said = f"{_verdict(rollout, reading, now)} The rollout goes on at {percent(rollout.share)}."
    counts, last = (OWN_SETTLED, float(reading.own), None), rollout.last
    step = _step("resume", "running", rollout, reading, now, counts, said)
    if last is None or last.metric not in METRICS.values():
        return step
    breach = {"metric": last.metric, "value": last.value, "bound": last.bound}
    return msgspec.structs.replace(step, **breach, decisions=last.decisions)


def by_person(step: RolloutStep) -> RolloutStep:
    """Return a step that a person decided: no figure did. What `resume` lets go stays."""
    if step.kind == "resume":
        return step
    return msgspec.structs.replace(step, metric=PERSON, value=None, bound=None)


def _forward(
    rollout: Rollout, reading: RolloutReading, now: float, stage: int, why: str
) -> RolloutStep:
    last = stage >= len(rollout.stages) - 1
    stage = min(stage, len(rollout.stages) - 1)
    share = percent(rollout.stages[stage])
    said = f"{why} {quoted(rollout.challenger)} takes {share} of the traffic"
    said += ", and the rollout is finished." if last else "."
    found = WITHIN, reading.lower, 0.0
    moved = msgspec.structs.replace(rollout, stage=stage)
    if last:
        return _step("finish", "finished", moved, reading, now, found, said)
    return _step("advance", "running", moved, reading, now, found, said)


def _ask(rollout: Rollout, reading: RolloutReading, now: float) -> RolloutStep:
    said = (
        f"{_verdict(rollout, reading, now)} It may take "
        f"{percent(rollout.stages[min(rollout.stage + 1, len(rollout.stages) - 1)])} of the "
        "traffic once a person confirms it."
    )
    found = WITHIN, reading.lower, 0.0
    return _step("ask", "held", rollout, reading, now, found, said)


def _undecided(
    rollout: Rollout, reading: RolloutReading, now: float, state: ReadingState
) -> RolloutStep:
    """Return the step at the end of the days. Nothing ships without data."""
    days = (now - rollout.waiting_since) / DAY_S
    found = DAYS, days, rollout.undecided_after_days
    why = f"{_verdict(rollout, reading, now)} There is no outcome after {figure(days)} days."
    if rollout.on_undecided == "back":
        said = f"{why} {quoted(rollout.baseline)} has its traffic back."
        return _step("roll back", "rolled_back", rollout, reading, now, found, said)
    if rollout.on_undecided == "ship" and state != "no data":
        shipped = _forward(rollout, reading, now, len(rollout.stages) - 1, why)
        return msgspec.structs.replace(
            shipped, metric=DAYS, value=days, bound=rollout.undecided_after_days
        )
    said = f"{why} {_until_decided(rollout)}"
    return _step("ask", "undecided", rollout, reading, now, found, said)


def _breached(
    kind: StepKind,
    state: RolloutState,
    rollout: Rollout,
    reading: RolloutReading,
    now: float,
    breach: Finding,
    sentence: str,
) -> RolloutStep:
    found = breach.metric, nan if breach.value is None else breach.value, breach.bound
    step = _step(kind, state, rollout, reading, now, found, sentence)
    return msgspec.structs.replace(step, decisions=breach.decisions)


def _step(
    kind: StepKind,
    state: RolloutState,
    rollout: Rollout,
    reading: RolloutReading,
    now: float,
    figures: tuple[str, float, float | None],
    sentence: str,
) -> RolloutStep:
    metric, value, bound = figures
    return RolloutStep(
        kind=kind,
        stage=rollout.stage,
        state=state,
        metric=metric,
        value=value if isfinite(value) else None,
        bound=bound,
        own=reading.own,
        baseline=reading.baseline,
        at=now,
        sentence=sentence,
    )


# -- sentences -----------------------------------------------------------------------------------


def standing(
    rollout: Rollout, reading: RolloutReading, now: float, breaches: Sequence[Finding] = ()
) -> str:
    """Say where a rollout stands, in two sentences, and one for each breach of a guardrail."""
    where = f"{quoted(rollout.challenger)} has {percent(rollout.share)} of the traffic"
    match rollout.state:
        case "running":
            end = rollout.stage_since + rollout.stage_hours * HOUR_S
            where += f", until {iso(end)} at least." if now < end else "."
        case "rolled_back":
            where = f"The rollout was rolled back, and {quoted(rollout.baseline)} has the traffic."
        case "finished":
            where += ", and the rollout is finished."
        case "held":
            where += f", and the rollout is held.{_last_words_of(rollout)}"
        case "undecided":
            where += f", and the rollout is held until a person decides.{_last_words_of(rollout)}"
    if rollout.state == "running" and reading_state(reading, now) == "no data":
        where += " It cannot advance without data."
    sentences = [_verdict(rollout, reading, now), where, *(each.sentence for each in breaches)]
    return " ".join(sentences)


def last_words(rollout: Rollout) -> str:
    """Say who took the last step of a rollout, when, why, and what it said."""
    step = rollout.last
    if step is None:
        return ""
    who = {AUTOMATIC: "Forage", "": "somebody"}.get(rollout.last_by, quoted(rollout.last_by))
    why = f", {rollout.last_reason!r}" if rollout.last_reason else ""
    return f"{who}, {iso(step.at)}{why}: {step.sentence}"


def _last_words_of(rollout: Rollout) -> str:
    return f" {last_words(rollout)}" if rollout.last else ""


def _until_decided(rollout: Rollout) -> str:
    return f"The rollout is held at {percent(rollout.share)} until a person decides."


def _verdict(rollout: Rollout, reading: RolloutReading, now: float) -> str:
    """Put a reading into a sentence."""
    state, margin = reading_state(reading, now), f"the margin of {percent(rollout.margin)}"
    if state == "no data":
        if reading.newest is None:
            return "There is no data of this stage yet."
        return f"There is no data since {iso(reading.newest)}."
    earned = (
        f"{quoted(rollout.challenger)} earned {_reward(reading.value)} a decision after "
        f"{reading.own:,} settlement{'s' * (reading.own != 1)}, and {quoted(rollout.baseline)} "
        f"{_reward(reading.baseline_value)}"
    )
    match state:
        case "loses":
            return f"{earned}: the loss is beyond {margin}."
        case "keeps" if reading.units < LEAST_UNITS:
            return (
                f"{earned}: {reading.units:,.0f} visitors in effect are too few of the "
                f"{LEAST_UNITS} that an advance needs."
            )
        case "keeps":
            return f"{earned}: a loss beyond {margin} is ruled out."
        case _:
            return f"{earned}: whether the loss is within {margin} cannot be told yet."


def _reward(value: float) -> str:
    return figure(value) if isfinite(value) else "an unknown reward"

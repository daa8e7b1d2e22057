"""Derives a decision, and the events that settle it, again from the state and compares the two.

Rows may be corrupt: whatever a changed byte made of one becomes a discrepancy, never an exception.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import fsum, log
from typing import Literal

import numpy as np

from service.bandits import rules
from service.bandits.candidates import Candidates
from service.bandits.constraints.slots import SlateLimits
from service.bandits.rules import Scores, Slate
from service.decide.scoring import decide
from service.decide.traffic import rules_off
from service.definition.rules import EXCLUDE, IF_EMPTY, ONLY
from service.errors import Invalid, NoEligibleArm
from service.features.attributes import attribute_faults
from service.features.row import Row
from service.features.schema import Array
from service.state.decider import Decider
from service.state.decisions import Decision, Shown, as_logged
from service.state.events import Learned, Outcome
from service.state.fold import State
from service.state.rule_plan import Ruled
from service.state.rulebook import RuleBook, Situation

CLOSE = (1e-2 * rules.TIE, 1e3 * rules.TIE)
"""Bounds of a relative difference of scores that tie on one machine and not on another."""

SAME_CHANCE = 1e-9
"""Difference of a chance in closed form that the last bits of means can make."""

SUM_ROUNDING = 2.0**-23
"""Error of sums of probabilities that a row holds as 4-byte numbers, each within 2^-24 of itself,
and of their normalization."""

TIED_DRAWS = 2
"""Draws, of a decision's M, that rounding may decide otherwise."""

DiscrepancyKind = Literal[
    "choice",
    "probabilities",
    "tie",
    "features",
    "fields",
    "missing",
    "unreadable",
    "log",
    "double",
    "identity",
    "time",
]


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A difference between the log and what follows from it.

    choice          the shown arm does not follow from the probabilities and the seed
    probabilities   they do not follow from head, features and bank
    tie             the same, within the bound: scores so close that rounding decided
    features        a base vector is not the encoded features, in a row or in an event
    fields          another field of a row or an event: version, bank, times, reward, ...
    missing         the log refers to a row that is not there
    unreadable      a row is no decision
    log             an event is missing, unreadable, or cannot be folded
    double          an arm of a decision is learned of twice, or out of order
    identity        a mark stands at the event of another decision
    time            an event is much older than the one before it

    id   the decision's, or `position 7` of an event, or `row 7` where the id is not known
    """

    kind: DiscrepancyKind
    id: str
    what: str
    logged: object = None
    derived: object = None

    def __str__(self) -> str:
        values = f": logged {self.logged}, derived {self.derived}"
        both = self.logged is not None or self.derived is not None
        return f"{self.kind:<13} {self.id}  {self.what}{values if both else ''}"


def drawn_arm(decision: Decision) -> str:
    """Return the arm that the seed draws from the logged probabilities: the shown one, where the
    point lies so close to its part that the rounding of the others decides (`as_logged`)."""
    p, point = np.array(decision.probabilities), rules.point_of(decision.seed)
    first = decision.shown[0].arm
    place, ends = decision.arms.index(first), p.cumsum() / p.sum()
    if (
        p[place] > 0
        and ends[place] - p[place] - SUM_ROUNDING <= point <= ends[place] + SUM_ROUNDING
    ):
        return first
    return decision.arms[rules.choose(p, point)]


def candidates_of(state: State, decision: Decision) -> Candidates:
    """Return the candidates under a state. Raises KeyError or Invalid where it lacks one."""
    own, inline = state.candidates, decision.inline
    if not inline and tuple(decision.arms) == own.ids:
        return own  # it knows already which of them differ
    if not inline:
        return own.choose(tuple(decision.arms), [own.row_of[arm] for arm in decision.arms])
    rows = [
        state.schema.encode_arm(inline[arm]) if arm in inline else own.x[own.row_of[arm]]
        for arm in decision.arms
    ]
    return Candidates(tuple(decision.arms), np.array(rows).reshape(len(rows), -1))


def decider_of(state: State, decision: Decision) -> Decider | None:
    """Return what decided: the assigned policy by one of its versions, or the fallback. None: the
    assigned one is not there."""
    if decision.policy not in state.learners:
        return None
    if decision.facts.fallback:
        return state.fallback
    return state.decider(decision.policy, decision.sticky)


def limits_of(state: State, decision: Decision, candidates: Candidates) -> SlateLimits | None:
    """Return the limits that the rules of a state set a decision among its candidates. Raises
    NoEligibleArm where one of these is not eligible."""
    facts = decision.facts
    if facts.if_empty:
        if decision.arms != [state.rulebook.if_empty]:
            raise NoEligibleArm(IF_EMPTY, len(decision.arms))
        return None
    found = ruled(state, decision, candidates)
    for rule, gone in found.removed:
        raise NoEligibleArm(rule, gone)
    return found.counted(facts.counts).limits


def ruled(
    state: State, decision: Decision, candidates: Candidates, rulebook: RuleBook | None = None
) -> Ruled:
    """Return what rules make of the candidates of a decision, before the counts of windows.
    rulebook: of other rules than the state's. Raises NoEligibleArm."""
    facts = decision.facts
    situation = Situation(decision.context, decision.at, facts.exclude, facts.only, facts.off)
    inline = {
        arm: {**values, **decision.attributes.get(arm, {})}
        for arm, values in decision.inline.items()
    }
    return state.rule(candidates, situation, inline, rulebook)


# -- without a state -------------------------------------------------------------------------------


def check_choice(decision: Decision) -> Iterator[Discrepancy]:
    """Check that the logged probabilities and seed give the arm shown first. The chances of the
    others of a slate hang on the state."""
    first = decision.shown[0]
    if drawn_arm(decision) != first.arm:
        yield Discrepancy("choice", decision.id, "shown arm", first.arm, drawn_arm(decision))
        return
    chances = [arm.propensity for arm in decision.shown]
    derived = fsum(map(log, chances)) if min(chances) > 0 else None
    if decision.slate_log != derived:
        what = "logarithm of the propensity of all slots"
        yield Discrepancy("choice", decision.id, what, decision.slate_log, derived)


def check_settlement(position: int, event: Learned, decision: Decision) -> Discrepancy | None:
    """Return the first difference between an event that settles a decision and the decision's
    row."""
    where = f" in the event at position {position}"
    fields = {
        "policy of the event": (event.policy, decision.policy),
        "schema_version of the event": (event.schema_version, decision.schema_version),
        "reward_by of the event": (event.reward_by or decision.reward_by, decision.reward_by),
    }
    if found := _unequal("fields", decision, fields, f" at position {position}"):
        return found
    shown = {arm.arm: arm for arm in decision.shown}
    for settled in event.settled:
        if settled.arm not in shown:
            what = "settled arm" + where
            return Discrepancy("fields", decision.id, what, settled.arm, list(shown))
        own = shown[settled.arm]
        if found := _unequal_arm(decision, settled, own.row, own.inline, where):
            return found
    return None


def _unequal(
    kind: DiscrepancyKind,
    decision: Decision,
    values: Mapping[str, tuple[object, object]],
    where: str = "",
) -> Discrepancy | None:
    """Return the first value that is logged otherwise than it is derived."""
    for name, (logged, derived) in values.items():
        if logged != derived:
            return Discrepancy(kind, decision.id, name + where, logged, derived)
    return None


def _unequal_arm(
    decision: Decision, arm: Shown | Outcome, row: Row, inline: bool, where: str = ""
) -> Discrepancy | None:
    if arm.row == row and arm.inline == inline:
        return None
    values: dict[str, tuple[object, object]] = {
        f"{arm.arm} is outside the catalogue": (arm.inline, inline),
    }
    derived = row.lists()
    for part, logged in arm.row.lists().items():
        values[f"{part} of {arm.arm}"] = len(logged), len(derived[part])
        for index, pair in enumerate(zip(logged, derived[part], strict=False)):
            values[f"{part}[{index}] of {arm.arm}"] = pair
    return _unequal("features", decision, values, where)


# -- under the state of its position ---------------------------------------------------------------


def check_decision(state: State, decision: Decision) -> Iterator[Discrepancy]:
    """Yield what differs from the decision that this state makes, at most one discrepancy of a
    kind. The state stands at the position that the decision names."""
    decider = decider_of(state, decision)
    if decider is None:
        what = f"at position {state.position} there is no policy {decision.policy}"
        yield Discrepancy("fields", decision.id, what)
        return
    if found := _unequal("fields", decision, _fields(state, decider, decision)):
        yield found
    try:
        context = state.schema.encode_context(decision.context)
        candidates = candidates_of(state, decision)
        _expect_attributes(state, decision)
    except KeyError as unknown:
        what = f"at position {state.position} the catalogue has no arm {unknown}"
        yield Discrepancy("features", decision.id, what)
        return
    except Invalid as refused:
        where = ", ".join(f"{fault.path} {fault.message}" for fault in refused.faults)
        yield Discrepancy("features", decision.id, f"values do not fit: {where}")
        return
    for arm in decision.shown:
        row = state.schema.row(context, candidates.x[candidates.row_of[arm.arm]])
        if found := _unequal_arm(decision, arm, row, arm.arm in decision.inline):
            yield found
            break
    try:
        limits = limits_of(state, decision, candidates)
    except NoEligibleArm as fault:
        yield Discrepancy("fields", decision.id, f"shown arms: {fault}")
        return
    except (KeyError, ValueError) as fault:
        yield Discrepancy("fields", decision.id, f"counts of windows do not fit the rules: {fault}")
        return
    yield from _check_probabilities(state, decider, decision, context, candidates, limits)


def _expect_attributes(state: State, decision: Decision) -> None:
    """Raise Invalid where attributes of arms outside the catalogue do not fit the definition."""
    declared = state.definition.attributes
    faults = [
        fault
        for arm, values in decision.attributes.items()
        for fault in attribute_faults(declared, values, f"attributes.{arm}")
    ]
    if faults:
        raise Invalid("an attribute is unknown or of a wrong type", faults=faults)


def _fields(state: State, decider: Decider, decision: Decision) -> dict[str, tuple[object, object]]:
    """Plain fields, as logged and as derived. decider: that decided. Why the fallback did is a fact
    of the row; it never decides in its own place."""
    rewards = state.definition.reward
    reward_by = decision.at + rewards.wait_seconds
    assigned, facts = decision.policy, decision.facts
    version = f"{decider.label}@{state.position}"
    sticky = decision.sticky
    failed = state.decider(assigned, sticky).version.number if facts.fallback else 0
    named = decision.assignment == 1.0  # the request named its policy, or there is one alone
    fields: dict[str, tuple[object, object]] = {
        "model_version": (decision.model_version, version),
        "schema_version": (decision.schema_version, state.schema_version),
        "bank": (decision.bank, decider.policy.bank_seed),
        "reward_by": (decision.reward_by, reward_by),
        "accept_until": (decision.accept_until, reward_by + rewards.accept_seconds),
        "assignment": (decision.assignment, 1.0 if named else state.traffic.chance(assigned)),
        "fallback": (facts.fallback, "" if decider.name == assigned else facts.fallback),
        "version that failed": (facts.failed, failed),
        "rules that are off": (facts.off, rules_off(state, sticky)),
    }
    if not named:
        drawn = state.traffic.assign(state.name, sticky)
        fields["policy that was drawn"] = assigned, drawn
    if (shortlist := facts.shortlist) is not None:
        fields["policy of the shortlist"] = shortlist.policy, assigned
        fields["catalogue of the shortlist"] = shortlist.catalogue, len(state.rows)
    return fields


def _check_probabilities(
    state: State,
    decider: Decider,
    decision: Decision,
    context: Array,
    candidates: Candidates,
    limits: SlateLimits | None,
) -> Iterator[Discrepancy]:
    """Probabilities of the first slot, as a row holds them, and what the seed draws from those of
    now: the arms shown, and their chances as doubles."""
    ids, logged = candidates.ids, decision.probabilities
    size, facts = decision.slots, decision.facts
    if not decider.allows(facts, candidates, decision.inline):
        own = decider.facts(candidates, decision.inline)
        yield Discrepancy("fields", decision.id, "facts", facts, own)
        return
    p, slate = decide(decider, context, candidates, size, decision.seed, facts, limits)
    first = decision.arms.index(decision.shown[0].arm)
    derived = np.array(as_logged(p, first, p[first]))
    index = int(np.abs(derived - logged).argmax())
    if derived[index] != logged[index]:
        step = 0.0 if index == first else float(np.spacing(np.float32(logged[index])))
        difference = max(abs(p[index] - logged[index]) - step / 2, 0.0)
        tied = rounded(decider.score(context, candidates), difference)
        kind: DiscrepancyKind = "tie" if tied else "probabilities"
        what = f"probability of {ids[index]}"
        yield Discrepancy(kind, decision.id, what, logged[index], float(derived[index]))
    else:
        shown, ranked = [arm.arm for arm in decision.shown], [ids[index] for index in slate.arms]
        if shown != ranked:
            tied = close_draws(decider.score(context, candidates)) > 0
            yield Discrepancy("tie" if tied else "choice", decision.id, "slate", shown, ranked)
            return
        chances = [*slate.propensities, slate.log_chance]
        told = [*(arm.propensity for arm in decision.shown), decision.slate_log]
        if chances != told:
            difference = float(np.abs(np.subtract(chances, told)[:-1]).max())
            tied = difference > 0 and rounded(decider.score(context, candidates), difference)
            what = "chances of the slots and of the slate"
            yield Discrepancy("tie" if tied else "probabilities", decision.id, what, told, chances)
        yield from _check_rules(state, decision, slate)


def _check_rules(state: State, decision: Decision, slate: Slate) -> Iterator[Discrepancy]:
    """Compare the rules that a row names. Of arms that were no candidates nothing can be derived:
    what removed them, and pins and floors about them."""
    facts, names, verbs = decision.facts, state.rulebook.names, state.rulebook.verbs
    removing = {name for name, verb in verbs.items() if verb == "eligible"}
    asked = {EXCLUDE: facts.exclude, ONLY: facts.only is not None, IF_EMPTY: facts.if_empty}
    removing |= {name for name, so in asked.items() if so}
    absent = {name for name, verb in verbs.items() if verb in ("pin", "floor")}
    for what, found, logged, hidden in (
        ("rules", slate.held, decision.rules, removing),
        ("relaxed", slate.relaxed, decision.relaxed, absent),
    ):
        derived = {names[number] for number in found}
        if not derived <= {*logged} <= derived | hidden:
            yield Discrepancy("fields", decision.id, what, logged, sorted(derived))


def close_draws(scores: Scores) -> int:
    """Draws in which another machine's rounding may decide a tie otherwise."""
    ordered = np.sort(scores.rows, axis=1)
    gaps, size = np.diff(ordered, axis=1), np.abs(ordered[:, 1:])
    least, most = CLOSE
    return int(((gaps > least * size) & (gaps <= most * size)).any(axis=1).sum())


def rounded(scores: Scores, difference: float) -> bool:
    """Say whether ties of scores, or the last bits of chances in closed form, can account for a
    difference of a probability, within the bound."""
    if scores.formula is not None and difference <= SAME_CHANCE:
        return True
    return difference * len(scores.rows) <= min(TIED_DRAWS, close_draws(scores)) * (1 + 1e-9)

"""One decision, and the events that speak of it, derived again from what they were made from.

Nothing here trusts a row: what a changed byte may have made of it is told, never raised.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from service.bandits.policies import rules
from service.bandits.policies.candidates import Candidates
from service.bandits.policies.rules import Scores
from service.definition.features import Array
from service.errors import Invalid
from service.serving.audit_report import Discrepancy
from service.serving.engine import decide
from service.state.events import Decision, Learned, Settled, Shown
from service.state.fold import State
from service.state.learner import Learner

CLOSE = (1e-2 * rules.TIE, 1e3 * rules.TIE)
"""Scores this far apart, relatively, tie or not as another machine rounds: between what is equal on
all of them and what no rounding makes so."""

IMPORTED = "imported/0@0"
"""`model_version` of a decision that somebody else made: nothing of it can be derived."""

TIED_DRAWS = 2
"""By so many of its M draws may a probability differ."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """What `model_version` says: policy/version@position."""

    policy: str
    version: int
    position: int


def model_version(decision: Decision) -> ModelVersion | None:
    """None where it says nothing of that form."""
    name, _, position = decision.model_version.rpartition("@")
    policy, _, version = name.rpartition("/")
    if not (policy and _number(version) and _number(position)):
        return None
    return ModelVersion(policy, int(version), int(position))


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def is_whole(decision: Decision) -> bool:
    """Whether its parts fit together: a probability for each candidate (of an imported one perhaps
    for the shown arm alone), candidates alone shown."""
    p = decision.probabilities
    told = len(p) == len(decision.arms) and min(p, default=-1.0) >= 0 < sum(p)
    return (
        (told or (not p and is_imported(decision)))
        and len(set(decision.arms)) == len(decision.arms)
        and 0 < len(decision.shown) == len({arm.arm for arm in decision.shown})
        and {arm.arm for arm in decision.shown} <= set(decision.arms)
        and model_version(decision) is not None
    )


def is_imported(decision: Decision) -> bool:
    return decision.model_version == IMPORTED


def drawn_arm(decision: Decision) -> str:
    """What the seed draws from the logged probabilities."""
    point = rules.point_of(decision.seed, twister=decision.twister)
    return decision.arms[rules.choose(np.array(decision.probabilities), point)]


def candidates_of(state: State, decision: Decision) -> Candidates:
    """The candidates as the state has them. Raises KeyError or Invalid where it does not."""
    own, inline = state.candidates, decision.inline
    if not inline and tuple(decision.arms) == own.ids:
        return own  # which of them differ is known already
    if not inline:
        return own.choose(tuple(decision.arms), [own.row_of[arm] for arm in decision.arms])
    rows = [
        state.schema.encode_arm(inline[arm]) if arm in inline else own.x[own.row_of[arm]]
        for arm in decision.arms
    ]
    return Candidates(tuple(decision.arms), np.array(rows).reshape(len(rows), -1))


# -- by itself -------------------------------------------------------------------------------------


def check_choice(decision: Decision) -> Iterator[Discrepancy]:
    """Whether what was shown follows from the logged probabilities and seed. Of a slate they give
    the chance of its first arm alone: the draw is of a ranking."""
    first = decision.shown[0]
    if len(decision.shown) == 1 and drawn_arm(decision) != first.arm:
        what = "shown arm"
        yield Discrepancy("choice", decision.id, what, first.arm, drawn_arm(decision))
        return
    p = decision.probabilities[decision.arms.index(first.arm)]
    if len(decision.shown) > 1:
        if not np.isclose(p, first.propensity, rtol=1e-9):
            what = f"chance of {first.arm} in the first slot"
            yield Discrepancy("choice", decision.id, what, first.propensity, p)
    elif not first.propensity == decision.slate == p:
        logged = [first.propensity, decision.slate]
        yield Discrepancy("choice", decision.id, f"propensity of {first.arm}", logged, p)


def check_event(position: int, event: Learned, decision: Decision) -> Iterator[Discrepancy]:
    """What an event that settles a decision says otherwise than its row, the first of it."""
    fields = {
        "policy": (event.policy, decision.policy),
        "schema_version": (event.schema_version, decision.schema_version),
    }
    for name, (logged, derived) in fields.items():
        if logged != derived:
            what = f"{name} of the event at position {position}"
            yield Discrepancy("fields", decision.id, what, logged, derived)
            return
    shown = {arm.arm: arm for arm in decision.shown}
    where = f" in the event at position {position}"
    for settled in event.settled:
        if settled.arm not in shown:
            what = "settled arm" + where
            yield Discrepancy("fields", decision.id, what, settled.arm, list(shown))
            return
        expected = shown[settled.arm]
        if fault := _difference_of_x(decision, settled, expected.x, expected.inline, where):
            yield fault
            return


def _difference_of_x(
    decision: Decision, arm: Shown | Settled, x: Sequence[float], inline: bool, where: str = ""
) -> Discrepancy | None:
    if len(arm.x) != len(x):
        what = f"columns of x of {arm.arm}{where}"
        return Discrepancy("features", decision.id, what, len(arm.x), len(x))
    for column, (logged, derived) in enumerate(zip(arm.x, x, strict=True)):
        if logged != derived:
            what = f"x[{column}] of {arm.arm}{where}"
            return Discrepancy("features", decision.id, what, logged, derived)
    if arm.inline != inline:
        what = f"{arm.arm} is outside the catalogue{where}"
        return Discrepancy("features", decision.id, what, arm.inline, inline)
    return None


# -- under the state that it was made by -----------------------------------------------------------


def check_decision(state: State, decision: Decision) -> Iterator[Discrepancy]:
    """What differs from the decision that this state makes, at most one finding of a kind. The
    state is that of the position which the decision names."""
    learner = state.learners.get(decision.policy)
    if learner is None:
        what = f"at position {state.position} there is no policy {decision.policy}"
        yield Discrepancy("fields", decision.id, what)
        return
    if fault := _difference(state, learner, decision):
        yield fault
    try:
        context = state.schema.encode_context(decision.context)
        candidates = candidates_of(state, decision)
    except KeyError as unknown:
        what = f"at position {state.position} the catalogue has no arm {unknown}"
        yield Discrepancy("features", decision.id, what)
        return
    except Invalid as refused:
        where = ", ".join(f"{fault.path} {fault.message}" for fault in refused.faults)
        yield Discrepancy("features", decision.id, f"features do not fit: {where}")
        return
    for arm in decision.shown:
        x = [*context.tolist(), *candidates.x[candidates.row_of[arm.arm]].tolist()]
        if fault := _difference_of_x(decision, arm, x, arm.arm in decision.inline):
            yield fault
            break
    yield from _check_chances(learner, decision, context, candidates)


def _difference(state: State, learner: Learner, decision: Decision) -> Discrepancy | None:
    """The first of the plain fields that is not what the state says."""
    rewards = state.definition.reward
    shares = np.array([each.settings.share for each in state.learners.values()])
    assigned = learner.settings.share / shares.sum() if shares.any() else 1.0
    reward_by = decision.at + rewards.wait_seconds
    fields = {
        "model_version": (
            decision.model_version,
            f"{learner.name}/{learner.active.number}@{state.position}",
        ),
        "schema_version": (decision.schema_version, state.schema_version),
        "bank": (decision.bank, learner.policy.bank_seed),
        "reward_by": (decision.reward_by, reward_by),
        "accept_until": (decision.accept_until, reward_by + rewards.accept_seconds),
        "assignment": (
            decision.assignment,
            1.0 if decision.assignment == 1.0 else float(assigned),
        ),
    }
    if (shortlist := decision.shortlist) is not None:
        fields["policy of the shortlist"] = shortlist.policy, learner.name
        fields["catalogue of the shortlist"] = shortlist.catalogue, len(state.rows)
    for name, (logged, derived) in fields.items():
        if logged != derived:
            return Discrepancy("fields", decision.id, name, logged, derived)
    return None


def _check_chances(
    learner: Learner, decision: Decision, context: Array, candidates: Candidates
) -> Iterator[Discrepancy]:
    """Probabilities of the first slot; of a slate, also the ranking that the seed draws and its
    chances, which the row has no probabilities of."""
    ids, logged = candidates.ids, decision.probabilities
    p, slate = decide(learner, context, candidates, len(decision.shown), decision.seed)
    index = int(np.abs(p - logged).argmax())
    if p[index] != logged[index]:
        tied = rounded(learner.score(context, candidates), abs(p[index] - logged[index]))
        what = f"probability of {ids[index]}"
        yield Discrepancy(
            "tie" if tied else "probabilities", decision.id, what, logged[index], float(p[index])
        )
    elif len(decision.shown) > 1:
        shown, ranked = [arm.arm for arm in decision.shown], [ids[index] for index in slate.arms]
        if shown != ranked:
            tied = close_draws(learner.score(context, candidates)) > 0
            yield Discrepancy("tie" if tied else "choice", decision.id, "slate", shown, ranked)
            return
        chances = [*slate.propensities, slate.chance]
        told = [*(arm.propensity for arm in decision.shown), decision.slate]
        if chances != told:
            difference = float(np.abs(np.subtract(chances, told)).max())
            tied = rounded(learner.score(context, candidates), difference)
            what = "chances of the slots and of the slate"
            yield Discrepancy("tie" if tied else "probabilities", decision.id, what, told, chances)


def close_draws(scores: Scores) -> int:
    """Draws in which the rounding of another machine may have said what ties."""
    ordered = np.sort(scores.rows, axis=1)
    gaps, size = np.diff(ordered, axis=1), np.abs(ordered[:, 1:])
    least, most = CLOSE
    return int(((gaps > least * size) & (gaps <= most * size)).any(axis=1).sum())


def rounded(scores: Scores, difference: float) -> bool:
    """Whether ties of scores can account for a difference of a probability, within the bound."""
    return difference * len(scores.rows) <= min(TIED_DRAWS, close_draws(scores)) * (1 + 1e-9)

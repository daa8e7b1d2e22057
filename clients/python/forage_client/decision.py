"""What a decision says, and whether an answer is one."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

from forage_client.errors import ClientError, Unreachable

Json = dict[str, Any]

ROUNDING = 1e-9
"""Largest excess over 1 that rounding may give a probability."""


IF_EMPTY = "if_empty"
"""Name among the rules of a decision that shows an arm in place of those that are not eligible."""


class Ranked(NamedTuple):
    """A shown arm. propensity: chance of this arm in this slot, given the policy."""

    arm: str
    propensity: float


class Decision(NamedTuple):
    """What to show. Of a fallback all but `arm`, `arms`, `fallback` and `error` is empty.

    arm              in the first slot; None: no fallback was given
    arms             from the first slot down
    decision         sealed token: what a reward is for
    propensity       chance with which `arm` was chosen, given the policy
    slate_propensity of the whole ranking; None where one arm was asked for, or where a float cannot
                     hold it
    slate_log_propensity   its natural logarithm, always there
    model_version    policy/version@position
    rules            names of the rules that removed an arm or held a chance where it is
    relaxed          names of the rules that could not hold beside others, and yielded
    error            why it is a fallback: Unreachable, Unsendable, or the service's Problem
    """

    arm: str | None
    arms: tuple[str, ...]
    fallback: bool
    error: ClientError | None = None
    decision: str | None = None
    id: str = ""
    propensity: float | None = None
    ranking: tuple[Ranked, ...] = ()
    slate_propensity: float | None = None
    slate_log_propensity: float | None = None
    experiment: str = ""
    policy: str = ""
    model_version: str = ""
    logged: bool = False
    deferred: bool = False
    rules: tuple[str, ...] = ()
    relaxed: tuple[str, ...] = ()


def decided(answer: Json, asked: Json) -> Decision:
    """Return the decision in an answer. Raises Unreachable if it is not an answer to `asked`, the
    body of the request."""
    slots = answer.get("ranking")
    if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
        raise _wrong("ranking")
    ranking = tuple(Ranked(_text(slot, "arm"), _chance(slot, "propensity")) for slot in slots)
    arms = tuple(slot.arm for slot in ranking)
    most = asked.get("top_k", 1)
    if not isinstance(most, (int, float)) or not 1 <= len({*arms}) == len(arms) <= most:
        raise _wrong("ranking")
    rules = _names(answer, "rules")
    if IF_EMPTY not in rules and not _are_asked_for({*arms}, asked):
        raise Unreachable(f"the answer shows an arm that was not asked for: {', '.join(arms)}")
    if (_text(answer, "arm"), _chance(answer, "propensity")) != ranking[0]:
        raise _wrong("arm")
    logged = answer.get("logged")
    if not isinstance(logged, bool):
        raise _wrong("logged")
    whole = answer.get("slate_propensity")
    return Decision(
        arms[0],
        arms,
        fallback=False,
        decision=_text(answer, "decision_id"),
        id=_text(answer, "id"),
        propensity=ranking[0].propensity,
        ranking=ranking,
        slate_propensity=None if whole is None else _chance(answer, "slate_propensity"),
        slate_log_propensity=_number(answer, "slate_log_propensity", -sys.float_info.max, ROUNDING),
        experiment=_text(answer, "experiment"),
        policy=_text(answer, "policy"),
        model_version=_text(answer, "model_version"),
        logged=logged,
        deferred=asked.get("deferred") is True,
        rules=rules,
        relaxed=_names(answer, "relaxed"),
    )


def _are_asked_for(arms: set[str], asked: Json) -> bool:
    """Say whether a request allows these arms."""
    wanted = (asked[name] for name in ("arms", "only") if asked.get(name) is not None)
    return all(arms <= _ids(given) for given in wanted) and not arms & _ids(asked.get("exclude"))


def _ids(arms: Any) -> set[str]:
    """Return the ids of the arms in a request."""
    given = arms if isinstance(arms, list) else []
    ids = (arm.get("id") if isinstance(arm, dict) else arm for arm in given)
    return {each for each in ids if isinstance(each, str)}


def _names(answer: Json, name: str) -> tuple[str, ...]:
    """Return a list of names; an older service leaves it out."""
    names = answer.get(name, [])
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise _wrong(name)
    return tuple(names)


def _text(answer: Json, name: str) -> str:
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        raise _wrong(name)
    return value


def _chance(answer: Json, name: str) -> float:
    return _number(answer, name, math.ulp(0.0), 1 + ROUNDING)


def _number(answer: Json, name: str, low: float, high: float) -> float:
    value = answer.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise _wrong(name)


def _wrong(name: str) -> Unreachable:
    return Unreachable(f"the answer is not a decision of Forage's: {name} is missing or wrong")

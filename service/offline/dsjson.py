"""Convert lines of a decision-service log (DSJSON: Vowpal Wabbit, Azure Personalizer) to visits.
docs: import.md.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

JsonObject = Mapping[str, object]
DsjsonArm = str | dict[str, object]
"""Arm of the catalogue by its id, or an id with features."""

DANGLING = (
    "an observation without its decision (`RewardValue`, but no `_label_cost`): the reward came "
    "after the decision was written, or the decision was lost, so there is no visit"
)
SEVERAL_SLOTS = (
    "a decision of several slots (`_outcomes` or `_slots`): only one action a line is imported"
)
CONTINUOUS = "a decision of a number (`_label_ca`), not of one of several actions"
REQUIRED_MEMBERS = ("EventId", "Timestamp", "_label_probability", "c")


@dataclass
class KnownFeatures:
    """What an experiment knows: features by name, with their types, and the catalogue.

    ignored   features of lines that the experiment does not have
    """

    context: Mapping[str, str] = field(default_factory=dict)
    arm: Mapping[str, str] = field(default_factory=dict)
    catalogue: Collection[str] = ()
    ignored: set[str] = field(default_factory=set)


class NoVisit(ValueError):
    """Why a line is no visit."""


def visit_of(line: JsonObject, known: KnownFeatures) -> dict[str, object] | str:
    """Return the visit of a line, or why it is none."""
    try:
        return _visit(line, known)
    except NoVisit as fault:
        return str(fault)
    except RecursionError:
        return "it is nested too deeply"


def _visit(line: JsonObject, known: KnownFeatures) -> dict[str, object]:
    _expect_decision(line)
    shared, entries = _split(line["c"])
    arms = [_arm(number, entry, known) for number, entry in enumerate(entries, 1)]
    actions, label = _actions(line, len(arms)), _label(line)
    if label not in actions:
        raise NoVisit(f"`_label_Action` is {label}, which is not in `a`")
    ids, shown = [_id(arms[action - 1]) for action in actions], _id(arms[label - 1])
    visit: dict[str, object] = {
        "id": line["EventId"],
        "at": line["Timestamp"],
        "context": _features(shared, known.context, known.ignored),
        "arms": _distinct([arms[action - 1] for action in actions]),
        "arm": shown,
        "propensity": line["_label_probability"],
    }
    if line.get("p") is not None:
        chances = _sums(ids, line["p"])
        visit["probabilities"] = list(chances.values())
        if ids.count(shown) > 1:
            visit["propensity"] = chances[shown]
    if not line.get("_skipLearn"):
        visit["reward"] = 0.0 - _number(line["_label_cost"], "_label_cost")  # never -0
    return visit


def _expect_decision(line: JsonObject) -> None:
    context = line.get("c")
    if "_outcomes" in line or (isinstance(context, dict) and "_slots" in context):
        raise NoVisit(SEVERAL_SLOTS)
    if "_label_ca" in line:
        raise NoVisit(CONTINUOUS)
    if "_label_cost" not in line:
        raise NoVisit(DANGLING if "RewardValue" in line else "there is no `_label_cost`")
    if missing := [name for name in REQUIRED_MEMBERS if name not in line]:
        raise NoVisit(f"there is no `{missing[0]}`")
    if line.get("pdrop"):
        raise NoVisit("`pdrop` is above 0: visits have no weights to make up for dropped lines")


def _split(context: object) -> tuple[JsonObject, list[JsonObject]]:
    """Split `c` into the shared namespaces and the actions."""
    multi = context.get("_multi") if isinstance(context, dict) else None
    if not isinstance(context, dict) or not isinstance(multi, list):
        raise NoVisit("`c` must hold `_multi`, a list of actions")
    if not all(isinstance(entry, dict) for entry in multi):
        raise NoVisit("`_multi` must hold an object for each action")
    return {name: value for name, value in context.items() if name != "_multi"}, multi


def _actions(line: JsonObject, count: int) -> list[int]:
    actions = line.get("a", list(range(1, count + 1)))
    if not isinstance(actions, list) or not actions:
        raise NoVisit("`a` must be a list of actions")
    if not all(type(action) is int and 1 <= action <= count for action in actions):
        raise NoVisit(f"`a` must hold numbers of actions, from 1 to the {count} of `_multi`")
    return actions


def _label(line: JsonObject) -> int:
    index = line.get("_labelIndex")
    label = line.get("_label_Action", index + 1 if type(index) is int else None)
    if type(label) is not int:
        raise NoVisit("`_label_Action` must be the number of an action, from 1")
    return label


def _number(value: object, name: str) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise NoVisit(f"`{name}` must be a number")


def _distinct(arms: Sequence[DsjsonArm]) -> list[DsjsonArm]:
    """Return each arm once, where it was first listed."""
    found: dict[str, DsjsonArm] = {}
    for arm in arms:
        if found.setdefault(_id(arm), arm) != arm:
            raise NoVisit(f"two actions of `_multi` have the id {_id(arm)}, and other features")
    return list(found.values())


def _sums(ids: Sequence[str], chances: object) -> dict[str, float]:
    """Return the chance of each arm, over all places where it is listed."""
    if not isinstance(chances, list) or len(chances) != len(ids):
        raise NoVisit("`p` must hold a number for each action of `a`")
    found = dict.fromkeys(ids, 0.0)
    for arm, chance in zip(ids, chances, strict=True):
        found[arm] += _number(chance, "p")
    if len(found) < len(ids):  # sums of rounded numbers may be above 1
        return {arm: min(chance, 1.0) for arm, chance in found.items()}
    return found


# -- features --------------------------------------------------------------------------------------


def _arm(number: int, entry: JsonObject, known: KnownFeatures) -> DsjsonArm:
    """Convert an action to an arm: its id alone where the catalogue has it."""
    flat = dict(_flat(entry, ()))
    own = [flat[name] for name in sorted(flat, key=len) if re.search(r"(^|\.)id$", name)]
    named = (value for value in (entry.get("_tag"), *own) if isinstance(value, str | int))
    name = str(next(named, number))
    if name in known.catalogue:
        return name
    return {"id": name, "features": _features(entry, known.arm, known.ignored)}


def _id(arm: DsjsonArm) -> str:
    return arm if isinstance(arm, str) else str(arm["id"])


def _features(given: JsonObject, types: Mapping[str, str], ignored: set[str]) -> dict[str, object]:
    """Return the features of an experiment, by `Namespace.name` or, in one namespace only,
    `name`."""
    flat = dict(_flat(given, ()))
    found, used = dict[str, object](), set[str]()
    for name, kind in types.items():
        whole = [name] if name in flat else [path for path in flat if path.endswith(f".{name}")]
        if len(whole) > 1:
            raise NoVisit(f"the feature {name} is in several namespaces: {', '.join(whole)}")
        for path in whole:
            used.add(path)
            found[name] = _typed(flat[path], kind)
    ignored |= flat.keys() - used
    return found


def _flat(given: object, path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """Values by their path, without names that begin with an underscore, which VW keeps."""
    if isinstance(given, dict):
        for name, value in given.items():
            if not name.startswith("_"):
                yield from _flat(value, (*path, re.sub(r"[^A-Za-z0-9_.-]", "_", name)))
    elif isinstance(given, list) and any(isinstance(each, dict) for each in given):
        for each in given:
            yield from _flat(each, path)
    elif given is not None and path:
        yield ".".join(path), given


def _typed(value: object, kind: str) -> object:
    """VW takes numbers, text and truth values alike; a feature of Forage has one type."""
    match kind:
        case "categorical" | "hashed" if isinstance(value, bool):
            return str(value).lower()
        case "categorical" | "hashed" if isinstance(value, int | float):
            return str(value)
        case "numeric" if isinstance(value, bool):
            return float(value)
        case "boolean" if value in (0, 1):
            return bool(value)
    return value

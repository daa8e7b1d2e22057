"""Changes of an experiment in words: one plain sentence each."""

from collections.abc import Iterator, Mapping

from msgspec import structs

from service.definition.difference import Difference, SettingChange, grouped
from service.naming import listed, quoted, shortened
from service.state.changelog import CHANGE_KINDS
from service.state.events import (
    AUTOMATIC,
    BudgetMoved,
    Change,
    ChangingEvent,
    Event,
    RolloutStarted,
    RolloutStepped,
)
from service.state.rollout import StepKind

SAID_PARTS = 6
"""Parts of a definition that one sentence names."""

NOUNS = {
    "arms": ("arm", "arms"),
    "attributes": ("attribute", "attributes"),
    "features": ("feature", "features"),
    "policies": ("policy", "policies"),
    "rules": ("rule", "rules"),
}


STEP_WORDS: Mapping[StepKind, str] = {
    "advance": "advanced",
    "hold": "held",
    "resume": "resumed",
    "roll back": "rolled back",
    "finish": "finished",
    "ask": "held, until a person decides,",
}


def author(by: str) -> str:
    """Name the author of a change, who has no name where keys are off."""
    if by == AUTOMATIC:
        return "Forage"
    return quoted(by) if by else "somebody"


def sentence(event: ChangingEvent | Event) -> str:
    """Say what an event changed. A definition has a sentence of its own (`defined_sentence`)."""
    values = structs.asdict(event)
    said = {name: _said(name, value) for name, value in values.items()}
    if isinstance(event, RolloutStarted):
        said |= {"policy": quoted(event.plan.challenger), "baseline": quoted(event.plan.baseline)}
    if isinstance(event, RolloutStepped):
        said["kind"] = STEP_WORDS[event.step.kind]
    words = CHANGE_KINDS[type(event)].words.format_map(said)
    if reason := values.get("reason"):
        words = f"{words}: {reason!r}"
    if isinstance(event, RolloutStepped):
        words = f"{words}: {event.step.sentence.removesuffix('.')}"
    if isinstance(event, BudgetMoved):
        words = f"{words}: {event.sentence.removesuffix('.')}"
    return f"{author(event.by)} {words}" if isinstance(event, Change) else words


def lost_sentence(kind: str, by: str) -> str:
    """Say that an event is gone, and what is known of it."""
    return f"{kind.replace('_', ' ')} by {author(by)}: the log no longer holds the details"


def defined_sentence(by: str, changes: Difference, *, arms: bool = True) -> str:
    """Say what a definition changed of the one before. arms: whether arms were compared."""
    if not changes:
        most = "" if arms else " but arms at most"
        return f"{author(by)} defined the experiment again, with nothing changed{most}"
    parts = [*_moved("added", changes.added), *_moved("removed", changes.removed)]
    parts += [_changed(path, change) for path, change in changes.changed.items()]
    more = len(parts) - SAID_PARTS
    text = "; ".join(parts[:SAID_PARTS]) + f"; and {more:,} more changes" * (more > 0)
    return f"{author(by)} {text}"


def _moved(verb: str, paths: list[str]) -> Iterator[str]:
    for part, names in grouped(paths).items():
        one, several = NOUNS.get(part, (part, part))
        yield f"{verb} {one if len(names) == 1 else several} {listed(names)}"


def _changed(path: str, change: SettingChange) -> str:
    part, _, rest = path.partition(".")
    before, after = change.before, change.after
    if part == "policies":
        policy, _, setting = rest.partition(".")
        if setting == "share":
            return f"set the share of {quoted(policy)} to {shortened(after)}"
        return (
            f"changed policy {quoted(policy)}: {setting} {shortened(before)} -> {shortened(after)}"
        )
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        one, _ = NOUNS.get(part, (part, part))
        return f"changed {one} {quoted(rest)}: {', '.join(_values_moved(before, after))}"
    return f"changed {path}: {shortened(before)} -> {shortened(after)}"


def _values_moved(
    before: Mapping[str, object], after: Mapping[str, object], within: str = ""
) -> Iterator[str]:
    """Yield each value that differs, with its dotted path."""
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _values_moved(old, new, f"{within}{name}.")
        elif old != new:
            yield f"{within}{name} {shortened(old)} -> {shortened(new)}"


def _said(name: str, value: object) -> str:
    """Write a field of an event: the number of a list's members (`decisions`), shares by name."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return f"{len(value):,} {name.removesuffix('s') if len(value) == 1 else name}"
    if isinstance(value, Mapping):
        return ", ".join(f"{quoted(name)} to {shortened(each)}" for name, each in value.items())
    return str(value)

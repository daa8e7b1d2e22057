"""What one definition changes of another, each part with its dotted path."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel

from service.definition.experiment import Definition
from service.features.declaration import parts_of
from service.naming import listed


@dataclass(frozen=True, slots=True)
class SettingChange:
    """Values of a setting, or the features and attributes of an arm."""

    before: object
    after: object


@dataclass(slots=True)
class Difference:
    """Paths of what a definition adds, removes and changes: `arms.ball`, `attributes.stock`,
    `features.context.persona`, `policies.main.alpha`, `reward.range`."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: dict[str, SettingChange] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def losses(self) -> Iterator[tuple[str, str]]:
        """Yield each part that goes and the words for it: removed arms, attributes, features and
        policies, and rules that fall back to their default."""
        for part, names in grouped(self.removed).items():
            yield part, f"{len(names):,} {'goes' if len(names) == 1 else 'go'}: {listed(names)}"
        for path, change in self.changed.items():
            if path in DEFAULTS and change.after == DEFAULTS[path]:
                yield path, f"falls back to its default {change.after}, from {change.before}"


def grouped(paths: list[str]) -> dict[str, list[str]]:
    """Names by the part of a definition that they are in."""
    found: dict[str, list[str]] = {}
    for path in paths:
        part, _, name = path.partition(".")
        found.setdefault(part, []).append(name)
    return found


def difference(before: Definition | None, after: Definition) -> Difference:
    """Compare two definitions. before: None where there is none yet.

    Settings of features and policies are compared one by one; where the kind of one changes, those
    that both kinds have. The order of crosses and of tables has no meaning.
    """
    found = Difference()
    old, new = before or NO_DEFINITION, after
    _compare_names(found, "arms", old.arms, new.arms, _compare_whole)
    _compare_names(found, "attributes", old.attributes, new.attributes, _compare_whole)
    for side in ("context", "arm"):
        mine, others = (_dumped(getattr(each.features, side)) for each in (old, new))
        _compare_names(found, f"features.{side}", mine, others, _compare_settings)
    _compare_crosses(found, old.features.crosses, new.features.crosses)
    mine, others = _dumped(old.policies), _dumped(new.policies)
    _compare_names(found, "policies", mine, others, _compare_settings)
    mine, others = _dumped(old.rules.named), _dumped(new.rules.named)
    _compare_names(found, "rules", mine, others, _compare_whole)
    path, guardrails = "rollout.guardrails.segments.where", old.rollout.guardrails
    _compare_names(found, path, guardrails.where, new.rollout.guardrails.where, _compare_whole)
    _compare_settings(found, "", _rules(old), _rules(new))
    return found


SettingValues = Mapping[str, object]
Compared = TypeVar("Compared")
Compare = Callable[[Difference, str, Compared, Compared], None]


def _dumped(models: Mapping[str, BaseModel]) -> dict[str, SettingValues]:
    return {name: model.model_dump(mode="json") for name, model in models.items()}


def _rules(definition: Definition) -> dict[str, object]:
    """Return all settings that are no part of a table, by their paths."""
    rules, never = definition.reward.model_dump(mode="json"), definition.never_below
    others: dict[str, object] = {
        "control": definition.control,
        "fallback": definition.fallback,
        "never_below": never and never.model_dump(mode="json"),
        "max_vector": definition.max_vector,
        "rules.if_empty": definition.rules.if_empty,
        "rules.measure": definition.rules.measure,
    }
    rollout = definition.rollout.model_dump(
        mode="json", exclude={"guardrails": {"segments": {"where"}}}
    )
    tables = {f"reward.{name}": value for name, value in rules.items()}
    return tables | {f"rollout.{name}": value for name, value in rollout.items()} | others


def _compare_names(
    found: Difference,
    path: str,
    old: Mapping[str, Compared],
    new: Mapping[str, Compared],
    compare: Compare[Compared],
) -> None:
    found.removed += [f"{path}.{name}" for name in old if name not in new]
    found.added += [f"{path}.{name}" for name in new if name not in old]
    for name, before in old.items():
        if name in new and before != new[name]:
            compare(found, f"{path}.{name}", before, new[name])


def _compare_crosses(found: Difference, old: Sequence[str], new: Sequence[str]) -> None:
    mine, others = ({tuple(parts_of(cross)): cross for cross in each} for each in (old, new))
    path = "features.crosses"
    found.removed += [f"{path}.{cross}" for parts, cross in mine.items() if parts not in others]
    found.added += [f"{path}.{cross}" for parts, cross in others.items() if parts not in mine]


def _compare_whole(found: Difference, path: str, old: object, new: object) -> None:
    found.changed[path] = SettingChange(old, new)


def _compare_settings(found: Difference, path: str, old: SettingValues, new: SettingValues) -> None:
    for name, before in old.items():
        if name not in new or before == (after := new[name]):
            continue
        within = f"{path}.{name}" if path else name
        if isinstance(before, dict) and isinstance(after, dict):
            _compare_settings(found, within, before, after)
        else:
            found.changed[within] = SettingChange(before, after)


def _with_parts(settings: SettingValues, path: str = "") -> dict[str, object]:
    """Return settings, and those within tables among them, by their paths."""
    found = dict[str, object]()
    for name, value in settings.items():
        found[path + name] = value
        if isinstance(value, dict):
            found |= _with_parts(value, f"{path}{name}.")
    return found


NO_DEFINITION = Definition.model_construct(policies={})
DEFAULTS = _with_parts(_rules(NO_DEFINITION))

"""What rules did to a decision, in words, as far as the present definition still says it."""

from collections.abc import Iterator, Mapping

from service.definition.rules import (
    EACH_ARM,
    EXCLUDE,
    IF_EMPTY,
    NEW,
    ONLY,
    ArmGroup,
    DeclaredRule,
    PinRule,
    ShareRule,
)
from service.naming import listed, quoted
from service.state.decisions import Decision
from service.state.events import FeatureValues
from service.state.fold import State

LOGGED_ROUNDING = 1e-6
"""Difference of a sum of logged probabilities from a bound that is due to their 4 bytes."""

OF_REQUESTS = {
    EXCLUDE: "the request excluded arms",
    ONLY: "the request wanted none but the arms in its 'only'",
}
"""Sentences on what requests do in place of rules."""


def sentences(state: State, decision: Decision) -> list[str]:
    """Say what each rule of a decision did. A rule that is gone has its name alone."""
    rules = state.definition.rules.named
    probabilities = dict(zip(decision.arms, decision.probabilities, strict=False))
    said = list[str]()
    for name in decision.rules:
        if name == IF_EMPTY:
            shown = quoted(decision.shown[0].arm)
            said.append(f"no arm was eligible, and {shown} is shown in place of them")
        elif name in OF_REQUESTS:
            said.append(OF_REQUESTS[name])
        elif (rule := rules.get(name)) is None:
            said.append(quoted(name))
        else:
            found = [*_Sentences(state, decision, probabilities).of(name, rule)]
            said += found or [f"{quoted(name)} held chances where they are"]
    said += [f"{quoted(name)} could not hold beside others" for name in decision.relaxed]
    said += [f"{quoted(name)} is off, to measure what it costs" for name in decision.facts.off]
    return said


class _Sentences:
    """Words for rules that moved a decision. probabilities: of its first slot, by arm."""

    def __init__(
        self, state: State, decision: Decision, probabilities: Mapping[str, float]
    ) -> None:
        self._state, self._decision, self._probabilities = state, decision, probabilities

    def of(self, name: str, rule: DeclaredRule) -> Iterator[str]:
        """Yield sentences on a rule; none where the definition has changed too much since."""
        if rule.pin is not None:
            yield from self._pin(rule.pin)
        elif (bound := rule.cap or rule.floor) is not None:
            if bound.share is not None and bound.every is None:
                yield from self._share(rule.verb, bound, bound.share)
            else:
                yield self._window(name, rule.verb, bound)
        elif rule.explore is not None:
            share = _percent(rule.explore.share)
            yield f"{quoted(name)} gives arms their parts of {share} uniform choice"
        elif rule.at_most is not None:
            most, of = rule.at_most.per_slate, quoted(rule.at_most.of)
            arms = "1 arm" if most == 1 else f"{most:,} arms"
            yield f"{quoted(name)} shows at most {arms} of one {of}"
        else:
            yield f"{quoted(name)} removed arms that are not eligible"

    def _pin(self, pin: PinRule) -> Iterator[str]:
        if pin.slot > 1 or self._reach(self._probabilities.get(pin.arm, 0.0), pin.share):
            yield f"{quoted(pin.arm)} is pinned at {_percent(pin.share)} of slot {pin.slot}"

    def _window(self, name: str, bound: str, rule: ShareRule) -> str:
        """Say what a rule holds over its window."""
        every = f"{rule.every:,} decisions" if isinstance(rule.every, int) else f"a {rule.every}"
        if rule.share is None:
            return f"{quoted(name)} shows arms at most {rule.count:,} times in {every}"
        return f"{quoted(name)} paces arms to a {bound} of {_percent(rule.share)} of {every}"

    def _share(self, bound: str, rule: ShareRule, least: float) -> Iterator[str]:
        """Yield who reaches a cap or a floor in the first slot."""
        share, chances = _percent(least), self._probabilities
        if rule.of == NEW:
            yield f"new arms are at their {bound} of {share}"
        elif rule.arm is not None or rule.of == EACH_ARM:
            arms = [rule.arm] if rule.arm is not None else [*chances]
            found = [arm for arm in arms if self._reach(chances.get(arm, 0.0), least)]
            if found:
                yield f"{listed(found)} {_at(len(found))} {bound} of {share}"
        else:
            for value, chance in self._chances_by_value(rule).items():
                if rule.value in (None, value) and self._reach(chance, least):
                    yield f"{_shown(rule.of, value)} {_at(1)} {bound} of {share}"

    def _reach(self, chance: float, share: float) -> bool:
        return abs(chance - share) <= LOGGED_ROUNDING

    def _chances_by_value(self, group: ArmGroup) -> dict[bool | float | str, float]:
        """Sum the probabilities of the arms of each value that there is."""
        sums = dict[bool | float | str, float]()
        for arm, chance in self._probabilities.items():
            value = self._values(arm).get(str(group.of))
            if value is not None:
                sums[value] = sums.get(value, 0.0) + chance
        return sums

    def _values(self, arm: str) -> FeatureValues:
        """Return features and attributes of a candidate; of one that was removed, none."""
        decision, state = self._decision, self._state
        if arm in decision.inline:
            return {**decision.inline[arm], **decision.attributes.get(arm, {})}
        return {**state.arms.get(arm, {}), **state.attributes.get(arm, {})}


def _at(count: int) -> str:
    return "is at its" if count == 1 else "are at their"


def _percent(share: float) -> str:
    return f"{100 * share:.6g} percent"


def _shown(name: str | None, value: bool | float | str) -> str:
    match value:
        case str():
            return quoted(value)
        case bool():
            return f"{name} = {str(value).lower()}"
        case _:
            return f"{name} = {value:.6g}"

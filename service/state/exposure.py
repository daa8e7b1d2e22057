"""Exposure: how often rules with a window have had arms shown in it."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from service.definition.rules import DeclaredRule, Rules, WindowLength


class Window:
    """What was shown in one window of one rule.

    number      of the window, by its time; 0 where it is one of decisions
    decisions   for which the rule held
    shown       showings of each arm, or group of arms, by its label
    leases      of a count that several processes share: how much of it each may show, by label
    """

    __slots__ = ("decisions", "leases", "length", "number", "shown")

    def __init__(self, length: WindowLength) -> None:
        self.length = length
        self.number = self.decisions = 0
        self.shown: dict[str, int] = {}
        self.leases: dict[str, dict[str, int]] = {}

    def number_at(self, at: float) -> int:
        """Return the number of the window of a time (unix seconds)."""
        return 0 if self.length.decisions is not None else int(at // self.length.seconds)

    def turn(self, at: float) -> None:
        """Begin another window where this one is over at a time (unix seconds)."""
        if self.length.decisions is not None:
            if self.decisions >= self.length.decisions:
                self.decisions, self.shown = 0, {}
        elif (number := self.number_at(at)) > self.number:
            self.number, self.decisions, self.shown, self.leases = number, 0, {}, {}

    def add(self, at: float, shown: Sequence[str]) -> None:
        """Add a decision and the labels of what it showed; one of an earlier time counts no
        more."""
        self.turn(at)
        if self.number_at(at) < self.number:
            return
        self.decisions += 1
        for label in shown:
            self.shown[label] = self.shown.get(label, 0) + 1

    def counts(self, at: float, labels: Sequence[str]) -> tuple[int, tuple[int, ...]]:
        """Return decisions and showings in the window of a time."""
        self.turn(at)
        return self.decisions, tuple([self.shown.get(label, 0) for label in labels])

    def leased(self, at: float, label: str) -> dict[str, int]:
        """Return how much each process may show in the window of a time."""
        return self.leases.get(label, {}) if self.number_at(at) == self.number else {}

    def lease(self, at: float, process: str, asked: Mapping[str, int], count: int) -> None:
        """Give a process what it asks for of a count, by label, as far as it is there."""
        self.turn(at)
        if self.number_at(at) < self.number:
            return
        for label, amount in asked.items():
            given = self.leases.setdefault(label, {})
            left = count - sum(given.values())
            given[process] = given.get(process, 0) + min(amount, max(left, 0))


ShownByRule = dict[str, list[str]]
"""Labels of what a decision showed, by the rule that counts them."""


class Exposure:
    """The present window of each rule that has one.

    added   decisions so far: while it stays, so do all counts
    """

    def __init__(self) -> None:
        self.added = 0
        self._rules: dict[str, DeclaredRule] = {}
        self.windows: dict[str, Window] = {}

    def __bool__(self) -> bool:
        return bool(self.windows)

    def define(self, rules: Rules) -> None:
        """Take other rules. Those that stay as they are keep their counts."""
        before, self.windows = self.windows, {}
        for name, rule in rules.named.items():
            if (length := rule.window) is not None:
                same = self._rules.get(name) == rule
                self.windows[name] = before[name] if same else Window(length)
        self._rules = dict(rules.named)

    def add(self, at: float, shown: ShownByRule) -> None:
        """Add a decision that was made at a time (unix seconds)."""
        self.added += 1
        for name, labels in shown.items():
            if (window := self.windows.get(name)) is not None:
                window.add(at, labels)

    def lease(self, at: float, rule: str, process: str, asked: Mapping[str, int]) -> None:
        """Give a process what it asks for of a rule's count, if there still is such a rule."""
        window, declared = self.windows.get(rule), self._rules.get(rule)
        if window is not None and declared is not None and declared.count is not None:
            window.lease(at, process, asked, declared.count)

    def copy(self) -> "Exposure":
        found = Exposure()
        found._rules = self._rules
        for name, window in self.windows.items():
            own = found.windows[name] = Window(window.length)
            own.number, own.decisions = window.number, window.decisions
            own.shown = dict(window.shown)
        return found

    # -- snapshots -----------------------------------------------------------------------------

    def members(self) -> dict[str, Any]:
        """Return what `restore` needs, as JSON."""
        return {
            name: [
                window.number,
                window.decisions,
                dict(window.shown),
                {label: dict(given) for label, given in window.leases.items()},
            ]
            for name, window in self.windows.items()
        }

    def restore(self, members: Mapping[str, Any]) -> Self:
        """Take the counts of `members`, for the same rules."""
        for name, (number, decisions, shown, leases) in members.items():
            window = self.windows[name]
            window.number, window.decisions = number, decisions
            window.shown, window.leases = shown, leases
        return self

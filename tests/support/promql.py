"""Which metrics a PromQL expression reads, and which labels it names."""

import re
from collections.abc import Iterator
from typing import NamedTuple

TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"|(?P<range>\[[^\]]*\])"
    r"|(?P<variable>\$\{?\w+\}?)"
    r"|(?P<number>\d[\w.]*(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[a-zA-Z_:][\w:]*)"
    r"|(?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^=<>(){},@])"
    r"|(?P<space>\s+)"
)
WORDS = {"and", "or", "unless", "bool", "offset", "start", "end", "inf", "nan"}
LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}


class Reading(NamedTuple):
    """What one expression reads. matched: labels in braces, by metric; grouped: in lists."""

    metrics: set[str]
    matched: dict[str, set[str]]
    grouped: set[str]


def reading(expression: str) -> Reading:
    """Raises ValueError where the expression is not understood."""
    found = Reading(set(), {}, set())
    tokens = list(_tokens(expression))
    index = 0
    while index < len(tokens):
        kind, text = tokens[index]
        following = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        index += 1
        if kind != "name" or text.lower() in WORDS:
            continue
        if text.lower() in LISTS:
            if following == "(":
                names, index = _until(tokens, index + 1, ")")
                found.grouped.update(names)
        elif following != "(" and following.lower() not in {"by", "without"}:
            found.metrics.add(text)
            if following == "{":
                names, index = _until(tokens, index + 1, "}")
                found.matched.setdefault(text, set()).update(names)
    if not found.metrics and "vector" not in expression:
        raise ValueError(f"reads no metric: {expression}")
    return found


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(expression):
        match = TOKEN.match(expression, place)
        if match is None:
            raise ValueError(f"not understood from {expression[place : place + 20]!r} on")
        place = match.end()
        if match.lastgroup != "space":
            yield str(match.lastgroup), match.group()


def _until(tokens: list[tuple[str, str]], index: int, close: str) -> tuple[list[str], int]:
    """Names before a closing bracket, and what follows it."""
    names = []
    while tokens[index][1] != close:
        if tokens[index][0] == "name":
            names.append(tokens[index][1])
        index += 1
    return names, index + 1


class Exposed(NamedTuple):
    """What /metrics has: labels by the name of each sample, those of histograms included."""

    labels: dict[str, set[str]]

    def faults(self, expression: str) -> list[str]:
        """What an expression reads that is not there. `up`, instance and job are Prometheus'."""
        read, added = reading(expression), {"instance", "job"}
        known = {**self.labels, "up": set()}
        faults = [f"there is no metric {name}" for name in sorted(read.metrics - known.keys())]
        here = [name for name in read.metrics if name in known]
        for name in here:
            odd = read.matched.get(name, set()) - known[name] - added
            faults += [f"{name} has no label {label}" for label in sorted(odd)]
        every = set().union(*(known[name] for name in here)) | added
        return faults + [f"none has the label {one}" for one in sorted(read.grouped - every)]

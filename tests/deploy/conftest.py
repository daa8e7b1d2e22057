"""What a service exposes that was used, once for all tests here."""

import re

import pytest

from tests.support.metrics import families, used

NAME = re.compile(r"\b(?:forage|process|python)_\w+\b")
"""A metric in an expression. What else an expression holds, promtool checks (make alerts)."""


@pytest.fixture(scope="session")
def exposed() -> dict[str, set[str]]:
    """Labels by the name of each sample, those of histograms included."""
    with used() as wire:
        labels: dict[str, set[str]] = {}
        for _, _, family in families(wire).values():
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def metrics_in(expression: str) -> set[str]:
    return set(NAME.findall(expression))

"""Tests that are coroutines: each runs in a setting that its decorator makes."""

from collections.abc import Awaitable, Callable
from functools import partial, update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any

from tests.support.clock import run_virtual

Scenario = Callable[..., Awaitable[Any]]
Test = Callable[..., None]


def as_test(scenario: Scenario, run: Callable[..., Any], *needs: str, given: int = 1) -> Test:
    """Return a test of a scenario's fixtures.

    run     takes the fixtures `needs` and the scenario, whose first `given` arguments it supplies
    """
    own = list(signature(scenario).parameters)[given:]

    def test(**fixtures: Any) -> None:
        bound = partial(scenario, **{name: fixtures[name] for name in own})
        run(*(fixtures[name] for name in needs), bound)

    update_wrapper(test, scenario)
    names = dict.fromkeys([*needs, *own])
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in names]
    test.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return test


def virtual(scenario: Scenario) -> Test:
    """A test in virtual time."""
    return as_test(scenario, lambda work: run_virtual(work()), given=0)

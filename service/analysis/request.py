"""What to evaluate, and on which decisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LEAST_EFFECTIVE = 50.0
"""Least effective number of decisions that an estimate rests on: below, 95 percent intervals of
weighted means were seen to cover 70 percent."""

MOST_UNSUPPORTED = 0.01
"""Largest share of what a policy would show that the log may be unable to show: it makes a bias of
at most as much of the range of rewards."""

PolicyFields = Mapping[str, object]
"""Settings of a policy, as an experiment's file has them."""

RuleFields = Mapping[str, object]
"""Settings of a rule, as an experiment's file has them."""


@dataclass(frozen=True)
class Selection:
    """Decisions to evaluate on.

    since, until   unix seconds, of when they were made; until is excluded
    newest         so many at most
    logged_by      made by these policies alone (None: by any)
    """

    since: float | None = None
    until: float | None = None
    newest: int | None = None
    logged_by: frozenset[str] | None = None


@dataclass(frozen=True)
class EvaluationRequest:
    """What to evaluate.

    policies      live ones and shadows; None: all live ones, but only where nothing is defined
    shadows       evaluate all shadows, each on the decisions since its present definition
    definitions   of policies that never ran, by name
    rules         which the policies are to keep beside, or in place of, those of the experiment, by
                  name; None: without the rule of this name
    freeze        as they stood before the first of the decisions; else each as it learned
    against       the one of `policies` that the others are compared with, over the decisions since
                  all are as they are
    own           weights by the propensity of the assigned policy alone
    first_slot    of a slate, what its first slot earns; else slates are refused
    """

    experiment: str | None = None
    policies: Sequence[str] | None = None
    shadows: bool = False
    definitions: Mapping[str, PolicyFields] = field(default_factory=dict)
    rules: Mapping[str, RuleFields | None] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    freeze: bool = False
    against: str | None = None
    own: bool = False
    first_slot: bool = False
    confidence: float = 0.95
    least_effective: float = LEAST_EFFECTIVE
    most_unsupported: float = MOST_UNSUPPORTED

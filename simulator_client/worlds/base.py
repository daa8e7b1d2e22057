"""What a world has to be able to say; a new world is one module and one line in the table."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class Outcome(NamedTuple):
    """What a visitor did with what was shown, and what chance it had."""

    feedback: dict[str, Any]  # goes into POST /reward beside the decision_id
    clicks: float
    expected: float  # true expected clicks of what was shown
    best: float  # true expected clicks of the best that could have been shown
    group: str  # what was shown, coarsely: one of the world's groups


class Reference(NamedTuple):
    """The bounds of what can be reached, from one visit on."""

    from_visit: int
    oracle_ctr: float  # always the best arm for the visitor
    uniform_ctr: float  # any arm, equally likely


class Stream(Protocol[V_co]):
    """The visits of one seed. A visit's draws depend on the seed and its index alone.

    So every policy meets the same visits, and a run resumed at a visit meets the same as one go.
    """

    def visit(self, index: int) -> V_co:
        """Who comes at `index` (from 0), and the chance that decides what they do."""
        ...


class World(Protocol[V]):
    """A decision problem whose best answer is known."""

    name: str
    groups: tuple[str, ...]

    def definition(self, policies: Sequence[str]) -> dict[str, Any]:
        """The body of PUT /experiments/{name}; UsageError where a policy is unknown."""
        ...

    def stream(self, seed: int) -> Stream[V]:
        """The visits of a seed."""
        ...

    def request(self, visit: V) -> dict[str, Any]:
        """What POST /select is told beside the experiment and the policy."""
        ...

    def outcome(self, visit: V, shown: Sequence[str]) -> Outcome:
        """What comes of showing these arms, best slot first; pure in its arguments."""
        ...

    def references(self, visits: int) -> list[Reference]:
        """The bounds for the first `visits` visits, in order, the first from visit 0."""
        ...

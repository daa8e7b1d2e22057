"""What a world has to be able to say; a new world is one module and one line in the table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class Asked(NamedTuple):
    """What a world is made from; a world refuses what it has no use for."""

    seed: int
    shock_at: int | None = None  # the visit from which on the world is another; None: never
    data: Path | None = None  # a file that the visits come from
    label: str | None = None  # its column with the class; None: 'label'
    risky: bool = False  # rewards of the Mushroom problem
    clicks: float = 0.05  # share of clicks on a random arm
    effects: str = "crosses"  # that features have on clicks


class Outcome(NamedTuple):
    """What a visitor did with what was shown, and what chance it had.

    Without a known truth `expected` is what was clicked, `best` and `uniform` are None.
    """

    feedback: dict[str, Any] | None  # goes into POST /reward; None: the visit does not count
    clicks: float
    expected: float  # true expected clicks of what was shown
    best: float | None  # true expected clicks of the best that could have been shown
    uniform: float | None  # true expected clicks of any choice, equally likely
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
        """Return who comes at `index` (from 0), and the chance that decides what they do."""
        ...


class World(Protocol[V]):
    """A decision problem whose best answer is known, or a log of one."""

    name: str
    groups: tuple[str, ...]
    reward_range: tuple[float, float]
    miss: float | None  # reward of every visit without a click; None: there is no such reward
    longest: int | None  # visits that a stream has at most; None: as many as are asked for
    remark: str  # a sentence for those who read the figures; may be empty

    def definition(
        self, policies: Sequence[str], own: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Return the body of PUT /experiments/{name}; UsageError where a policy is unknown or
        unfit.

        own: name -> settings beside, and before, the policies that are known by name.
        """
        ...

    def stream(self, seed: int) -> Stream[V]:
        """Return the visits of a seed."""
        ...

    def request(self, visit: V) -> dict[str, Any]:
        """Return what POST /select is told beside the experiment and the policy."""
        ...

    def outcome(self, visit: V, shown: Sequence[str]) -> Outcome:
        """Return what comes of showing these arms, best slot first; pure in its arguments."""
        ...

    def references(self, visits: int) -> list[Reference]:
        """Return the bounds for the first `visits` visits, in order, the first from visit 0.

        Empty where the truth is not known.
        """
        ...

"""A course: an agent's visits in a world, and the figures drawn from them."""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from simulator_client.course import recovery_visits
from simulator_client.worlds import Reference, World

Array = npt.NDArray[np.float64]

SAMPLES: Final = 50
"""Of the head's health in a course."""

POINTS: Final = 100
"""Of a course that are kept for plots."""


class Chance(NamedTuple):
    """What chance has to give an agent at a visit: the same for every agent.

    decision   id of the decision      seed   of every draw of the decision
    """

    decision: str
    seed: int


def chance(stream: int, visit: int) -> Chance:
    """Id (22 characters) and seed (63 bits), of the stream's seed and the visit alone."""
    digest = hashlib.blake2b(b"%d/%d" % (stream, visit), digest_size=24).digest()
    name = urlsafe_b64encode(digest[:16]).rstrip(b"=").decode()
    return Chance(name, int.from_bytes(digest[16:], "big") >> 1)


class Agent(Protocol):
    """Whoever decides what to show."""

    def show(self, request: Mapping[str, Any], chance: Chance) -> list[str]:
        """The arms for a request such as POST /select gets, best slot first."""

    def settle(self, feedback: Mapping[str, Any], chance: Chance) -> None:
        """What came of the last `show`, such as POST /reward gets it."""

    def smallest_eigenvalue(self) -> float | None:
        """Of the head's A; None where there is none."""


@dataclass
class Course:
    """One agent's visits in order, an entry each.

    expected, best, uniform   true expected reward of what was shown, of the best that could have
                              been, and of any choice equally likely
    clicks                    what came: rewards, where they are more than clicks
    eigenvalues               (visits so far, smallest eigenvalue of A)
    seconds                   for all of it: world, choice, learning and training
    """

    expected: Array
    best: Array
    uniform: Array
    clicks: Array
    eigenvalues: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0


def play(world: World[Any], agent: Agent, seed: int, visits: int) -> Course:
    """The first `visits` visits of stream `seed`."""
    stream, course = world.stream(seed), Course(*np.zeros((4, visits)))
    every = max(1, visits // SAMPLES)
    start = perf_counter()
    for number in range(visits):
        visit, drawn = stream.visit(number), chance(seed, number)
        outcome = world.outcome(visit, agent.show(world.request(visit), drawn))
        if outcome.feedback is not None:
            agent.settle(outcome.feedback, drawn)
        course.expected[number], course.clicks[number] = outcome.expected, outcome.clicks
        course.best[number] = np.nan if outcome.best is None else outcome.best
        course.uniform[number] = np.nan if outcome.uniform is None else outcome.uniform
        if (number + 1) % every == 0:
            smallest = agent.smallest_eigenvalue()
            if smallest is not None:
                course.eigenvalues.append((number + 1, smallest))
    course.seconds = perf_counter() - start
    return course


def figures(
    course: Course, references: Sequence[Reference], shock_at: int | None = None
) -> dict[str, Any]:
    """The summary of a course. Regret is against the best choice at each visit; the relative one
    is 100 for uniform choice at the same visits."""
    visits = len(course.expected)
    shock = shock_at if shock_at is not None and 0 < shock_at < visits else None
    regret = float((course.best - course.expected).sum())
    uniform = float((course.best - course.uniform).sum())
    best = float(course.best.sum())
    return {
        "visits": visits,
        "clicks": float(course.clicks.sum()),
        "expected_ctr": float(course.expected.mean()),
        "expected_ctr_before": None if shock is None else float(course.expected[:shock].mean()),
        "expected_ctr_after": None if shock is None else float(course.expected[shock:].mean()),
        "expected_regret": regret,
        "relative_regret": 100 * regret / uniform if uniform else None,
        "share_of_optimal": float(course.expected.sum()) / best if best else None,
        "recovery_visits": None
        if shock is None
        else recovery_visits(course.expected[shock:], references[-1].oracle_ctr),
        "seconds": course.seconds,
    }


def curve(course: Course) -> dict[str, list[float]]:
    """Sums since the start at no more than POINTS visits, for plots."""
    visits = len(course.expected)
    at = np.unique(np.linspace(1, visits, min(visits, POINTS)).round().astype(int))
    sums = {name: np.cumsum(getattr(course, name))[at - 1] for name in ("expected", "best")}
    return {"visit": at.tolist()} | {name: s.round(3).tolist() for name, s in sums.items()}
